"""Small models that the shipped tasks train.

No model has buffers: batch normalisation is left out, so the parameters that a fleet trains are
the whole model. No model draws random numbers: dropout is left out even where the published network
has it, so equal batches give equal gradients.

Each model takes N images, (N, channels, height, width), 0 to 1, and returns logits (N, classes).
The last pooling layer adapts to the size of the image; at the published size it changes nothing.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, max_pool2d

from rog_tasks.errors import TaskError
from rog_tasks.loading import load_object


class DigitNet(nn.Module):
    """A convolutional network for images of about 8x8: 159,626 parameters in 336 rows.

    :param channels: number of channels of the images, which need at least 2x2 pixels.
    :param classes: number of classes.
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
        """Return the logits of N images, (N, classes)."""
        # 0.3 and 0.35 are near the digits' mean (0.31) and standard deviation (0.38). On a CPU,
        # `channels_last` halves the time of a step, and relu in place saves a quarter of the time
        # of an evaluation.
        x = self.conv1((images - 0.3) / 0.35)
        x = torch.relu_(x.contiguous(memory_format=torch.channels_last))
        x = max_pool2d(torch.relu_(self.conv2(x)), 2)
        x = self.pool(torch.relu_(self.conv3(x)))
        return self.out(torch.relu_(self.hidden(x.flatten(1))))


class MnistNet(nn.Module):
    """The network of PyTorch's MNIST example (GSGM, Section V): 21,840 parameters.

    :param channels: number of channels of the images. The network was published for 28x28 pixels
        and accepts 16x16 or more.
    :param classes: number of classes.
    """

    def __init__(self, channels: int = 1, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 10, 5)
        self.conv2 = nn.Conv2d(10, 20, 5)
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.hidden = nn.Linear(320, 50)
        self.out = nn.Linear(50, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of N images, (N, classes)."""
        # 0.1307 and 0.3081 are the mean and the standard deviation of MNIST.
        x = torch.relu(max_pool2d(self.conv1((images - 0.1307) / 0.3081), 2))
        x = self.pool(torch.relu(max_pool2d(self.conv2(x), 2)))
        return self.out(torch.relu(self.hidden(x.flatten(1))))


class LeNet5(nn.Module):
    """LeNet-5 as used on CIFAR-10 (GSGM, Section V; DGH-GC, Section 6.1): 62,006 parameters.

    :param channels: number of channels of the images. The network was published for 32x32 pixels
        and accepts 16x16 or more.
    :param classes: number of classes.
    """

    def __init__(self, channels: int = 3, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.pool = nn.AdaptiveAvgPool2d(5)
        self.hidden1 = nn.Linear(400, 120)
        self.hidden2 = nn.Linear(120, 84)
        self.out = nn.Linear(84, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of N images, (N, classes)."""
        x = max_pool2d(torch.relu(self.conv1((images - 0.5) / 0.5)), 2)
        x = self.pool(max_pool2d(torch.relu(self.conv2(x)), 2))
        x = torch.relu(self.hidden1(x.flatten(1)))
        return self.out(torch.relu(self.hidden2(x)))


class ConvNet(nn.Module):
    """Three convolutions and two linear layers for CIFAR-100 (GSGM, Section V): 586,184 parameters.

    :param channels: number of channels of the images. The network was published for 32x32 pixels
        and accepts 8x8 or more.
    :param classes: number of classes.
    """

    def __init__(self, channels: int = 3, classes: int = 100):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 64, 3, padding=1)
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.hidden = nn.Linear(1024, 500)
        self.out = nn.Linear(500, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of N images, (N, classes)."""
        x = max_pool2d(torch.relu(self.conv1((images - 0.5) / 0.5)), 2)
        x = max_pool2d(torch.relu(self.conv2(x)), 2)
        x = self.pool(max_pool2d(torch.relu(self.conv3(x)), 2))
        return self.out(torch.relu(self.hidden(x.flatten(1))))


class ConvMlp(nn.Module):
    """A small variant of ConvMLP (Li et al., 2021; ROG, Section VI) for images of about 32x32.

    Two convolutions find features. The stages after them are as published: channel MLPs with a
    depthwise convolution between them. There is no batch normalisation. The model has 613,642
    parameters in 2,408 rows; one image takes 16 million multiplications.

    :param channels: number of channels of the images, which need at least 16x16 pixels.
    :param classes: number of classes.
    """

    def __init__(self, channels: int = 3, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.stage1 = _MlpStage(64, 128)
        self.down = nn.Conv2d(64, 192, 3, stride=2, padding=1)
        self.stage2 = _MlpStage(192, 576)
        self.norm = nn.LayerNorm(192)
        self.out = nn.Linear(192, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of N images, (N, classes)."""
        x = ((images - 0.5) / 0.25).contiguous(memory_format=torch.channels_last)
        x = max_pool2d(torch.relu(self.conv1(x)), 2)
        x = self.stage1(max_pool2d(torch.relu(self.conv2(x)), 2))
        x = self.stage2(self.down(x))
        return self.out(self.norm(x.mean((2, 3))))


class _MlpStage(nn.Module):
    """Two MLPs over the channels of each pixel, and a depthwise convolution between them."""

    def __init__(self, channels: int, hidden: int):
        super().__init__()
        self.mlp1 = _ChannelMlp(channels, hidden)
        self.norm = nn.LayerNorm(channels)
        self.places = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.mlp2 = _ChannelMlp(channels, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of ``x``, (images, channels, height, width)."""
        x = self.mlp1(x.permute(0, 2, 3, 1))
        x = self.places(self.norm(x).permute(0, 3, 1, 2)) + x.permute(0, 3, 1, 2)
        return self.mlp2(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class _ChannelMlp(nn.Module):
    def __init__(self, channels: int, hidden: int):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.rise = nn.Linear(channels, hidden)
        self.fall = nn.Linear(hidden, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of ``x``, (images, height, width, channels)."""
        return x + self.fall(gelu(self.rise(self.norm(x))))


MODELS: dict[str, type[nn.Module]] = {
    'digitnet': DigitNet, 'mnistnet': MnistNet, 'lenet5': LeNet5, 'convnet': ConvNet,
    'convmlp': ConvMlp}


def build_model(spec: str, options: Mapping[str, Any], channels: int, classes: int,
                what: str = 'model') -> nn.Module:
    """Return a new model, initialised from the global random state.

    :param spec: a key of :data:`MODELS`, or ``package.module:function`` of a function or class that
        returns a model. Only a class in :data:`MODELS` also gets ``channels`` and ``classes``.
    :param options: keyword arguments of that class or function.
    :param what: word for the model in messages to the user.
    :raises TaskError: the model cannot be made.
    """
    factory: Any = MODELS.get(spec)
    if factory:
        options = {'channels': channels, 'classes': classes, **options}
    else:
        factory = load_object(spec, f'{what} ({", ".join(MODELS)} or package.module:function)')
    try:
        made = factory(**options)
    except TypeError as error:
        raise TaskError(f'{what}_options of {spec}: {error}') from error
    if not isinstance(made, nn.Module):
        raise TaskError(f'{what} {spec!r} must return a torch.nn.Module, got '
                        f'{type(made).__name__}')
    return made


def try_model(model: nn.Module, spec: str, image: Tensor) -> None:
    """Check that a model accepts images like ``image`` (1, C, H, W); keep the model's mode.

    :raises TaskError: the model does not accept them.
    """
    training = model.training
    try:
        with torch.no_grad():
            model.eval()(image)
    except RuntimeError as error:
        raise TaskError(f'model {spec!r} does not accept images of '
                        f'{"x".join(map(str, image.shape[1:]))}: {error}') from error
    model.train(training)
