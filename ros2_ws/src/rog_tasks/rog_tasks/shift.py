"""Adds fog to images and changes their brightness, as DeepTest does (Tian et al., ICSE 2018).

All functions take and return float images of shape (images, channels, height, width), from 0
(black) to 1 (white). They change nothing in place.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


def brighten(images: Tensor, amount: float) -> Tensor:
    """Add ``amount`` (-1 to 1) to every pixel and clip to 0..1; a negative amount darkens."""
    return (images + amount).clamp(0, 1)


def fog(images: Tensor, strength: float, generator: torch.Generator, cells: int = 3) -> Tensor:
    """Add fog to each image; every image gets its own random fog.

    The density d of the fog is a smooth random field with values from strength / 2 to strength. A
    pixel p becomes (1 - d) p + d, which is whiter.

    :param strength: 0 (clear) to 1 (white-out).
    :param cells: number of random values along each side of the field; fewer values make larger
        patches of fog.
    """
    coarse = _banks(len(images), generator, cells).to(images)
    field = torch.nn.functional.interpolate(coarse, size=images.shape[-2:], mode='bilinear',
                                            align_corners=True)
    density = strength * (0.5 + 0.5 * field)
    return images * (1 - density) + density


def _banks(count: int, generator: torch.Generator, cells: int = 3) -> Tensor:
    return torch.rand(count, 1, cells, cells, generator=generator)


@dataclass(frozen=True)
class Shift:
    """The change of images to which a recogniser must adapt: first fog, then brightness.

    If ``fog`` and ``brightness`` are 0, the images do not change.
    """

    fog: float
    """Strength of the fog, 0 to 1."""
    brightness: float
    """Added to every pixel, -1 to 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.fog <= 1:
            raise ValueError(f'fog is {self.fog}; it must lie between 0 (clear) and 1 (white-out)')
        if not -1 <= self.brightness <= 1:
            raise ValueError(f'brightness is {self.brightness}; it must lie between -1 and 1')

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return ``images`` with fog and brightness.

        Every image gets its own fog from ``generator``.
        """
        if self.fog:
            images = fog(images, self.fog, generator)
        return brighten(images, self.brightness) if self.brightness else images

    def skip(self, count: int, generator: torch.Generator) -> None:
        """Draw as many numbers from ``generator`` as a call with ``count`` images draws."""
        if self.fog:
            _banks(count, generator)
