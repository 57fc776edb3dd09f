"""Replay a recording to a policy and its `PolicyMachine`, with the times of the recording.

The result is reproducible. Only the robot computes. Each answer arrives ``latency``
seconds after its request in recorded time, however long the computation really takes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .contract import Contract
from .core.chunks import Actions
from .core.config import CoreSettings
from .core.machine import ACT, STARVED, PolicyMachine
from .core.places import ROBOT
from .errors import DataFault
from .observer import Observer, batch_of
from .policy import Policy, chunk_of, inputs_of
from .sources import Event

# Tolerance in seconds for rounding errors: a message that has the time of a tick is processed
# before this tick.
ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class Replayed:
    """The executed actions (n, d), their times (n,) and their ages (n,).

    Times are in seconds after the first message; ages are in seconds. ``starved``: number of ticks
    without an action. ``reason``: reason for the safe state at the end; empty if the robot is in
    another state.
    """

    times: np.ndarray
    actions: Actions
    ages: np.ndarray
    starved: int
    reason: str


def replay(contract: Contract, policy: Policy, events: Iterable[Event], latency: float = 0.1,
           settings: CoreSettings | None = None) -> Replayed:
    """Pass events to a policy; return the actions executed at the contract's rate.

    A gap in the recording costs no time: its ticks, in which the robot only stands, are skipped.

    :raises DataFault: a message does not fit the contract, or an observation is missing.
    """
    machine = PolicyMachine(contract.rate, contract.size, (ROBOT,), settings)
    machine.places[ROBOT].measured(latency)
    model = policy.model()
    observer = Observer(contract, 0.0, float('inf'))
    times: list[float] = []
    rows: list[Any] = []
    ages: list[float] = []
    due: list[tuple[float, int, Actions]] = []
    start: float | None = None
    tick = starved = 0
    longest = max(entry.limit for entry in contract.observations.values())

    def tick_at(now: float) -> None:
        while due and due[0][0] <= now:
            at, request, actions = due.pop(0)
            machine.on_answer(request, actions, at)
        for name, flaw in observer.flaws(now).items():
            machine.sensor(name, flaw)
        if np.isfinite(observer.observed):
            machine.on_observation(observer.observed)
        command, asked = machine.on_tick(now)
        if command.kind == ACT and command.values is not None:
            times.append(now)
            rows.append(command.values)
            ages.append(command.age)
        for infer in asked:
            batch = batch_of(contract, observer.newest())
            inputs = inputs_of(policy, batch, infer.prefix, contract.size)
            with torch.no_grad():
                due.append((now + latency, infer.request, chunk_of(policy, model(*inputs))))

    last = 0.0   # time of the last message
    for seconds, name, message in events:
        start = seconds if start is None else start
        while tick / contract.rate < seconds - start - ROUNDING:
            tick_at(tick / contract.rate)
            tick += 1
            # In a gap, once each topic has stopped and no action is left, nothing changes until
            # the next message: skip these ticks.
            if not due and machine.command.kind != ACT and not machine.left \
                    and tick / contract.rate > last + longest:
                behind = max(tick, math.ceil((seconds - start - ROUNDING) * contract.rate) - 1)
                starved += (behind - tick) * (machine.state == STARVED)
                tick = behind
        last = seconds - start
        observer.take(name, message, last)
    tick_at(tick / contract.rate)
    if observer.missing:
        raise DataFault(observer.missing)
    return Replayed(np.array(times), np.array(rows).reshape(len(rows), contract.size),
                    np.array(ages), machine.counts['starved'] + starved, machine.reason)
