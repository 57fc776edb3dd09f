"""The electrical power of a robot in each of its states."""

from fleet_env.settings.base import Settings, setting

STATES = ('computing', 'communicating', 'stalled')


class PowerModel(Settings):
    """Power in W that a robot draws in each state; defaults as published for ROG (Jetson NX)."""

    computing: float = setting(13.35, 'power while computing', 'W', ge=0.0)
    communicating: float = setting(4.25, 'power while sending or receiving', 'W', ge=0.0)
    stalled: float = setting(4.04, 'power while waiting for others', 'W', ge=0.0)

    def watts(self, state: str) -> float:
        """Return the power in W in ``state``, one of :data:`STATES`.

        :raises ValueError: for any other state.
        """
        if state not in STATES:
            raise ValueError(f'no state {state!r}; there are {", ".join(STATES)}')
        return float(getattr(self, state))
