"""Small models that the shipped tasks train by default.

None has buffers (no batch normalisation): what is trained is all that a model is, so that a fleet
that exchanges parameters exchanges the model.
"""

import torch
from torch import Tensor, nn


class DigitNet(nn.Module):
    """A convolutional network for images of about 8x8: 159,626 parameters in 336 rows.

    :param channels: channels of the image.
    :param classes: classes to tell apart.

    Takes images (N, channels, H, W), 0 to 1, H and W at least 2; gives logits (N, classes).
    """

    def __init__(self, channels: int = 1, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.conv3 = nn.Conv2d(64, 128, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.hidden = nn.Linear(512, 128)
        self.out = nn.Linear(128, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, classes)."""
        x = torch.relu(self.conv1((images - 0.3) / 0.35))  # digits: mean .31, deviation .38
        x = x.contiguous(memory_format=torch.channels_last)  # halves the time on a CPU
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = self.pool(torch.relu(self.conv3(x)))
        return self.out(torch.relu(self.hidden(x.flatten(1))))
