"""Options of `rrto run`, passed to the program in an environment variable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fleet_env.settings.base import setting
from fleet_env.settings.fleet import AccessConfig
from fleet_ros.link import LinkSettings
from fleet_ros.own_gpu import SETTINGS

# Environment variable with the process id of the server that was started for the program.
STARTING = 'RRTO_STARTING'
START_LIMIT = 300.0  # maximum time in seconds that the program waits for this server
NONE_HERE = 'rrto'       # value of `VISIBLE` that matches no GPU of this machine


class Settings(LinkSettings):
    """Settings of a program, and options of `rrto run`."""

    security: AccessConfig = AccessConfig()
    mode: Literal['replay', 'async', 'cached', 'rpc'] = setting('replay', 'how calls are sent')
    server: str = setting('', 'name of the server; empty: use any server, or start one on this '
                              'machine if none is found', empty=True)
    on_loss: Literal['error', 'local'] = setting(
        'error', 'if the server is lost: end with an error, or continue on this machine')
    local_device: Literal['auto', 'cpu'] = setting(
        'auto', 'what computes after a loss, with on_loss local; auto: the GPU of this machine, if '
                'it has one')
    namespace: str = setting('', "namespace of the program's node", empty=True)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """Return the settings that `to_environment` has written."""
        return cls.model_validate_json(environment.get(SETTINGS, '{}'))

    def to_environment(self) -> dict[str, str]:
        """Return the environment variable with the settings, as a dict from name to value."""
        return {SETTINGS: self.model_dump_json()}
