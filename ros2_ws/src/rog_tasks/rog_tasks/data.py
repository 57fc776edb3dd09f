"""Loads labelled images by name from this machine; nothing is downloaded.

A loader is a function that returns :class:`ImageData`. A task names a key of :data:`LOADERS`, or
any other loader as ``package.module:function``.
"""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch

from rog_tasks.cache import Tensors, cached, digest, digest_of
from rog_tasks.errors import DataError
from rog_tasks.formats import cifar10, cifar100, fashion_mnist, fed_cifar100, mnist
from rog_tasks.image_data import ImageData
from rog_tasks.image_folder import image_folder
from rog_tasks.shapes import shapes

__all__ = ['LOADERS', 'ImageData', 'digits']


def digits(seed: int = 0) -> ImageData:
    """Load scikit-learn's handwritten digits: 1797 real images of 8x8, a fifth of them for testing.

    The split is stratified and depends on ``seed``. The user's cache keeps the split, because
    importing scikit-learn takes longer than anything else that a robot does before it trains.

    :raises DataError: scikit-learn is not installed.
    """
    seed %= 2**32
    try:
        release = version('scikit-learn')
    except PackageNotFoundError as error:
        raise DataError("the data 'digits' comes with the package scikit-learn, which most robots "
                        'do without: pip install scikit-learn') from error
    found = cached('images', digest('digits', release, np.__version__, str(seed)),
                   lambda: _split_digits(seed))
    return ImageData(found['train'], found['train_labels'], found['test'], found['test_labels'], 10,
                     digest_of(found))


def _split_digits(seed: int) -> Tensors:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    bunch = load_digits()
    images = (bunch.images / 16.0).astype(np.float32)[:, None]
    split = train_test_split(images, bunch.target.astype(np.int64), test_size=0.2,
                             stratify=bunch.target, random_state=seed)
    names = 'train', 'test', 'train_labels', 'test_labels'
    return {name: torch.from_numpy(part) for name, part in zip(names, split, strict=True)}


LOADERS: dict[str, Callable[..., ImageData]] = {
    'digits': digits, 'shapes': shapes, 'mnist': mnist, 'fashion_mnist': fashion_mnist,
    'cifar10': cifar10, 'cifar100': cifar100, 'fed_cifar100': fed_cifar100,
    'image_folder': image_folder}
