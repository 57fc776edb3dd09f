"""Policies by the name of their method."""

from __future__ import annotations

from collections.abc import Mapping

from .coded_rounds import CodedRounds
from .errors import ConfigError
from .policy import Auto, Dssp, Flown, Policy
from .sync import parse_sync
from .white_list import WhiteList

_POLICIES: dict[str, type[Policy]] = {'dssp': Dssp, 'flown': Flown, 'gsgm': WhiteList}


def policy_of(text: str, capacities: Mapping[str, float] | None = None, codec: str = 'raw'
              ) -> Policy:
    """Return a new policy for the method that ``text`` names; `ConfigError` if it names none.

    ``capacities``: robot -> computing capacity, of the whole fleet in order of rank; the coded
    methods need it, and refuse fleets that they cannot code for. ``codec``: name of the fleet's.
    """
    method = parse_sync(text)
    if method.svrg and codec != 'raw':
        raise ConfigError(f"'{text}' needs exact gradients, so codec raw; the fleet has '{codec}'")
    if method.coded:
        return CodedRounds(method, capacities or {})
    return Auto(method) if method.adapts else _POLICIES.get(method.family, Policy)(method)
