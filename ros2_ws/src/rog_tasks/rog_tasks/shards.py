"""Divides a data set into one shard per robot.

Every sample is in exactly one shard, no shard is empty, and equal arguments give equal shards.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from rog_tasks.errors import DataError
from rog_tasks.image_data import as_float

Indices = NDArray[np.int64]

_CELLS = 8
"""Images are averaged to this many cells per side before their main direction is computed."""


def partition(labels: NDArray[np.int64], world: int, split: str = 'iid', seed: int = 0,
              images: Tensor | None = None) -> list[Indices]:
    """Cut the samples with these ``labels`` (n,) into ``world`` shards of sorted indices.

    :param split: the rule. The sizes of two shards differ by at most 1, except with ``dirichlet``.

        - ``iid``: at random.
        - ``sorted``: in the order of the labels, so that a robot sees one or a few classes; samples
          of one label stay in the order of the data (pathological partition of GSGM, Section V).
        - ``place`` or ``place:SPREAD``: each robot gets similar images, as if it saw only one
          place. The images are sorted by a smooth feature, their first principal component, plus
          noise. SPREAD, by default 0, is the standard deviation of the noise, relative to the
          standard deviation of the feature.
        - ``dirichlet:ALPHA``: each class is divided in proportions drawn from Dirichlet(ALPHA): the
          smaller ALPHA, the fewer classes a robot sees.
    :param images: (images, channels, height, width); only ``place`` needs them.
    :raises DataError: the split is unknown, or there are fewer samples than shards.
    """
    if not 1 <= world <= len(labels):
        raise DataError(f'{len(labels)} samples cannot be cut into {world} shards')
    rng = np.random.default_rng(seed)
    kind, colon, argument = split.partition(':')
    if split == 'iid':
        return _equal(rng.permutation(len(labels)), world)
    if split == 'sorted':
        return _equal(np.argsort(labels, kind='stable'), world)
    if split == 'place' or (kind == 'place' and colon):
        if images is None:
            raise DataError(f'split {split!r} needs images')
        spread = _number(split, 'SPREAD', argument, 0, 1e6) if colon else 0.0
        feature = _main_direction(images) + spread * rng.standard_normal(len(labels))
        return _equal(np.argsort(feature, kind='stable'), world)
    if kind == 'dirichlet':
        return _dirichlet(labels, world, _number(split, 'ALPHA', argument, 1e-3, 1e6), rng)
    raise DataError('split must be iid, sorted, place, place:SPREAD or dirichlet:ALPHA, got '
                    f'{split!r}')


def require_labels(shards: list[Indices], labels: NDArray[np.int64], classes: int) -> None:
    """Check that every robot has samples and that every class is in at least one shard.

    :param shards: indices into ``labels`` (n,), one array per robot.
    :raises DataError: a robot has no samples, or a label is in no shard. The message names
        the robots or labels.
    """
    empty = [str(rank) for rank, shard in enumerate(shards) if not len(shard)]
    if empty:
        raise DataError(f'no samples for robot {", ".join(empty)} of {len(shards)}; a robot '
                        'without data cannot train: take fewer robots or another split')
    seen = np.bincount(labels[np.concatenate(shards)], minlength=classes)
    missing = np.flatnonzero(seen == 0).tolist()
    if missing:
        some = ', '.join(map(str, missing[:10])) + (', ...' if len(missing) > 10 else '')
        raise DataError(f'no robot has a sample of {len(missing)} of the {classes} classes, label '
                        f'{some}; none could learn them: add training samples of them or leave '
                        'the classes out')


def _equal(order: Indices, world: int) -> list[Indices]:
    return [np.sort(part) for part in np.array_split(order, world)]


def _number(split: str, name: str, text: str, low: float, high: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float('nan')
    if not low <= value <= high:
        raise DataError(f'split {split!r}: {name} must be a number between {low:g} and {high:g}')
    return value


def _main_direction(images: Tensor) -> NDArray[np.float64]:
    """Return the first principal component of each image, (n,), with standard deviation 1.

    The component is computed from images that are averaged to a few cells. So it depends on where
    an image is light or dark, and not on details.
    """
    cells = torch.cat([adaptive_avg_pool2d(as_float(part), _CELLS) for part in images.split(4096)]
                      ).flatten(1).double().numpy()
    centred = cells - cells.mean(0)
    direction = np.linalg.eigh(centred.T @ centred)[1][:, -1]
    # Make the largest component positive, because the sign of an eigenvector is arbitrary.
    direction *= np.sign(direction[np.abs(direction).argmax()])
    feature: NDArray[np.float64] = centred @ direction
    return feature / (feature.std() or 1.0)


def _dirichlet(labels: NDArray[np.int64], world: int, alpha: float, rng: np.random.Generator) \
        -> list[Indices]:
    owner = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        cuts = np.cumsum(rng.dirichlet(np.full(world, alpha)))[:-1] * len(members)
        owner[members] = np.searchsorted(np.round(cuts), np.arange(len(members)), side='right')
    # A robot without data cannot train, so it gets one sample of the robot with the most samples.
    counts = np.bincount(owner, minlength=world)
    while counts.min() == 0:
        rich, poor = int(counts.argmax()), int(counts.argmin())
        owner[np.flatnonzero(owner == rich)[0]] = poor
        counts = np.bincount(owner, minlength=world)
    return [np.flatnonzero(owner == rank) for rank in range(world)]
