"""Real images that need no download, in the size that the papers' neural networks need."""

from __future__ import annotations

from dataclasses import replace

import torch
from rog_tasks.data import LOADERS
from rog_tasks.image_data import ImageData


def large_digits(channels: int = 1, seed: int = 0) -> ImageData:
    """Return scikit-learn's handwritten digits, enlarged from 8x8 to 16x16 by doubling pixels.

    :param channels: number of channels; each holds a copy of the image.
    :param seed: seed that divides the images into training and test data.
    """
    data = LOADERS['digits'](seed=seed)
    train, test = (images.repeat_interleave(2, 2).repeat_interleave(2, 3).repeat(1, channels, 1, 1)
                   for images in (data.train_images, data.test_images))
    return replace(data, train_images=train, test_images=test)


def noisy_digits(noise: float = 0.8, copies: int = 10, test_copies: int = 3, seed: int = 0
                 ) -> ImageData:
    """Return several noisy copies of each image of `large_digits`.

    The noise is so strong that an error remains however long a model trains.

    :param noise: standard deviation of the noise of a pixel; pixels are 0 to 1.
    :param copies: copies of each training image; ``test_copies``: copies of each test image.
    :param seed: seed of the noise, and of the division into training and test data.
    """
    data, generator = large_digits(seed=seed), torch.Generator().manual_seed(seed)

    def noisy(images: torch.Tensor, times: int) -> torch.Tensor:
        many = images.repeat(times, 1, 1, 1)
        return (many + noise * torch.randn(many.shape, generator=generator)).clamp(0, 1)

    return replace(data, train_images=noisy(data.train_images, copies),
                   train_labels=data.train_labels.repeat(copies),
                   test_images=noisy(data.test_images, test_copies),
                   test_labels=data.test_labels.repeat(test_copies))
