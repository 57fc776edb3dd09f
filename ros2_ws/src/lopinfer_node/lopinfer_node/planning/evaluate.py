"""Estimate the latency and energy of the requests of each method over a recorded link.

The estimate follows thesis 4.6.1 and uses a calibrated timeline. Requests follow each other
without a pause, as in the published runs. A request that starts during sample i of the trace uses
the plan for the rate of sample i - 1, which is the last rate that could be measured before the
request. (In sample 0 it uses the plan for the rate of sample 0.) The request then runs at the rate
of sample i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from fleet_env.errors import TraceError
from fleet_env.links.trace import LinkTrace
from fleet_env.settings.power_model import PowerModel

from ..model.graph import Graph
from . import compiled
from .baselines import BASELINES
from .plan import DEVICE, SERVER, Plan
from .profile import Profile
from .table import BANDWIDTHS, plan_table
from .timeline import Costs, Link

# The values of `LATENCY` and `EFFICIENCY` are chosen from the published server-only runs.
# There, a request takes the server's compute time, plus 12 to 16 ms, plus the time of its
# bytes at 0.93 to 1.0 of the recorded rate. The slow end of each range comes nearest to
# the published means: 16 ms (for both directions together) and 0.93. Estimated and
# published means are 87 and 89 ms for VGG19 indoors, 232 and 255 ms for KAPAO indoors,
# and 115 and 126 ms for ResNet152 outdoors.
LATENCY = 8e-3         # delay of the link in each direction, in seconds
EFFICIENCY = 0.93      # share of a trace's rate that is left for tensors


@dataclass(frozen=True, eq=False)
class Outcome:
    """The requests of one method: latency (requests,) in seconds, energy (requests,) in J."""

    latency: np.ndarray
    energy: np.ndarray

    @property
    def mean(self) -> float:
        """Return the mean latency in seconds."""
        return float(self.latency.mean())

    @property
    def std(self) -> float:
        """Return the standard deviation of the latency in seconds."""
        return float(self.latency.std())

    @property
    def p95(self) -> float:
        """Return the 95th percentile of the latency in seconds."""
        return float(np.percentile(self.latency, 95))

    @property
    def joules(self) -> float:
        """Return the mean energy of a request in J."""
        return float(self.energy.mean())


def costs_of(graph: Graph, device: Profile, server: Profile) -> Costs:
    """Return the costs of both sides from their profiles.

    :raises ProfileError: a profile belongs to another graph.
    """
    for profile in (device, server):
        profile.check(graph)
    return Costs(np.stack([device.fixed, server.fixed]),
                 np.stack([device.per_share, server.per_share]))


def tables(graph: Graph, costs: Costs, latency: float = LATENCY) -> dict[str, Sequence[Plan]]:
    """Return one plan per bandwidth of `table.BANDWIDTHS`, for every baseline and for LOPInfer."""
    links = [Link(rate, rate, latency) for rate in BANDWIDTHS]
    found: dict[str, Sequence[Plan]] = {
        name: [plan(graph, costs, link) for link in links] for name, plan in BASELINES.items()}
    found['lopinfer'] = plan_table(graph, costs, BANDWIDTHS, latency)
    return found


def estimates(graph: Graph, plan: Plan, costs: Costs, rates: np.ndarray,
              latency: float = LATENCY, message: float = 0.0, power: PowerModel | None = None
              ) -> tuple[np.ndarray, np.ndarray]:
    """Return latency in seconds and energy in J of one plan at many rates.

    :param rates: bytes/s: (n,) for equal rates in both directions, or (n, 2) for up and
        down.
    :param message: seconds that each transfer takes in addition to the time for its bytes.
    :returns: two arrays, float64 (n,); a value is infinite if a transfer needs a link of
        rate 0.
    :raises ValueError: the plan does not consist of two cuts per operator (`Plan.of_cuts`).
    """
    to = np.ascontiguousarray(plan.own[DEVICE, :, 1])
    idle = plan.own[SERVER, :, 0] == plan.own[SERVER, :, 1]
    start = np.where(idle, graph.extents, plan.own[SERVER, :, 0])
    if Plan.of_cuts(graph, to, start) != plan:
        raise ValueError(f'{graph.name}: this plan is not made of cuts')
    work = compiled.work(len(graph))
    problem = compiled.problem(graph, costs, Link(1.0, 1.0, latency, message), power)
    found = np.empty((2, len(rates)))
    for i, rate in enumerate(rates):
        problem.rate[:] = rate
        seconds = compiled.evaluate_cuts(problem, work, to, start)[3]
        found[:, i] = seconds, compiled.energy(problem, work, seconds)
    return found[0], found[1]


def replay(graph: Graph, table: Sequence[Plan], costs: Costs, trace: LinkTrace,
           foresight: bool = False, latency: float = LATENCY) -> Outcome:
    """Estimate latency and energy of one method's requests in one period of a recorded link.

    The requests run one after the other.

    :param table: one plan per bandwidth of `table.BANDWIDTHS`.
    :param trace: recorded rates in Mbit/s; the share `EFFICIENCY` of a rate is left for tensors.
    :param foresight: give each request the plan that is fastest at the rate during the request. No
        real controller knows this rate. The result shows what a perfect prediction would achieve.
    :raises ValueError: the number of plans differs from the number of bandwidths.
    :raises TraceError: a request would never end.
    """
    if len(table) != len(BANDWIDTHS):
        raise ValueError(f'{len(table)} plans for {len(BANDWIDTHS)} bandwidths')
    rates = trace.rates * (EFFICIENCY * 1e6 / 8)
    different, sample = np.unique(rates, return_inverse=True)
    number = {plan: k for k, plan in enumerate(dict.fromkeys(table))}
    # latency and energy of every plan at every sample, shape (2, plans, samples)
    every = np.stack([estimates(graph, plan, costs, different, latency)
                      for plan in number], 1)[..., sample]
    if foresight:
        chosen = every[0].argmin(0)
    else:
        measured = np.concatenate([rates[:1], rates[:-1]])
        bins = np.searchsorted(BANDWIDTHS, measured, 'right') - 1
        chosen = np.array([number[plan] for plan in table])[bins]
    seconds, joules = every[:, chosen, np.arange(len(rates))]
    served = _one_after_the_other(trace, seconds)
    return Outcome(seconds[served], joules[served])


def _one_after_the_other(trace: LinkTrace, seconds: np.ndarray) -> np.ndarray:
    """Return, for each request, the sample of the trace in which the request starts.

    `seconds[i]`: duration in seconds of a request that starts in sample i.
    """
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise TraceError('a request takes no time, or never ends: the link fails in this trace')
    served, now, sample = [], 0.0, 0
    ends = np.append(trace.times[1:], trace.period).tolist()
    while now < trace.period:
        while ends[sample] <= now:
            sample += 1
        served.append(sample)
        now += float(seconds[sample])
    return np.array(served)
