"""The time of every operator of a model on one machine, in a file that machines can exchange.

An operator takes `fixed + per_share * share` seconds to compute a share of its indices (more than
0, at most 1). Nearly all time of a small kernel is `fixed`: half of its indices take as long as all
of them.

A profile file is one JSON object:

    format      "lopinfer-profile"
    version     1
    digest      graph.Graph.digest of the model, 64 hex digits
    model       name of the model, for people
    machine     name of the machine on which it was measured, for people
    torch       version of PyTorch, or "" if unknown
    names       one operator name per node of the graph
    fixed       one number >= 0 per node, seconds
    per_share   one number >= 0 per node, seconds
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fleet_env.durable import write_text
from fleet_env.errors import why_unread

from ..errors import ProfileError
from ..model.graph import Graph

FORMAT, VERSION = 'lopinfer-profile', 1
_TEXTS = ('digest', 'model', 'machine', 'torch')


@dataclass(frozen=True, eq=False)
class Profile:
    """The costs of the operators of one graph on one machine.

    :param digest: `Graph.digest` of the graph to which the profile belongs.
    :param model: name of the model.
    :param machine: name of the machine on which the profile was measured.
    :param torch: version of PyTorch, '' if unknown.
    :param names: one name per node.
    :param fixed: (nodes,) float64, seconds that an operator takes for any share of its indices.
    :param per_share: (nodes,) float64, seconds that all of its indices take in addition to
        `fixed`.
    :raises ProfileError: a cost is missing, negative or not finite.
    """

    digest: str
    model: str
    machine: str
    torch: str
    names: tuple[str, ...]
    fixed: np.ndarray
    per_share: np.ndarray

    def __post_init__(self) -> None:
        for field in ('fixed', 'per_share'):
            costs = np.array(getattr(self, field), np.float64)
            if costs.shape != (len(self.names),):
                raise ProfileError(f'{field}: must have one cost for each of {len(self.names)} '
                                   f'names, got shape {costs.shape}')
            bad = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))
            if len(bad):
                raise ProfileError(f'{field}: a cost must be finite and at least 0, got '
                                   f'{costs[bad[0]]} s for operator {self.names[bad[0]]}')
            costs.setflags(write=False)
            object.__setattr__(self, field, costs)

    @property
    def whole(self) -> np.ndarray:
        """Return the seconds that each operator takes for all of its indices, shape (nodes,)."""
        return self.fixed + self.per_share

    def check(self, graph: Graph) -> None:
        """Raise ProfileError unless this is a profile of `graph`."""
        if self.digest != graph.digest:
            raise ProfileError(f'the profile of {self.model} ({self.machine}, {len(self.names)} '
                               f'nodes) does not belong to {graph.name} ({len(graph)} nodes): '
                               f'their digests differ; profile this model again')

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of a profile file."""
        return {'format': FORMAT, 'version': VERSION,
                **{field: getattr(self, field) for field in _TEXTS},
                'names': list(self.names), 'fixed': self.fixed.tolist(),
                'per_share': self.per_share.tolist()}

    @classmethod
    def from_json(cls, state: Any) -> Profile:
        """Return the profile from an object that `as_json` made.

        Raise ProfileError if the object is invalid.
        """
        try:
            return cls(**_checked(state))
        except OverflowError as error:
            raise ProfileError(str(error)) from error

    def save(self, path: str | Path) -> None:
        """Write a profile file."""
        write_text(path, json.dumps(self.as_json(), indent=1) + '\n')

    @classmethod
    def load(cls, path: str | Path) -> Profile:
        """Read and check a profile file.

        :raises ProfileError: the file is invalid; the message names the file and the field, and
            says what to do.
        """
        try:
            state = json.loads(Path(path).read_text(encoding='utf-8'))
        except (OSError, ValueError, RecursionError) as error:
            raise ProfileError(f'{path}: cannot be read: {why_unread(error, path)}; write one with '
                               '`lopinfer profile`') from error
        try:
            return cls.from_json(state)
        except ProfileError as error:
            raise ProfileError(f'{path}: {error}') from error


def _checked(state: Any) -> dict[str, Any]:
    """Check the types of parsed JSON, and return the arguments of the constructor."""
    if not isinstance(state, dict) or state.get('format') != FORMAT:
        raise ProfileError(f'format: must be {FORMAT}; write a profile with `lopinfer profile`')
    if state.get('version') != VERSION:
        raise ProfileError(f'version: {state.get("version")}, this program reads {VERSION}; '
                           f'profile again')
    found: dict[str, Any] = {}
    for field in _TEXTS:
        found[field] = state.get(field)
        if not isinstance(found[field], str):
            raise ProfileError(f'{field}: must be a text; profile again')
    for field, type_, what in (('names', str, 'texts'), ('fixed', (int, float), 'numbers'),
                               ('per_share', (int, float), 'numbers')):
        values = state.get(field)
        if not isinstance(values, list) \
                or not all(isinstance(v, type_) and not isinstance(v, bool) for v in values):
            raise ProfileError(f'{field}: must be a list of {what}; profile again')
        found[field] = values
    found['names'] = tuple(found['names'])
    return found


def fit(shares: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fit `fixed + per_share * share` by least squares for all nodes at once.

    Both results are at least 0.

    :param shares: (samples, 1) or (samples, nodes), shares of the nodes' indices, above 0.
    :param seconds: (samples, nodes), measured seconds, finite and at least 0.
    :returns: fixed and per_share, (nodes,) float64 each, in seconds. If a node is measured
        at only one share, all of its time is fixed, because nothing shows that a smaller
        share is faster.
    :raises ValueError: shapes are wrong, there are no samples, or values are out of range.
    """
    t = np.asarray(seconds, np.float64)
    s = np.asarray(shares, np.float64)
    if t.ndim != 2 or not len(t) or s.shape not in (t.shape, (len(t), 1)):
        raise ValueError(f'shares {s.shape} and seconds {t.shape} must be (samples, 1 or nodes) '
                         f'and (samples, nodes)')
    if not (np.isfinite(s).all() and np.isfinite(t).all() and (s > 0).all() and (t >= 0).all()):
        raise ValueError('shares must be above 0, seconds at least 0, all finite')
    s = np.broadcast_to(s, t.shape)
    mean_s, mean_t = s.mean(0), t.mean(0)
    spread = ((s - mean_s) ** 2).sum(0)
    slope = ((s - mean_s) * (t - mean_t)).sum(0) / np.where(spread > 0, spread, 1)
    slope = np.maximum(np.where(spread > 0, slope, 0.0), 0.0)   # more work never takes less time
    through_zero = (s * t).sum(0) / (s * s).sum(0)
    below = mean_t - slope * mean_s < 0
    slope = np.where(below, through_zero, slope)
    return np.where(below, 0.0, mean_t - slope * mean_s), slope
