"""Real images that need no network, as large as the papers' networks need them."""

from __future__ import annotations

from dataclasses import replace

import torch
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


def noisy_digits(noise: float = 0.8, copies: int = 10, test_copies: int = 3, seed: int = 0
                 ) -> ImageData:
    """Return `large_digits`, each several times, with noise that leaves an error for good.

    :param noise: standard deviation of the noise of a pixel.
    :param copies: of an image that is for training; ``test_copies``: of one for testing.
    :param seed: of what is for training and what for testing, and of the noise.
    """
    data, generator = large_digits(seed=seed), torch.Generator().manual_seed(seed)

    def noisy(images: torch.Tensor, times: int) -> torch.Tensor:
        many = images.repeat(times, 1, 1, 1)
        return (many + noise * torch.randn(many.shape, generator=generator)).clamp(0, 1)

    return replace(data, train_images=noisy(data.train_images, copies),
                   train_labels=data.train_labels.repeat(copies),
                   test_images=noisy(data.test_images, test_copies),
                   test_labels=data.test_labels.repeat(test_copies))
