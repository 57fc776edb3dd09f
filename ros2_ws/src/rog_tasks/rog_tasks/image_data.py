"""The form of every image data set: labelled images, checked, in four tensors."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rog_tasks.errors import DataError


@dataclass(frozen=True)
class ImageData:
    """A data set, divided into training and test images.

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
