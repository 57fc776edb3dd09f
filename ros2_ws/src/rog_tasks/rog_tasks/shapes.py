"""A generated set of images, larger than the data sets in the Python packages that we use.

The set needs no network and no file. Each class has a few smooth random prototypes. Each prototype
shares part of its form with one prototype of every other class. An image is a prototype of its
class, shifted, bent by a smooth field, scaled in contrast, and noisy. The accuracy of a model rises
fast at first and slowly later. It stays low if the model is trained on one class after another.
"""

import torch
from torch import Tensor
from torch.nn.functional import grid_sample, interpolate

from rog_tasks.errors import DataError
from rog_tasks.image_data import ImageData

KINDS = 3
"""Number of prototypes of a class."""
SHARED = 0.6
"""Share of a prototype's form that one prototype of every other class also has, 0 to 1."""
SHIFT = 0.15
"""Standard deviation of the shift, in half widths of the image."""
BEND = 0.1
"""Standard deviation of the bending, in half widths of the image."""
NOISE = 0.25
"""Standard deviation of the noise of a pixel."""


def shapes(train: int = 6000, test: int = 1000, size: int = 28, channels: int = 1,
           classes: int = 10, seed: int = 0) -> ImageData:
    """Generate ``train`` and ``test`` images of ``size`` x ``size`` pixels, equally many per class.

    :param seed: random seed of all images. It does not depend on the fleet's seed, so fleets with
        different seeds train on the same images.
    :raises DataError: a number is out of range.
    """
    least = min(train, test)
    if not (2 <= classes <= least and size >= 8 and channels >= 1):
        raise DataError(f'shapes of {classes} classes, {train} and {test} images, {channels} '
                        f'channels, size {size}: at least 2 classes, an image of each in both '
                        'parts, 1 channel and size 8 are needed')
    generator = torch.Generator().manual_seed(seed)
    prototypes = _prototypes(size, channels, classes, generator)
    parts = [_images(count, prototypes, generator) for count in (train, test)]
    (train_images, train_labels), (test_images, test_labels) = parts
    return ImageData(train_images, train_labels, test_images, test_labels, classes)


def _prototypes(size: int, channels: int, classes: int, generator: torch.Generator) -> Tensor:
    """Return the prototypes (classes, KINDS, channels, size, size), with values from 0 to 1."""
    common = _smooth(KINDS, channels, size, generator)
    own = _smooth(classes * KINDS, channels, size, generator)
    own = own.view(classes, KINDS, channels, size, size)
    return torch.sigmoid(6 * (SHARED * common + (1 - SHARED) * own))


def _images(count: int, prototypes: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return images (count, C, H, W) and their labels (count,), in random order."""
    classes, kinds = prototypes.shape[:2]
    labels = torch.arange(count)[torch.randperm(count, generator=generator)] % classes
    kind = torch.randint(kinds, (count,), generator=generator)
    size = prototypes.shape[-1]
    line = torch.linspace(-1, 1, size)
    where = torch.stack(torch.meshgrid(line, line, indexing='xy'), -1)
    shift = SHIFT * torch.randn(count, 1, 1, 2, generator=generator)
    bend = BEND * _smooth(count, 2, size, generator).permute(0, 2, 3, 1)
    images = grid_sample(prototypes[labels, kind], where + shift + bend, align_corners=True)
    strength = 0.6 + 0.4 * torch.rand(count, 1, 1, 1, generator=generator)
    noise = torch.randn(images.shape, generator=generator)
    return (strength * images + NOISE * noise).clamp(0, 1), labels


def _smooth(count: int, channels: int, size: int, generator: torch.Generator) -> Tensor:
    """Return smooth random fields (count, channels, size, size) with standard deviation about 1."""
    coarse = torch.randn(count, channels, 5, 5, generator=generator)
    return interpolate(coarse, size=(size, size), mode='bicubic', align_corners=True)
