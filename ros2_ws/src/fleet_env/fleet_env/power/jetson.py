"""An energy meter that measures power with jetson-stats (``jtop``).

If jetson-stats is not installed or does not answer, the power is computed from the robot's state
(`fleet_env.power.energy`).
"""

import logging
from types import TracebackType
from typing import Any

from fleet_env.power.energy import EnergyMeter
from fleet_env.settings.power_model import PowerModel

_log = logging.getLogger(__name__)


class JetsonEnergyMeter(EnergyMeter):
    """An :class:`EnergyMeter` with the measured power of the board, read from a running ``jtop``.

    :param jtop: an open ``jtop.jtop`` client, or any object whose ``power['tot']['power']`` is the
        power in mW.

    Every call of a method reads the power, and applies it to the whole time since the previous
    call. So a method must be called at least once a second.
    """

    def __init__(self, jtop: Any, now: float, state: str = 'stalled'):
        super().__init__(PowerModel(), now, state)
        self._jtop = jtop

    def _watts(self) -> float:
        return float(self._jtop.power['tot']['power']) / 1000.0

    def close(self) -> None:
        """Stop reading the board's sensors."""
        self._jtop.close()

    def __enter__(self) -> 'JetsonEnergyMeter':
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()


def open_meter(model: PowerModel, now: float, state: str = 'stalled') -> EnergyMeter:
    """Return a meter that measures the board's power if jetson-stats runs here.

    Otherwise return a meter that uses ``model``.
    """
    try:
        from jtop import jtop
    except ImportError:
        return EnergyMeter(model, now, state)
    try:
        client = jtop()
        client.start()
        return JetsonEnergyMeter(client, now, state)
    except Exception as error:  # jtop raises its own exceptions if its service is off
        _log.warning('jetson-stats does not answer (%s); power comes from the state model', error)
        return EnergyMeter(model, now, state)
