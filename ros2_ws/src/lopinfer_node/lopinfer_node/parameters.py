"""Parameters of the two nodes, and the objects made from them."""

from __future__ import annotations

from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from fleet_env.errors import SettingError
from fleet_env.settings.base import setting
from fleet_env.settings.fleet import DEVICE, AccessConfig
from fleet_models.settings import FollowSettings
from fleet_ros.device import torch_device
from fleet_ros.link import LinkSettings
from fleet_ros.managed import ManagedSettings

from .model.pictures import MEAN, STD
from .runtime.client import Settings
from .runtime.planner import LOSS, METHODS
from .runtime.recording import Recording
from .runtime.server import Limits


def several(rules: dict[str, Any]) -> dict[str, Any]:
    """Return the rules of a setting for several values, separated by commas."""
    one = rules['pattern'].removeprefix('^').removesuffix('$')
    return {'pattern': f'^{one}(,{one})*$', 'form': f'{rules["form"]}, or several of these'}


class NodeSettings(LinkSettings):
    """Settings of both nodes."""

    security: AccessConfig = AccessConfig()
    threads: int = setting(0, "computing threads; 0: PyTorch's default", ge=0, le=1024)
    recording: str = setting('', 'file for a record of every computation and transfer; empty: none',
                             empty=True)
    device: str = setting('cpu', 'device that computes', **DEVICE)

    def open_recording(self) -> Recording | None:
        """Return the opened recording, or None if the setting `recording` is empty.

        :raises SettingError: the file cannot be written.
        """
        try:
            return Recording(Path(self.recording)) if self.recording else None
        except OSError as error:
            raise SettingError(f'parameter recording must be a file that can be written, got '
                               f"'{self.recording}': {error.strerror}") from error


class ServerSettings(ManagedSettings, NodeSettings, Limits):
    """Settings of the server."""

    models: str = setting('', 'models to load at start, separated by commas: names of torchvision '
                              'or timm, or package.module:factory', empty=True)
    weights: str = setting('', "weights of these models, separated by commas: folders of a fleet's "
                               'run, or files of a state_dict; empty: their own', empty=True)
    device: str = setting('cpu', 'device that computes; several of one kind, separated by commas, '
                                 'compute at the same time', **several(DEVICE))

    follow: str = setting('', 'namespace of a fleet, such as /rog, whose model robots follow: the '
                              'server fetches its versions, so robots need not send them; empty: '
                              'none', empty=True)

    def chosen_devices(self) -> str:
        """Return the devices, as PyTorch calls them, separated by commas.

        :raises SettingError: this machine lacks one of them, or they are not of one kind.
        """
        devices = [torch_device(name) for name in self.device.split(',')]
        if len({device.type for device in devices}) > 1:
            raise SettingError('parameter device must name devices of one kind, because a plan is '
                               f"made for any of them, got '{self.device}'")
        return ','.join(map(str, devices))

    def chosen_models(self) -> list[tuple[str, str]]:
        """Return the names of the models to load, each with its weights ('': its own).

        :raises SettingError: there are more weights than models.
        """
        models = [name.strip() for name in self.models.split(',') if name.strip()]
        weights = [place.strip() for place in self.weights.split(',')] if self.weights else []
        if len(weights) > len(models):
            raise SettingError(f'parameter weights must name weights for the {len(models)} models '
                               f'of parameter models, in their order, got {len(weights)}')
        return list(zip_longest(models, weights, fillvalue=''))


class ClientSettings(NodeSettings, FollowSettings, Settings):
    """Settings of a robot's client."""

    model: str = setting('mobilenet_v3_small', 'model: a name of torchvision or timm, or '
                                               'package.module:factory')
    pretrained: bool = setting(False, 'whether to download trained weights')
    weights: str = setting('', "weights of the model: the folder of a fleet's run or of one of its "
                               'versions, or a file of a state_dict (.safetensors, .pt); empty: '
                               'its own', empty=True)
    height: int = setting(224, "rows of the model's input; images are scaled to it", ge=1, le=8192)
    width: int = setting(224, "columns of the model's input", ge=1, le=8192)
    image_transport: Literal['raw', 'compressed'] = setting(
        'raw', 'raw: images come on topic image; compressed: JPEG or PNG on image/compressed, sent '
               'to the server as they are where that takes less time')
    mean: tuple[float, ...] = setting(MEAN, 'value subtracted from each channel, which is 0 to 1')
    std: tuple[float, ...] = setting(STD, 'divisor of each channel after the subtraction')
    server: str = setting('/lopinfer', 'namespace of the server; several, separated by commas: the '
                                       'fastest takes an inference')
    method: Literal[METHODS] = setting(LOSS, 'method of planning')  # type: ignore[valid-type]
    slowdown: float = setting(1.0, 'emulate a slower robot: factor on the computing time; 1: off',
                              ge=1.0, le=1000.0)
    link_delay: float = setting(0.002, 'delay of the link per direction that plans expect', 's',
                                ge=0.0, le=10.0)
