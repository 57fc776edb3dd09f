"""Synchronisation methods by name: what a worker is told of how it sends and how far it may go.

    bsp | asp | ssp:S | dssp:LOW:HIGH | flown[:LOW:HIGH] | rsp:T | rsp:auto[:LOW:HIGH]

and, after it, options with `+` or `-`, for example ``rsp:20+pipeline+sparse`` or ``rsp:4-order``:

    early     send the most important rows for as long as the fleet affords (ATP), instead of all;
              rsp has it, ssp may have it (its staleness then counts iterations, not rows)
    order     part of early: rows by importance, instead of in model order
    timeout   part of early: stop when the MTA time is over
    minimum   part of early: at least the MTA travels, and only it once the time is over
    pipeline  compute the next gradient while rows travel, within the staleness bound
    second    as in the authors' artifact: from T = 5 on a second share of the rows is mandatory
    sparse    rows go out in the ternary code when the fleet has no time for the minimum in the
              ordinary one

``bound`` is the number of iterations by which a worker may not yet be ahead of the slowest row of
the fleet if it is to go on. Methods whose bound changes while they run have a policy
(`rog_core.policy`); the workers are told plain names.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from functools import lru_cache

from .errors import ConfigError

MAX_THRESHOLD = 1000
METHODS = ('bsp', 'ssp:S', 'asp', 'dssp:LOW:HIGH', 'flown', 'rsp:T', 'rsp:auto')
OPTIONS = {'ssp': ('early', 'order', 'timeout', 'minimum'),
           'rsp': ('early', 'order', 'timeout', 'minimum', 'second', 'pipeline', 'sparse')}
EARLY = frozenset({'order', 'timeout', 'minimum'})  # what early transmission consists of
SECOND = ((5, .03), (10, .075), (20, .11), (40, .115))  # from this threshold on, share (facts.md)
FLOWN_RANGE = (2, 20)
AUTO_RANGE = (4, 40)


@lru_cache
def minimum_transmission(threshold: int) -> float:
    """Share P of the rows that every transfer must carry: the solution of (1-P)^(S-1) = P.

    With it, all rows have been sent before the staleness threshold S is reached.
    Source: ROG, Section IV-B and Table I. S = 1 gives 1, S = 2 gives 0.5.
    """
    if threshold < 1:
        raise ConfigError(f'the staleness threshold is {threshold}; it must be at least 1')
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if (1 - middle) ** (threshold - 1) > middle:
            low = middle
        else:
            high = middle
    return high


@dataclass(frozen=True)
class SyncMethod:
    """A synchronisation method, parsed.

    ``family``: bsp, ssp, asp, dssp, flown, rsp. ``bound``: a worker at iteration n waits while
    n - slowest >= bound (iterations; inf: never). ``most``: the loosest bound that the method may
    come to allow; ``adapts``: the bound changes at run time (rsp:auto). ``options``: those in
    force.
    """

    name: str
    family: str
    bound: float
    most: float
    options: frozenset[str] = frozenset()
    adapts: bool = False

    @property
    def by_row(self) -> bool:
        """Whether staleness counts for every row, instead of for a worker's iterations.

        Where all rows travel it is the same, but for rows left behind by a former method.
        """
        return self.family == 'rsp' or not self.adaptive

    @property
    def row_bound(self) -> float:
        """Bound that every row of a worker keeps if its pushes follow this method."""
        return self.bound if self.by_row else math.inf

    @property
    def adaptive(self) -> bool:
        """Whether rows go out by ATP; else all rows, always."""
        return bool(self.options & EARLY)

    @property
    def minimum(self) -> float:
        """Minimum transmission amount, share of the rows."""
        if not self.adaptive:
            return 1.0
        share = minimum_transmission(int(self.bound)) if 'minimum' in self.options else 0.0
        if 'second' in self.options:
            share += max((more for least, more in SECOND if self.bound >= least), default=0.0)
        return min(share, 1.0)

    def with_bound(self, bound: int) -> SyncMethod:
        """Return the plain method of this family and these options with another bound."""
        return replace(self, name=f'{self.family}:{bound}{_suffix(self.family, self.options)}',
                       bound=bound, most=bound, adapts=False)

    def __str__(self) -> str:
        return self.name


def _default(family: str) -> frozenset[str]:
    return EARLY if family == 'rsp' else frozenset()


def _suffix(family: str, options: frozenset[str]) -> str:
    """Write options as text, in the order of the list above."""
    on, off = options - _default(family), _default(family) - options
    if on >= EARLY:
        on = (on - EARLY) | {'early'}
    if off >= EARLY:
        off = frozenset({'early'})
    known = OPTIONS.get(family, ())
    return ''.join(sign + name for sign, names in (('+', on), ('-', off)) for name in known
                   if name in names)


def _whole(text: str, number: str, low: int) -> int:
    try:
        value = int(number)
    except ValueError:
        raise ConfigError(f"'{number}' in '{text}' is not a whole number") from None
    if not low <= value <= MAX_THRESHOLD:
        raise ConfigError(f"'{number}' in '{text}' must be {low} to {MAX_THRESHOLD}")
    return value


def _one(text: str, arguments: list[str], low: int) -> int:
    if len(arguments) != 1:
        family = text.partition(':')[0]
        raise ConfigError(f"'{text}': {family} needs one threshold, for example {family}:4")
    return _whole(text, arguments[0], low)


def _range(text: str, arguments: list[str], low: int) -> tuple[int, int]:
    if len(arguments) != 2:
        raise ConfigError(f"'{text}' needs a lowest and a highest threshold, for example dssp:3:15")
    first, last = (_whole(text, a, low) for a in arguments)
    if first > last:
        raise ConfigError(f"'{text}': the lowest threshold, {first}, is above the highest, {last}")
    return first, last


def _options(text: str, family: str, written: str) -> frozenset[str]:
    options = set(_default(family))
    known = OPTIONS.get(family, ())
    for sign, name in re.findall(r'([+-])([a-z]*)', written):
        if name not in known:
            there = f'it has {", ".join(known)}' if known else 'it has none'
            raise ConfigError(f"'{text}': {family} has no option '{name}'; {there}")
        names = EARLY if name == 'early' else {name}
        options = options | names if sign == '+' else options - names
    return frozenset(options)


def parse_sync(text: str) -> SyncMethod:
    """Build the method that a string names. Raises `ConfigError` for anything else."""
    text = text.strip()
    match = re.fullmatch(r'([a-z]+)((?::[^:+-]*|:-\w+)*)((?:[+-][a-z_]+)*)', text)
    family = match[1] if match else ''
    if match is None or family not in ('bsp', 'asp', 'ssp', 'dssp', 'flown', 'rsp'):
        raise ConfigError(f"synchronisation method '{text}' is unknown; choose one of "
                          f"{', '.join(METHODS)}, for example rsp:4")
    arguments = match[2].split(':')[1:]
    options = _options(text, family, match[3])
    bound, most, adapts = _bounds(text, family, arguments)
    written = ':'.join([family, *arguments]) + _suffix(family, options)
    return SyncMethod(written, family, bound, most, options, adapts)


def _bounds(text: str, family: str, arguments: list[str]) -> tuple[float, float, bool]:
    """Return the bound, the loosest bound, and whether the bound changes at run time."""
    if family in ('bsp', 'asp'):
        if arguments:
            raise ConfigError(f"'{text}': {family} takes no threshold")
        bound = 1 if family == 'bsp' else math.inf
        return bound, bound, False
    if family == 'ssp':  # at most s iterations ahead; ssp:0 is bsp
        threshold = _one(text, arguments, 0)
        return threshold + 1, threshold + 1, False
    if family == 'dssp':
        low, high = _range(text, arguments, 0)
        return low + 1, high + 1, False
    if family == 'flown':
        low, high = _range(text, arguments, 0) if arguments else FLOWN_RANGE
        return low + 1, high + 1, False
    if arguments[:1] == ['auto']:
        low, high = _range(text, arguments[1:], 1) if arguments[1:] else AUTO_RANGE
        return low, high, True
    threshold = _one(text, arguments, 1)
    return threshold, threshold, False
