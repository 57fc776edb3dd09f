"""Synchronisation methods by name: what a worker is told of how it sends and how far it may go.

    bsp | asp | ssp:S | dssp:LOW:HIGH | flown[:LOW:HIGH] | rsp:T | rsp:auto[:LOW:HIGH]
    gsgm | gsgm:T                              white list and global momentum; T: rows, by ATP
    gc | hgc | gcc | dcgc | dgh-gc [:S[:K[:B]]]   coded gradients: any S of a group may straggle, K
                                               groups (0: as many as fit), regrouped every B rounds

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
    svrg      variance reduction (SVRG): after every 50 iterations, or N with ``svrg=N``, a full
              gradient, by which the stochastic ones are corrected
    feedback  part of the coded methods: what a lossy codec leaves out is kept for the next round

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
CODED = ('gc', 'hgc', 'gcc', 'dcgc', 'dgh-gc')
METHODS = ('bsp', 'ssp:S', 'asp', 'dssp:LOW:HIGH', 'flown', 'rsp:T', 'rsp:auto', 'gsgm', *CODED)
OPTIONS = {'bsp': ('svrg',), 'asp': ('svrg',),
           'ssp': ('early', 'order', 'timeout', 'minimum', 'svrg'),
           'rsp': ('early', 'order', 'timeout', 'minimum', 'second', 'pipeline', 'sparse'),
           'gsgm': ('early', 'order', 'timeout', 'minimum', 'svrg'),
           **dict.fromkeys(CODED, ('feedback',))}
EARLY = frozenset({'order', 'timeout', 'minimum'})  # what early transmission consists of
SECOND = ((5, .03), (10, .075), (20, .11), (40, .115))  # from this threshold on, share (facts.md)
FLOWN_RANGE = (2, 20)
AUTO_RANGE = (4, 40)
SVRG_PERIOD = 50
CODED_DEFAULTS = (1, 0, 50)  # stragglers per group, groups, rounds between regroupings


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

    ``family``: bsp, ssp, asp, dssp, flown, rsp, gsgm, or one of `CODED`. ``bound``: a worker at
    iteration n waits while n - slowest >= bound (iterations; inf: never). ``most``: the loosest
    bound that the method may come to allow; ``adapts``: the bound changes at run time (rsp:auto).
    ``options``: those in force. ``svrg``: iterations between two full gradients, 0: there are none.
    ``coding``: of a coded method, see `CODED_DEFAULTS`.
    """

    name: str
    family: str
    bound: float
    most: float
    options: frozenset[str] = frozenset()
    adapts: bool = False
    svrg: int = 0
    coding: tuple[int, int, int] = CODED_DEFAULTS

    @property
    def coded(self) -> bool:
        """Whether workers push coded gradients, which only count together."""
        return self.family in CODED

    @property
    def global_momentum(self) -> bool:
        """Whether momentum is the server's, and the workers have none."""
        return self.coded or self.family == 'gsgm'

    def is_full(self, iteration: int) -> bool:
        """Whether this iteration computes the full gradient of SVRG's outer loop."""
        return self.svrg > 0 and iteration > 0 and (iteration - 1) % (self.svrg + 1) == 0

    @property
    def by_row(self) -> bool:
        """Whether staleness counts for every row, instead of for a worker's iterations.

        Where all rows travel it is the same, but for rows left behind by a former method.
        """
        return self.family in ('rsp', 'gsgm') or not self.adaptive

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
        suffix = _suffix(self.family, self.options, _default(self.family))
        return replace(self, name=f'{self.family}:{bound}{suffix}', bound=bound, most=bound,
                       adapts=False)

    def __str__(self) -> str:
        return self.name


def _default(family: str) -> frozenset[str]:
    if family in CODED:
        return frozenset({'feedback'})
    return EARLY if family == 'rsp' else frozenset()


def _suffix(family: str, options: frozenset[str], default: frozenset[str], svrg: int = 0) -> str:
    """Write options as text, in the order of the list above."""
    on, off = options - default, default - options
    if on >= EARLY:
        on = (on - EARLY) | {'early'}
    if off >= EARLY:
        off = frozenset({'early'})
    known = OPTIONS.get(family, ())
    text = ''.join(sign + name for sign, names in (('+', on), ('-', off)) for name in known
                   if name in names)
    return text if svrg in (0, SVRG_PERIOD) else f'{text}={svrg}'  # svrg is the last of all


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


def _options(text: str, family: str, default: frozenset[str], written: str
             ) -> tuple[frozenset[str], int]:
    """Return the options in force and the period of svrg, 0 without it."""
    options, period = set(default), SVRG_PERIOD
    known = OPTIONS.get(family, ())
    for sign, name, number in re.findall(r'([+-])([a-z]*)(?:=(\w*))?', written):
        if name not in known:
            there = f'it has {", ".join(known)}' if known else 'it has none'
            raise ConfigError(f"'{text}': {family} has no option '{name}'; {there}")
        if number and name != 'svrg':
            raise ConfigError(f"'{text}': {name} takes no number")
        period = _whole(text, number, 1) if number else period
        names = EARLY if name == 'early' else {name}
        options = options | names if sign == '+' else options - names
    if 'svrg' in options and options & EARLY:
        raise ConfigError(f"'{text}': svrg needs all rows of every gradient, so it does not go "
                          'with early transmission')
    return frozenset(options), period if 'svrg' in options else 0


FAMILIES = ('bsp', 'asp', 'ssp', 'dssp', 'flown', 'rsp', 'gsgm', *CODED)
_FORM = re.compile(rf'({"|".join(FAMILIES)})((?::[^:+-]*|:-\w+)*)((?:[+-][a-z_]+(?:=\w*)?)*)')


@lru_cache
def parse_sync(text: str) -> SyncMethod:
    """Build the method that a string names. Raises `ConfigError` for anything else."""
    text = text.strip()
    match = _FORM.fullmatch(text)
    if match is None:
        raise ConfigError(f"synchronisation method '{text}' is unknown; choose one of "
                          f"{', '.join(METHODS)}, for example rsp:4")
    family, arguments = match[1], match[2].split(':')[1:]
    default = EARLY if family == 'gsgm' and arguments else _default(family)
    options, svrg = _options(text, family, default, match[3])
    if family == 'gsgm' and options & EARLY and not arguments:
        raise ConfigError(f"'{text}': early transmission needs the bound of a row's staleness, for "
                          'example gsgm:4')
    bound, most, adapts = _bounds(text, family, arguments)
    written = ':'.join([family, *arguments]) + _suffix(family, options, default, svrg)
    coding = _coding(text, arguments) if family in CODED else CODED_DEFAULTS
    return SyncMethod(written, family, bound, most, options, adapts, svrg, coding)


def _coding(text: str, arguments: list[str]) -> tuple[int, int, int]:
    """Stragglers per group, groups, and rounds between regroupings of a coded method."""
    if len(arguments) > len(CODED_DEFAULTS):
        raise ConfigError(f"'{text}' has more than the stragglers, groups and rounds, for example "
                          'dgh-gc:1:3:50')
    given = [_whole(text, a, low) for a, low in zip(arguments, (0, 0, 1), strict=False)]
    stragglers, groups, every = (*given, *CODED_DEFAULTS[len(given):])
    return stragglers, groups, every


def _bounds(text: str, family: str, arguments: list[str]) -> tuple[float, float, bool]:
    """Return the bound, the loosest bound, and whether the bound changes at run time."""
    if family in ('bsp', 'asp'):
        if arguments:
            raise ConfigError(f"'{text}': {family} takes no threshold")
        bound = 1 if family == 'bsp' else math.inf
        return bound, bound, False
    if family in CODED:
        return 1, 1, False
    if family == 'ssp':  # at most s iterations ahead; ssp:0 is bsp
        threshold = _one(text, arguments, 0)
        return threshold + 1, threshold + 1, False
    if family == 'dssp':
        low, high = _range(text, arguments, 0)
        return low + 1, high + 1, False
    if family == 'flown':
        low, high = _range(text, arguments, 0) if arguments else FLOWN_RANGE
        return low + 1, high + 1, False
    if family == 'gsgm' and not arguments:
        return 2, 2, False  # who is held back has pushed what the white list does not take yet
    if arguments[:1] == ['auto'] and family == 'rsp':
        low, high = _range(text, arguments[1:], 1) if arguments[1:] else AUTO_RANGE
        return low, high, True
    threshold = _one(text, arguments, 2 if family == 'gsgm' else 1)
    return threshold, threshold, False
