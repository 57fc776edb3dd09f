"""Messages by which client and server agree on the model and the plan table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..errors import RemoteError

PROTOCOL = 6  # version of the protocol; both sides must use the same version
REFUSED, READY, PREPARING, MISSING = 0, 1, 2, 3  # values of `status` in Open and SetPlans


@dataclass(frozen=True)
class OpenRequest:
    """Request of the service `Open`; fields as in lopinfer_msgs/Open."""

    protocol: int
    client: str
    incarnation: int
    model: str
    digest: str
    names: Sequence[str]
    hashes: Sequence[int]


@dataclass(frozen=True)
class PlansRequest:
    """Request of the service `SetPlans`; fields as in lopinfer_msgs/SetPlans."""

    client: str
    incarnation: int
    digest: str
    bins: bytes
    own: np.ndarray


@dataclass(frozen=True)
class OpenReply:
    """Answer of the service `Open`; fields as in lopinfer_msgs/Open."""

    status: int
    reason: str = ''
    incarnation: int = 0
    planned: bool = False
    fixed: np.ndarray = field(default_factory=lambda: np.empty(0))
    per_share: np.ndarray = field(default_factory=lambda: np.empty(0))


def number(fingerprint: bytes) -> int:
    """Return the first eight bytes of a fingerprint as the number that messages carry."""
    return int.from_bytes(fingerprint[:8], 'little')


def first_difference(names: Iterable[str], hashes: Iterable[int], other_names: Iterable[str],
                     other_hashes: Iterable[int]) -> str:
    """Return a text that names the first difference between the parameters of two models.

    Returns '' if the parameters are equal.
    """
    mine, theirs = list(zip(names, hashes, strict=True)), list(zip(other_names, other_hashes,
                                                                   strict=True))
    for (name, value), (other, its) in zip(mine, theirs, strict=False):
        if name != other:
            return f"parameter '{name}' is called '{other}' there"
        if value != its:
            return f"parameter '{name}' has other values or another shape"
    if len(mine) != len(theirs):
        longer = mine if len(mine) > len(theirs) else theirs
        return f"only one side has the parameter '{longer[min(len(mine), len(theirs))][0]}'"
    return ''


def encode_plans(own: list[np.ndarray]) -> tuple[list[int], np.ndarray]:
    """Encode the plans of a table for `PlansRequest`; encode equal plans only once.

    ``own``: the intervals of each plan, int64 of shape (2, nodes, 2). The messages call the
    position of a plan in this list its *bin*. Returns (bins, plans): ``bins[b]`` is the position
    of bin b's plan among the distinct plans, and ``plans`` is a flat int32 array of the distinct
    plans.
    """
    distinct: dict[bytes, int] = {}
    bins = [distinct.setdefault(o.tobytes(), len(distinct)) for o in own]
    flat = np.concatenate([np.frombuffer(key, np.int64) for key in distinct])
    return bins, flat.astype(np.int32)


def decode_plans(bins: Iterable[int], flat: np.ndarray, nodes: int) -> list[np.ndarray]:
    """Return the list of plans, one for each bin, that `encode_plans` has encoded.

    ``bins``, ``flat``: the result of `encode_plans`. ``nodes``: number of nodes of the graph.
    Raises RemoteError if the numbers are invalid.
    """
    positions, each = list(bins), 4 * nodes
    count = len(flat) // each
    if not positions or count * each != len(flat) or not count or max(positions) >= count \
            or count > len(positions):
        raise RemoteError(f'plan table of {len(flat)} numbers for {len(positions)} bins and '
                          f'{nodes} operators has the wrong size')
    plans = flat.astype(np.int64).reshape(count, 2, nodes, 2)
    return [plans[p] for p in positions]
