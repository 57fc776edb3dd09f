"""Generates link traces whose statistics match the published statistics of real links.

A trace is a rank transform (Gaussian copula) of the sum of two processes. The slow process stands
for the position of the robot, for example behind a tree. The fast process stands for multipath and
rate adaptation; it is weaker where the slow process is low. Both are synthesised from their power
spectrum with random phases, so the end of the trace joins its start without a jump. Ranks are
mapped through the quantiles of a recorded link, so for every seed the rates have the recorded
distribution.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from fleet_env.errors import TraceError
from fleet_env.links.trace import MOST_SAMPLES, LinkTrace

SEED = 0
STEP = 0.1
DURATION = 600.0

_SHARES = (0, .01, .05, .10, .25, .31, .38, .50, .60, .75, .90, .95, .99, 1)


@dataclass(frozen=True)
class LinkProfile:
    """Statistics of a link. Its trace is made from a slow and a fast random process.

    :param mean: mean rate in Mbit/s; the quantiles are scaled to give exactly this mean.
    :param quantiles: rates in Mbit/s. The shares 0, .01, .05, .1, .25, .31, .38, .5, .6,
        .75, .9, .95, .99 and 1 of the samples are below the respective rate.
    :param slow_share: share of the variance that the slow process contributes, 0 to 1.
    :param slow_time, fast_time: time constants of the two processes in seconds.
    :param calm: strength of the fast process where the link is worst, divided by its
        strength where the link is best.
    """

    mean: float
    quantiles: tuple[float, ...]
    slow_share: float
    slow_time: float
    fast_time: float
    calm: float


_OUTDOOR = (0, 0, .82, 2.06, 4.25, 4.94, 9.71, 43.0, 90.8, 133.3, 189.0, 212.7, 256.6, 355.7)

# The quantiles come from LOPInfer's indoor record and ROG's outdoor record (facts.md,
# Links). The mean of the indoor record is 85 Mbit/s, and the published mean is 93. The
# mean chosen here is 91, which is within 10 % of both.
# The time constants of `indoor` and `outdoor` are fitted to two published properties.
# First, the rate changes by 20 % every .4 s and by 40 % every 1.2 s. Second, the
# autocorrelation at .5 s and at 10 s is .78 and .58 indoors, and .93 and .90 outdoors.
# Outdoors the autocorrelation falls slowly, and the rate is below 10 Mbit/s for 38 % of
# the time. So a fade of `outdoor` lasts one or two minutes.
# The time constants of `outdoor_fades` are fitted to ROG's outdoor record. In this record
# the autocorrelation at 10 s is .11, and a fade lasts 4.9 s on average and at most 25 s.
PROFILES: dict[str, LinkProfile] = {
    'indoor': LinkProfile(
        mean=91.0, quantiles=(6.4, 7.5, 12.0, 17.1, 61.7, 67.3, 73.4, 83.7, 92.0, 106.8, 135.0,
                              168.0, 231.5, 242.6),
        slow_share=.567, slow_time=11.88, fast_time=.1018, calm=.021),
    'outdoor': LinkProfile(
        mean=73.3, quantiles=_OUTDOOR,
        slow_share=.9846, slow_time=211.2, fast_time=.0492, calm=.493),
    'outdoor_fades': LinkProfile(
        mean=73.3, quantiles=_OUTDOOR,
        slow_share=.7145, slow_time=3.196, fast_time=1.07, calm=.491),
    # An edge network whose rate varies between 3 and 5 MB/s (DGH-GC, Section 6.1).
    'edge': LinkProfile(
        mean=32.0, quantiles=tuple(24 + 16 * share for share in _SHARES),
        slow_share=.9, slow_time=10.0, fast_time=.1, calm=1.0),
    # A cable, for runs in which the link must not matter.
    'steady': LinkProfile(
        mean=100.0, quantiles=(100.0,) * len(_SHARES),
        slow_share=.9, slow_time=10.0, fast_time=.1, calm=1.0),
}


def generate(profile: str | LinkProfile, seed: int = SEED, duration: float = DURATION,
             step: float = STEP) -> LinkTrace:
    """Generate a trace of ``duration`` seconds in steps of ``step`` seconds.

    :param profile: a key of :data:`PROFILES`, or a profile.
    :raises TraceError: the name is unknown, the seed is negative, or the duration has fewer than
        100 steps or more than `MOST_SAMPLES`.
    """
    if isinstance(profile, str):
        if profile not in PROFILES:
            raise TraceError(f'no built-in trace {profile!r}; there are {", ".join(PROFILES)}')
        profile = PROFILES[profile]
    if not (step > 0 and duration >= 100 * step):
        raise TraceError(f'duration {duration} s must be at least 100 steps of {step} s')
    if seed < 0:
        raise TraceError(f'seed is {seed}; it must be at least 0')
    if duration / step > MOST_SAMPLES:
        raise TraceError(f'duration {duration:g} s is more than {MOST_SAMPLES} steps of {step:g} s')
    n = round(duration / step)
    rng = np.random.default_rng(seed)
    place = _shares(_process(rng, n, step, profile.slow_time))
    normal = NormalDist()
    slow = np.array([normal.inv_cdf(share) for share in place.tolist()])
    fast = _process(rng, n, step, profile.fast_time)
    strength = profile.calm + (1 - profile.calm) * place
    mixed = np.sqrt(profile.slow_share) * slow \
        + np.sqrt(1 - profile.slow_share) * strength * fast
    rates = np.interp(_shares(mixed), _SHARES, profile.quantiles)
    return LinkTrace(np.arange(n) * step, rates * (profile.mean / rates.mean()), n * step)


def _process(rng: np.random.Generator, n: int, step: float, time: float) -> np.ndarray:
    """Return a periodic Gaussian process (n,) of mean 0 and variance 1.

    :param time: time constant of the autocorrelation in seconds.
    """
    frequency = np.fft.rfftfreq(n, step)
    amplitude = 1 / (1 + (2 * np.pi * frequency * time) ** 2)
    amplitude[0] = 0
    values = np.fft.irfft(amplitude * np.exp(2j * np.pi * rng.random(len(frequency))), n)
    return values / values.std()


def _shares(values: np.ndarray) -> np.ndarray:
    """Return, for each element of ``values`` (n,), the share of smaller elements.

    Each share is greater than 0 and less than 1.
    """
    ranks = np.empty(len(values))
    ranks[np.argsort(values, kind='stable')] = np.arange(len(values))
    return (ranks + 0.5) / len(values)
