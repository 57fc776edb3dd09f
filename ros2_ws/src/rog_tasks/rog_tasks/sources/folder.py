"""Images of a folder or an archive as a source."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rog_tasks.batches import Batch
from rog_tasks.errors import DataError, some
from rog_tasks.shards import partition
from rog_tasks.sources.files import Files
from rog_tasks.sources.frames import UNKNOWN
from rog_tasks.sources.source import Report, Source


class FolderSource(Source):
    """The images below a path, divided among the robots.

    If the path contains ``{rank}``, each robot has a path of its own.
    """

    _files: Files | None = None
    _unreadable = 0
    _trouble = ''

    def batches(self, rank: int, world: int, count: int) -> Iterator[Batch]:
        """Return endless batches; each pass over the images has a new order.

        If an image cannot be read, its batch is smaller.
        """
        return _Batches(self, self._share(rank, world), count, self._generator(rank))

    def shard(self, rank: int, world: int, count: int) -> Iterator[Batch]:
        """Yield the batches of the robot's share once, in the order of the share."""
        share = self._share(rank, world)
        for start in range(0, len(share), count):
            batch = self.read(share[start:start + count])
            if batch is not None:
                yield batch

    def sample(self, most: int) -> Batch:
        """Return at most ``most`` images of the folder; every call returns the same images.

        :raises DataError: one of these images cannot be read.
        """
        batch = self.read(self._generator(0).permutation(self._share(0, 1))[:most])
        if batch is None or self._unreadable:
            raise DataError(f'{self._spec.target} must be whole: {self._trouble}')
        return batch

    def __len__(self) -> int:
        """Return the number of images; 0 before the folder is opened."""
        return len(self._names) if self._files else 0

    def report(self) -> Report:
        """Return how many times an image could not be read, and the last fault."""
        name = f'images in {self._spec.target}'
        values = {'images': len(self), 'unreadable': self._unreadable, **self._label_values()}
        if self._unreadable:
            return Report(name, 'warn', f'{self._unreadable} times an image could not be used; '
                                        f'last {self._trouble}', values)
        return Report(name, 'ok', 'no image was refused', values)

    def read(self, chosen: NDArray[np.int64]) -> Batch | None:
        """Return the batch of images with the numbers ``chosen``; None if no image can be read."""
        pixels, labels = [], []
        for index in chosen.tolist():
            found, error = self._pixels(self._names[index])
            if found is None:
                self._unreadable += 1
                self._trouble = error
            else:
                pixels.append(found)
                labels.append(self._labels[index])
        return self._batch(np.stack(pixels), np.array(labels)) if pixels else None

    def _pixels(self, name: str) -> tuple[NDArray[np.uint8] | None, str]:
        assert self._files is not None
        try:
            return self._decode(self._files.read(name))
        except DataError as error:
            return None, str(error)

    @property
    def trouble(self) -> str:
        """The last image that could not be read, and why."""
        return self._trouble

    def _share(self, rank: int, world: int) -> NDArray[np.int64]:
        path = self._spec.target
        own = '{rank}' in path
        self._open(path.replace('{rank}', str(rank)), own)
        assert self._files is not None
        share = np.arange(len(self._names)) if own else partition(
            self._labels, world, self._spec.split, self._wanted.seed)[rank]
        if not len(share):
            raise DataError(f'{path}: {len(self._names)} images leave none for robot {rank} of '
                            f'{world}; take fewer robots or another split')
        self._files.hold([self._names[index] for index in share])
        return share

    def _open(self, path: str, own: bool) -> None:
        if self._files is not None and str(self._files.path) == path:
            return
        files = Files(path, self._spec.memory * 2**20)
        names, classes = files.names, list(self._wanted.classes)
        if self._label_spec.kind == 'folder':
            numbers = {name: number for number, name in enumerate(classes)}
            there = {files.class_of(name) for name in names}
            missing = [name for name in classes if name not in there]
            if len(missing) == len(classes) or (missing and not own):
                raise DataError(f'{path} has no images of {some(missing)}; its folders are '
                                f'{some(sorted(there))}')
            names = [name for name in names if files.class_of(name) in numbers]
            labels = [numbers[files.class_of(name)] for name in names]
        else:
            labels = [UNKNOWN] * len(names)
        self._open_labels()
        self._files, self._names, self._labels = files, names, np.array(labels, np.int64)


class _Batches(Iterator[Batch]):
    """Endless batches of one share; batch n is the same even if earlier batches were skipped."""

    def __init__(self, source: FolderSource, share: NDArray[np.int64], count: int,
                 generator: np.random.Generator) -> None:
        self._source, self._share, self._count = source, share, count
        self._generator = generator
        self._waiting = share[:0]

    def __next__(self) -> Batch:
        for _ in range(-(-len(self._share) // self._count) + 1):
            batch = self._source.read(self._choose())
            if batch is not None:
                return batch
        raise DataError(f'none of {len(self._share)} images can be used; last '
                        f'{self._source.trouble}')

    def skip(self, count: int) -> None:
        """Skip ``count`` batches without reading their images."""
        for _ in range(count):
            self._choose()

    def _choose(self) -> NDArray[np.int64]:
        while len(self._waiting) < self._count:
            order = self._generator.permutation(self._share)
            self._waiting = np.concatenate((self._waiting, order))
        chosen, self._waiting = self._waiting[:self._count], self._waiting[self._count:]
        return chosen
