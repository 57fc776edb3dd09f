"""The form of every image data set: labelled images in four tensors, which are checked."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rog_tasks.errors import DataError


@dataclass(frozen=True)
class ImageData:
    """A data set, divided into training and test images.

    Images are (images, channels, height, width): float32 from 0 to 1, or uint8 from 0 to 255, which
    takes a quarter of the memory (:func:`as_float` converts it). Labels are int64, one per image, 0
    to classes - 1.
    ``digest``: hexadecimal digest of the content; '' if it is not known.
    """

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int
    digest: str = ''

    def __post_init__(self) -> None:
        for part in ('train', 'test'):
            images, labels = getattr(self, f'{part}_images'), getattr(self, f'{part}_labels')
            if images.ndim != 4 or labels.shape != (len(images),) or not len(images):
                raise DataError(f'{part} images {tuple(images.shape)} and labels '
                                f'{tuple(labels.shape)} must be (n, C, H, W) and (n,), n > 0')
            if images.dtype not in (torch.float32, torch.uint8) or labels.dtype != torch.int64:
                raise DataError(f'{part} images and labels are {images.dtype}, {labels.dtype}; '
                                'they must be uint8 or float32 and int64')
            if not (int(labels.min()) >= 0 and int(labels.max()) < self.classes):
                raise DataError(f'{part} labels must lie between 0 and {self.classes - 1}')


def as_float(images: Tensor) -> Tensor:
    """Return images as float32, 0 to 1."""
    return images.float() / 255 if images.dtype == torch.uint8 else images
