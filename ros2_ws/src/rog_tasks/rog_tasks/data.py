"""Labelled images to train on, from what is on the machine; nothing is downloaded.

A loader is a function that returns :class:`ImageData`; a task names one of :data:`LOADERS`, or any
other as ``package.module:function``.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rog_tasks.errors import DataError

_Part = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class ImageData:
    """A data set, cut into what is trained on and what is tested on.

    Images are (n, C, H, W) float32, 0 to 1; labels are (n,) int64, 0 to classes - 1.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int

    def __post_init__(self) -> None:
        for part in ('train', 'test'):
            images, labels = getattr(self, f'{part}_images'), getattr(self, f'{part}_labels')
            if images.ndim != 4 or labels.shape != (len(images),) or not len(images):
                raise DataError(f'{part} images {tuple(images.shape)} and labels '
                                f'{tuple(labels.shape)} must be (n, C, H, W) and (n,), n > 0')
            if images.dtype != torch.float32 or labels.dtype != torch.int64:
                raise DataError(f'{part} images and labels are {images.dtype}, {labels.dtype}; '
                                'they must be float32 and int64')
            if not (int(labels.min()) >= 0 and int(labels.max()) < self.classes):
                raise DataError(f'{part} labels must lie between 0 and {self.classes - 1}')


def digits(seed: int = 0) -> ImageData:
    """scikit-learn's handwritten digits: 1797 real images of 8x8, a fifth of them for testing.

    The split is stratified and follows ``seed``.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    bunch = load_digits()
    images = (bunch.images / 16.0).astype(np.float32)[:, None]
    split = train_test_split(images, bunch.target.astype(np.int64), test_size=0.2,
                             stratify=bunch.target, random_state=seed % 2**32)
    train, test, train_labels, test_labels = (torch.from_numpy(part) for part in split)
    return ImageData(train, train_labels, test, test_labels, 10)


def cifar100(root: str = 'data') -> ImageData:
    """CIFAR-100, the binary version: ``train.bin`` and ``test.bin`` in ``root`` or below it.

    A record is a coarse label, a fine label and 3x32x32 bytes
    (https://www.cs.toronto.edu/~kriz/cifar.html). The pickled Python version is not read.
    """
    parts: list[_Part] = []
    for part in ('train', 'test'):
        file = _find(root, f'{part}.bin', 'the binary version of CIFAR-100')
        raw = np.fromfile(file, dtype=np.uint8)
        if not len(raw) or len(raw) % 3074:
            raise DataError(f'{file}: {len(raw)} bytes are no whole number of 3074-byte records')
        records = raw.reshape(-1, 3074)
        parts.append((_pixels(records[:, 2:].reshape(-1, 3, 32, 32)), _labels(records[:, 1])))
    return _data(parts, 100)


def fed_cifar100(root: str = 'data') -> ImageData:
    """Fed-CIFAR-100 (TensorFlow Federated): ``fed_cifar100_train.h5`` and ``..._test.h5``.

    Each holds ``examples/<client>/image`` (n, 32, 32, 3) uint8 and ``label`` (n,).
    """
    try:
        import h5py
    except ImportError as error:
        raise DataError('Fed-CIFAR-100 is an HDF5 file; to read it: pip install h5py') from error
    parts: list[_Part] = []
    for part in ('train', 'test'):
        file = _find(root, f'fed_cifar100_{part}.h5', 'Fed-CIFAR-100')
        try:
            with h5py.File(file, 'r') as h5:
                clients = [h5['examples'][name] for name in sorted(h5['examples'])]
                images = np.concatenate([client['image'][()] for client in clients])
                labels = np.concatenate([client['label'][()] for client in clients])
        except (OSError, KeyError, ValueError) as error:
            raise DataError(f'{file} is not a Fed-CIFAR-100 file: {error}') from error
        parts.append((_pixels(images.transpose(0, 3, 1, 2)), _labels(labels)))
    return _data(parts, 100)


def image_folder(root: str = 'data', size: int = 32) -> ImageData:
    """Images in ``root/train/<class>/*`` and ``root/test/<class>/*``, scaled to ``size`` pixels."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise DataError('to read image files: pip install pillow') from error
    train = Path(root) / 'train'
    names = sorted(path.name for path in train.iterdir() if path.is_dir()) if train.is_dir() else []
    if not names:
        raise DataError(f'{train} holds no folders; make one for each class')
    parts: list[_Part] = []
    for part in ('train', 'test'):
        images, labels = [], []
        for label, name in enumerate(names):
            for file in sorted((Path(root) / part / name).glob('*')):
                try:
                    with Image.open(file) as image:
                        images.append(np.asarray(image.convert('RGB').resize((size, size))))
                except (OSError, UnidentifiedImageError) as error:
                    raise DataError(f'{file} is not an image: {error}') from error
                labels.append(label)
        if not images:
            raise DataError(f'{Path(root) / part} holds no images of {", ".join(names)}')
        parts.append((_pixels(np.stack(images).transpose(0, 3, 1, 2)), _labels(np.array(labels))))
    return _data(parts, len(names))


LOADERS: dict[str, Callable[..., ImageData]] = {
    'digits': digits, 'cifar100': cifar100, 'fed_cifar100': fed_cifar100,
    'image_folder': image_folder}


def _find(root: str, name: str, what: str) -> Path:
    found = sorted(Path(root).rglob(name)) if Path(root).is_dir() else []
    if not found:
        raise DataError(f'{name} is not in {Path(root).absolute()}; put {what} there or name its '
                        'folder')
    return found[0]


def _data(parts: list[_Part], classes: int) -> ImageData:
    (train_images, train_labels), (test_images, test_labels) = parts
    return ImageData(train_images, train_labels, test_images, test_labels, classes)


def _pixels(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32) / 255.0)


def _labels(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))
