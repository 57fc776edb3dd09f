"""Data sets in their published file formats.

Every loader takes ``root``, the folder that holds the files (directly or in a folder below), and
returns an :class:`ImageData`. A loader checks the sizes and labels in a file before it uses them; a
DataError names the file, the fault and the remedy.
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rog_tasks.errors import DataError
from rog_tasks.image_data import ImageData

_Part = tuple[Tensor, Tensor]
_Bytes = NDArray[np.uint8]

_AGAIN = 'fetch it again'

_LARGEST = 2**31
"""Maximum bytes that are read of an IDX file; the largest file of MNIST has 47 million bytes."""


def mnist(root: str = 'data') -> ImageData:
    """Load MNIST (http://yann.lecun.com/exdb/mnist): grey images of 28x28, 10 classes.

    Read the four IDX files ``train-images-idx3-ubyte``, ``train-labels-idx1-ubyte`` and
    ``t10k-...``, each uncompressed or with the suffix ``.gz``.
    """
    return _idx_data(root, 'MNIST')


def fashion_mnist(root: str = 'data') -> ImageData:
    """Load Fashion-MNIST (https://github.com/zalandoresearch/fashion-mnist); see `mnist`."""
    return _idx_data(root, 'Fashion-MNIST')


def cifar10(root: str = 'data') -> ImageData:
    """Load the binary version of CIFAR-10: ``data_batch_1.bin`` to ``_5``, ``test_batch.bin``.

    A record is a label and 3x32x32 bytes (https://www.cs.toronto.edu/~kriz/cifar.html).
    """
    names = [*(f'data_batch_{number}.bin' for number in range(1, 6)), 'test_batch.bin']
    *train, test = (_records(_find(root, 'the binary version of CIFAR-10', name), 1)
                    for name in names)
    return _data([_cifar(np.concatenate(train), 1), _cifar(test, 1)], 10)


def cifar100(root: str = 'data') -> ImageData:
    """Load the binary version of CIFAR-100: ``train.bin`` and ``test.bin``.

    A record is a coarse label, a fine label and 3x32x32 bytes
    (https://www.cs.toronto.edu/~kriz/cifar.html). The pickled Python version is not supported.
    """
    files = [_find(root, 'the binary version of CIFAR-100', f'{part}.bin')
             for part in ('train', 'test')]
    return _data([_cifar(_records(file, 2), 2) for file in files], 100)


def fed_cifar100(root: str = 'data') -> ImageData:
    """Load Fed-CIFAR-100 (TensorFlow Federated): ``fed_cifar100_train.h5`` and ``..._test.h5``.

    Each file holds ``examples/<client>/image`` (n, 32, 32, 3) uint8 and ``label`` (n,).
    """
    try:
        import h5py
    except ImportError as error:
        raise DataError('Fed-CIFAR-100 is an HDF5 file; to read it: pip install h5py') from error
    parts: list[_Part] = []
    for part in ('train', 'test'):
        file = _find(root, 'Fed-CIFAR-100', f'fed_cifar100_{part}.h5')
        try:
            with h5py.File(file, 'r') as h5:
                clients = [h5['examples'][name] for name in sorted(h5['examples'])]
                images = np.concatenate([client['image'][()] for client in clients])
                labels = np.concatenate([client['label'][()] for client in clients])
        except (OSError, KeyError, ValueError) as error:
            raise DataError(f'{file} is not a Fed-CIFAR-100 file: {error}') from error
        parts.append((_pixels(images.transpose(0, 3, 1, 2)), _labels(labels)))
    return _data(parts, 100)


def _idx_data(root: str, what: str) -> ImageData:
    parts: list[_Part] = []
    for part in ('train', 't10k'):
        files = [_find(root, what, name, f'{name}.gz')
                 for name in (f'{part}-images-idx3-ubyte', f'{part}-labels-idx1-ubyte')]
        images, labels = _read_idx(files[0], 3), _read_idx(files[1], 1)
        if len(labels) != len(images):
            raise DataError(f'{files[1]} holds {len(labels)} labels and {files[0]} {len(images)} '
                            f'images; they belong to different data sets, {_AGAIN}')
        _in_range(labels, 10, files[1])
        parts.append((_pixels(images[:, None]), _labels(labels)))
    return _data(parts, 10)


def _read_idx(file: Path, rank: int) -> _Bytes:
    """Return the unsigned bytes of an IDX file with ``rank`` dimensions."""
    header = 4 + 4 * rank
    try:
        with gzip.open(file) if file.suffix == '.gz' else file.open('rb') as stream:
            head = stream.read(header)
            if len(head) != header or head[:4] != bytes((0, 0, 8, rank)):
                raise DataError(f'{file} does not begin like an IDX file of bytes with {rank} '
                                f'dimension{"s" * (rank > 1)}; {_AGAIN}')
            shape = np.frombuffer(head, '>u4', offset=4).tolist()
            size = math.prod(shape)
            # Read one byte more than the header says, to notice a file that is too long.
            body = stream.read(min(size, _LARGEST) + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f'{file} cannot be read: {error}; {_AGAIN}') from error
    if not size or len(body) != size:
        held = f'{len(body)} bytes' if len(body) <= size else 'more'
        raise DataError(f'{file} announces {"x".join(map(str, shape))} bytes and holds {held}; '
                        f'{_AGAIN}')
    return np.frombuffer(body, np.uint8).reshape(shape)


def _records(file: Path, labels: int) -> _Bytes:
    """Return the records of a binary CIFAR file, uint8 of shape (n, labels + 3072).

    Each record begins with ``labels`` label bytes, and 3072 bytes of pixels follow.
    """
    size = labels + 3072
    raw = np.fromfile(file, dtype=np.uint8)
    if not len(raw) or len(raw) % size:
        raise DataError(f'{file}: {len(raw)} bytes are not a whole number of {size}-byte records; '
                        f'{_AGAIN}')
    records = raw.reshape(-1, size)
    _in_range(records[:, labels - 1], 10 if labels == 1 else 100, file)
    return records


def _in_range(labels: _Bytes, classes: int, file: Path) -> None:
    if labels.max() >= classes:
        raise DataError(f'{file} holds the label {labels.max()}; there are 0 to {classes - 1}. Is '
                        'it the file of another data set?')


def _cifar(records: _Bytes, labels: int) -> _Part:
    return _pixels(records[:, labels:].reshape(-1, 3, 32, 32)), _labels(records[:, labels - 1])


def _find(root: str, what: str, *names: str) -> Path:
    """Return the file below ``root`` that has one of ``names``.

    If several of ``names`` exist, return the file whose name comes first in ``names``.

    :raises DataError: there is no such file, or two files have the same name.
    """
    for name in names:
        found = [path for path in sorted(Path(root).rglob(name)) if path.is_file()]
        if len(found) > 1:
            raise DataError(f'{name} is in {found[0].parent} and in {found[1].parent}; name the '
                            f'folder of {what} as root')
        if found:
            return found[0]
    raise DataError(f'{names[0]} is not in {Path(root).absolute()}; put {what} there or name its '
                    'folder as root')


def _data(parts: list[_Part], classes: int) -> ImageData:
    (train_images, train_labels), (test_images, test_labels) = parts
    return ImageData(train_images, train_labels, test_images, test_labels, classes)


def _pixels(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32) / 255.0)


def _labels(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))
