"""What `rrto run` was asked for, as an environment variable of the program."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fleet_env.settings import setting
from fleet_ros.link import LinkSettings

VISIBLE = 'CUDA_VISIBLE_DEVICES'
HIDES_ALL = ('', '-1')   # a program that sets one of these wants no device
STARTING = 'RRTO_STARTING'   # number of the process of a server that was started for the program
START_LIMIT = 300.0          # seconds in which it has to be there, busy as the machine may be
NONE_HERE = 'rrto'       # no GPU of this machine has that name

_VARIABLE = 'RRTO_SETTINGS'  # the program's sitecustomize looks for it


class Settings(LinkSettings):
    """Settings of a program, and options of `rrto run`."""

    mode: Literal['replay', 'async', 'cached', 'rpc'] = setting('replay', 'how calls travel')
    server: str = setting('', 'name of the server; without it one is looked for, and if there is '
                              'none, started on this machine', empty=True)
    on_loss: Literal['error', 'local'] = setting(
        'error', 'when the server is lost: end with an error, or go on on this machine')
    namespace: str = setting('', "namespace of the program's node", empty=True)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """What `to_environment` wrote."""
        return cls.model_validate_json(environment.get(_VARIABLE, '{}'))

    def to_environment(self) -> dict[str, str]:
        """The variable that carries the settings."""
        return {_VARIABLE: self.model_dump_json()}
