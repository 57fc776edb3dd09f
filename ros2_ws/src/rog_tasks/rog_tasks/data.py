"""Labelled images to train on, by name, from what is on the machine; nothing is downloaded.

A loader is a function that returns :class:`ImageData`; a task names one of :data:`LOADERS`, or any
other as ``package.module:function``.
"""

from collections.abc import Callable

import numpy as np
import torch

from rog_tasks.cache import digest_of
from rog_tasks.formats import cifar10, cifar100, fashion_mnist, fed_cifar100, mnist
from rog_tasks.image_data import ImageData
from rog_tasks.image_folder import image_folder
from rog_tasks.shapes import shapes

__all__ = ['LOADERS', 'ImageData', 'digits']


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
    content = digest_of({'train': train, 'train_labels': train_labels, 'test': test,
                         'test_labels': test_labels})
    return ImageData(train, train_labels, test, test_labels, 10, content)


LOADERS: dict[str, Callable[..., ImageData]] = {
    'digits': digits, 'shapes': shapes, 'mnist': mnist, 'fashion_mnist': fashion_mnist,
    'cifar10': cifar10, 'cifar100': cifar100, 'fed_cifar100': fed_cifar100,
    'image_folder': image_folder}
