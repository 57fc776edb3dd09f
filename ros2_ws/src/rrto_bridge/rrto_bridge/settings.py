"""What `rrto run` was asked for, as environment variables of the program. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MODES = ('replay', 'async', 'cached', 'rpc')
ON_LOSS = ('error', 'local')


@dataclass(frozen=True)
class Settings:
    """`server`: '' for any that is found; `namespace` of the program's node.

    `link_trace`, or `link_rate` (Mbit/s), and `link_latency` (s) emulate a link.
    """

    mode: str = 'replay'
    server: str = ''
    on_loss: str = 'error'
    namespace: str = ''
    link_trace: str = ''
    link_rate: float = 0.0
    link_latency: float = 0.0
    link_epoch: float = 0.0

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """What `to_environment` wrote."""
        values = {}
        for name, default in vars(cls()).items():
            text = environment.get(f'RRTO_{name.upper()}')
            if text is not None:
                values[name] = type(default)(text)
        return cls(**values)

    def to_environment(self) -> dict[str, str]:
        """Variables RRTO_MODE, RRTO_SERVER, ..."""
        return {f'RRTO_{name.upper()}': str(getattr(self, name))
                for name in vars(self)}

    def link(self) -> Any:
        """The emulated link, or the real one."""
        from fleet_ros.link import shaped_link
        return shaped_link(self)
