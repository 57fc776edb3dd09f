"""Parses the text of a method: ``name:argument:argument+option-option=number``.

The name is one of `rog_core.methods.METHODS`, a name that a plug-in registers (`rog_core.plugins`),
or ``package.module:Class`` for a class of any installed package. `+` switches an option on. `-`
switches off an option that is on by default.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from ..errors import ConfigError

MAX_THRESHOLD = 1000
EARLY = frozenset({'order', 'timeout', 'minimum'})  # the option `early` means these three options
_NUMBER = r'(?:=(-?[\w.]*?(?:e-\d+)?)(?=[+-]|$))?'
_OPTION = re.compile(rf'([+-])([a-z]*){_NUMBER}')


@dataclass(frozen=True)
class MethodSpec:
    """The parsed text of a method; the method has not yet checked the arguments and options.

    ``name``: name of the method, or ``module:Class``. ``signs``: (sign, name, number) of each
    option, as the user wrote them.
    """

    text: str
    name: str
    arguments: tuple[str, ...]
    signs: tuple[tuple[str, str, str], ...]

    def integer(self, number: str, low: int) -> int:
        """Return an argument as an integer.

        Raises `ConfigError` if the argument is not a whole number from ``low`` to `MAX_THRESHOLD`.
        """
        try:
            value = int(number)
        except ValueError:
            raise ConfigError(f"'{number}' in '{self.text}' is not a whole number") from None
        if not low <= value <= MAX_THRESHOLD:
            raise ConfigError(f"'{number}' in '{self.text}' must be {low} to {MAX_THRESHOLD}")
        return value

    def threshold(self, low: int) -> int:
        """Return the single argument of a method, an integer of at least ``low``."""
        if len(self.arguments) != 1:
            raise ConfigError(f"'{self.text}': {self.name} needs one threshold, for example "
                              f'{self.name}:4')
        return self.integer(self.arguments[0], low)

    def range(self, arguments: Iterable[str], low: int) -> tuple[int, int]:
        """Return the lowest and the highest threshold from two arguments.

        Both are at least ``low``.
        """
        given = list(arguments)
        if len(given) != 2:
            raise ConfigError(f"'{self.text}' needs a lowest and a highest threshold, for example "
                              'dssp:3:15')
        first, last = (self.integer(a, low) for a in given)
        if first > last:
            raise ConfigError(f"'{self.text}': the lowest threshold, {first}, is above the "
                              f'highest, {last}')
        return first, last

    def real(self, number: str, low: float, high: float) -> float:
        """Return an option's value as a float; raise `ConfigError` unless low <= value <= high."""
        try:
            value = float(number)
        except ValueError:
            raise ConfigError(f"'{number}' in '{self.text}' is not a number") from None
        if not low <= value <= high:
            raise ConfigError(f"'{number}' in '{self.text}' must be {low:g} to {high:g}")
        return value

    def options(self, known: Collection[str], default: frozenset[str], numbered: Collection[str],
                real: Mapping[str, tuple[float, float]]
                ) -> tuple[frozenset[str], dict[str, float]]:
        """Return the options that are on, and the numbers given to them (``svrg=N``).

        ``known``: names of all options. ``default``: options that are on by default. ``numbered``:
        options whose value is a whole number. ``real``: maps each option whose value is a real
        number to the lowest and the highest number allowed.

        Raises `ConfigError` if the text has an invalid option.
        """
        names, numbers = set(default), {}
        for sign, name, number in self.signs:
            if name not in known:
                options = f'it has {", ".join(known)}' if known else 'it has none'
                raise ConfigError(f"'{self.text}': {self.name} has no option '{name}'; {options}")
            if number and name not in numbered and name not in real:
                raise ConfigError(f"'{self.text}': {name} takes no number")
            if sign == '-' and (name in numbered or name in real):
                raise ConfigError(f"'{self.text}': {name} has a number and cannot be switched off; "
                                  f'leave it out, or write +{name}=N')
            if name in numbers:
                raise ConfigError(f"'{self.text}': {name} is given twice")
            if number:
                numbers[name] = self.real(number, *real[name]) if name in real \
                    else self.integer(number, 1)
            group = EARLY if name == 'early' else {name}
            names = names | group if sign == '+' else names - group
        return frozenset(names), {name: n for name, n in numbers.items() if name in names}


def suffix(known: Iterable[str], options: frozenset[str], default: frozenset[str]) -> list[str]:
    """Return the options that differ from the default, with signs, in the order of ``known``."""
    on, off = options - default, default - options
    if on >= EARLY:
        on = (on - EARLY) | {'early'}
    if off >= EARLY:
        off = frozenset({'early'})
    return [sign + name for sign, names in (('+', on), ('-', off)) for name in known
            if name in names]


@lru_cache
def read(text: str, names: frozenset[str]) -> MethodSpec | None:
    """Parse the text of a method; return None if it is malformed.

    ``names``: the known names of methods. Any other name must have the form
    ``package.module:Class``.
    """
    text = text.strip()
    # A name may contain a hyphen, as dgh-gc does, so the longest names are tried first.
    own = '|'.join(map(re.escape, sorted(names, key=len, reverse=True)))
    rest = rf'((?::[^:+-]*|:-\w+)*)((?:[+-][a-z_]+{_NUMBER})*)'
    match = re.fullmatch(rf'({own}){rest}', text) \
        or re.fullmatch(rf'((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*:[A-Za-z_]\w*){rest}', text)
    if match is None:
        return None
    return MethodSpec(text, match[1], tuple(match[2].split(':')[1:]),
                   tuple(_OPTION.findall(match[3])))
