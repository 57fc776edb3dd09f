"""Parameters of the server node."""

from __future__ import annotations

from typing import Literal

from fleet_compute.weights import StoreSettings
from fleet_env.settings.base import setting
from fleet_env.settings.fleet import DEVICE, AccessConfig
from fleet_ros.link import LinkSettings
from fleet_ros.managed import ManagedSettings

from .machine import Limits

PROVED = 'proved'    # folder in that of a running server, see `fleet_compute.weights.Weights`


class ServerSettings(ManagedSettings, LinkSettings, StoreSettings, Limits):
    """Settings of the server."""

    security: AccessConfig = AccessConfig()
    name: str = setting('', 'name of the server, letters, digits and single underscores; empty: '
                            "the machine's name", empty=True)
    device: str = setting('auto', 'device that computes', **DEVICE)
    share: Literal['auto', 'always', 'never'] = setting(
        'auto', 'whether one process computes for all programs what they do alike; auto: on a GPU, '
                'where that saves memory and time. On a CPU the programs use its cores better')
    threads: int = setting(0, "computing threads; 0: PyTorch's default", ge=0, le=1024)

    def shares(self, device: str) -> bool:
        """Return whether programs share what they do alike on a device such as 'cuda:0'."""
        return self.share == 'always' or self.share == 'auto' and device.startswith('cuda')
