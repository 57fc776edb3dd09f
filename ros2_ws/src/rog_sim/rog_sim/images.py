"""Real images that need no network, as large as the papers' networks need them."""

from __future__ import annotations

from dataclasses import replace

from rog_tasks.data import LOADERS
from rog_tasks.image_data import ImageData


def large_digits(channels: int = 1, seed: int = 0) -> ImageData:
    """Return scikit-learn's handwritten digits, 8x8, with every pixel doubled: 16x16.

    :param channels: copies of the image, for networks that take more than one.
    :param seed: of what is for training and what for testing.
    """
    data = LOADERS['digits'](seed=seed)
    train, test = (images.repeat_interleave(2, 2).repeat_interleave(2, 3).repeat(1, channels, 1, 1)
                   for images in (data.train_images, data.test_images))
    return replace(data, train_images=train, test_images=test)
