"""Parameters of the two nodes, and the objects made from them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from fleet_env.fleet import DEVICE
from fleet_env.settings import setting
from fleet_ros.link import LinkSettings
from fleet_ros.managed import ManagedSettings

from .model.pictures import MEAN, STD
from .runtime.client import Settings
from .runtime.planner import LOSS, METHODS
from .runtime.recording import Recording
from .runtime.server import Limits


class NodeSettings(LinkSettings):
    """Settings of both nodes."""

    threads: int = setting(0, "threads that compute; 0: PyTorch's own choice", ge=0, le=1024)
    recording: str = setting('', 'file to which every computation and transfer is written; empty: '
                                 'none', empty=True)
    device: str = setting('cpu', 'device that computes', **DEVICE)

    def open_recording(self) -> Recording | None:
        """Open the recording, if the user asked for one."""
        return Recording(Path(self.recording)) if self.recording else None


class ServerSettings(ManagedSettings, NodeSettings, Limits):
    """Settings of the server."""

    directory: str = setting('', 'folder of the models; empty: ~/.cache/lopinfer', empty=True)
    models: str = setting('', 'models to have ready, names separated by commas: of torchvision or '
                              'timm, or package.module:factory', empty=True)


class ClientSettings(NodeSettings, Settings):
    """Settings of a robot's client."""

    model: str = setting('mobilenet_v3_small', 'model: a name of torchvision or timm, or '
                                               'package.module:factory')
    pretrained: bool = setting(False, 'whether to download trained weights')
    height: int = setting(224, "rows of the model's input; images are scaled to it", ge=1, le=8192)
    width: int = setting(224, "columns of the model's input", ge=1, le=8192)
    mean: tuple[float, ...] = setting(MEAN, 'subtracted from each channel, which is 0 to 1')
    std: tuple[float, ...] = setting(STD, 'each channel is then divided by it')
    server: str = setting('/lopinfer', 'namespace of the server')
    method: Literal[METHODS] = setting(LOSS, 'how the plans are made')  # type: ignore[valid-type]
    slowdown: float = setting(1.0, 'emulate a slower robot: computing takes so many times as long; '
                                   '1: off', ge=1.0, le=1000.0)
    link_delay: float = setting(0.002, 'delay of the link per direction that plans expect', 's',
                                ge=0.0, le=10.0)
