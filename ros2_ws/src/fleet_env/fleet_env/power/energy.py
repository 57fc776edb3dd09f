"""Energy of a robot: the power of each state, integrated over time. Sans-I/O."""

from fleet_env.settings.power_model import STATES, PowerModel


class EnergyMeter:
    """Adds up the energy and the seconds in each state; call `enter` when the state changes.

    :param model: power per state.
    :param now: time of the start, seconds on the caller's clock. If a call gives an earlier time
        than a previous call, the latest time given so far is used.
    :param state: state at the start.
    """

    def __init__(self, model: PowerModel, now: float, state: str = 'stalled'):
        self.model = model
        self.state, self._power = state, model.watts(state)
        self.restart(now)

    def restart(self, now: float) -> None:
        """Reset all sums and count from ``now``."""
        self._now = now
        self._seconds = dict.fromkeys(STATES, 0.0)
        self._joules = 0.0

    def enter(self, state: str, now: float) -> None:
        """Change to ``state`` at ``now``."""
        power = self._power if state == self.state else self.model.watts(state)
        self._integrate(now)
        self.state, self._power = state, power

    def seconds(self, now: float) -> dict[str, float]:
        """Return the seconds spent in each state until ``now``."""
        self._integrate(now)
        return dict(self._seconds)

    def energy(self, now: float) -> float:
        """Return the energy until ``now`` in J."""
        self._integrate(now)
        return self._joules

    def power(self, now: float) -> float:
        """Return the power at ``now`` in W."""
        self._integrate(now)
        return self._watts()

    def _watts(self) -> float:
        return self._power

    def _integrate(self, now: float) -> None:
        passed = now - self._now
        if passed > 0:
            self._seconds[self.state] += passed
            self._joules += passed * self._watts()
            self._now = now
