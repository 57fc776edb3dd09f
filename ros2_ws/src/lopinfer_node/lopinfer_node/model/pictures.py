"""Models whose input is a picture with one byte for each colour value, as cameras produce it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import zoo
from .traced import Traced, trace

# mean and standard deviation of each colour in ImageNet, which most models expect
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class OfImages(torch.nn.Module):
    """A model that takes pictures, uint8 (n, 3, rows, columns), and normalises them.

    Each channel becomes (x / 255 - mean) / std. So each colour value crosses the link as one byte
    instead of four (float32), with the same result.
    """

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, model: torch.nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer('mean', torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer('std', torch.tensor(std).view(1, -1, 1, 1))
        self.eval()

    def forward(self, image: torch.Tensor) -> Any:
        """Normalise the pictures and return the model's results."""
        return self.model((image.float() / 255 - self.mean) / self.std)


def traced_of_images(name: str, size: tuple[int, int], pretrained: bool = False,
                     mean: Sequence[float] = MEAN, std: Sequence[float] = STD,
                     device: torch.device | str = 'cpu', weights: str = '') -> Traced:
    """Load a model by name (`zoo.load`), and trace it for pictures of ``size`` (rows, columns)."""
    model = OfImages(zoo.load(name, pretrained, weights), mean, std).to(device)
    return trace(model, torch.zeros(1, 3, *size, dtype=torch.uint8, device=device))
