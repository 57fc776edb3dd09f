"""Who gets which samples: a data set cut into one shard per robot.

Every sample is in exactly one shard, no shard is empty, and equal arguments give equal shards.
"""

import numpy as np
from numpy.typing import NDArray

from rog_tasks.errors import DataError

Indices = NDArray[np.int64]


def partition(labels: NDArray[np.int64], world: int, split: str = 'iid', seed: int = 0) \
        -> list[Indices]:
    """Cut the samples with these ``labels`` (n,) into ``world`` shards of sorted indices.

    :param split: ``iid``, shards of equal size (within one) of every kind; or
        ``dirichlet:ALPHA``, each class dealt out in proportions drawn from Dirichlet(ALPHA): the
        smaller ALPHA, the fewer classes a robot sees.
    :raises DataError: for an unknown split, or fewer samples than shards.
    """
    if not 1 <= world <= len(labels):
        raise DataError(f'{len(labels)} samples cannot be cut into {world} shards')
    rng = np.random.default_rng(seed)
    kind, _, argument = split.partition(':')
    if split == 'iid':
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), world)]
    if kind != 'dirichlet':
        raise DataError(f'no split is called {split!r}; there are iid and dirichlet:ALPHA')
    try:
        alpha = float(argument)
    except ValueError:
        alpha = float('nan')
    if not 1e-3 <= alpha <= 1e6:
        raise DataError(f'split {split!r}: ALPHA must be a number between 0.001 and 1000000')
    return _dirichlet(labels, world, alpha, rng)


def _dirichlet(labels: NDArray[np.int64], world: int, alpha: float, rng: np.random.Generator) \
        -> list[Indices]:
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(rng.dirichlet(np.full(world, alpha)))[:-1] * len(members)
        owner[members] = np.searchsorted(np.round(cuts), np.arange(len(members)), side='right')
    # A robot without data cannot train: it takes a sample from the one that has most.
    counts = np.bincount(owner, minlength=world)
    while counts.min() == 0:
        rich, poor = int(counts.argmax()), int(counts.argmin())
        owner[np.flatnonzero(owner == rich)[0]] = poor
        counts = np.bincount(owner, minlength=world)
    return [np.flatnonzero(owner == rank) for rank in range(world)]
