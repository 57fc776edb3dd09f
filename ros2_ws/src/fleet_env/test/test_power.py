"""Energy is the sum over states of power times duration."""

import sys
from types import ModuleType

import pytest
from fleet_env.power.energy import EnergyMeter
from fleet_env.power.jetson import JetsonEnergyMeter, open_meter
from fleet_env.settings.power_model import STATES, PowerModel
from hypothesis import given
from hypothesis import strategies as st


def test_published_power_by_default():
    assert [PowerModel().watts(state) for state in STATES] == [13.35, 4.25, 4.04]


def test_states_are_integrated():
    meter = EnergyMeter(PowerModel(computing=10, communicating=5, stalled=1), 100, 'computing')
    meter.enter('communicating', 102)
    meter.enter('stalled', 105)
    assert meter.seconds(109) == {'computing': 2, 'communicating': 3, 'stalled': 4}
    assert meter.energy(109) == pytest.approx(20 + 15 + 4)
    assert meter.power(109) == 1


@given(st.lists(st.tuples(st.floats(0, 10), st.sampled_from(STATES)), max_size=20), st.floats(0, 9))
def test_seconds_add_up_to_the_time_passed(changes, rest):
    meter, now = EnergyMeter(PowerModel(), 0.0), 0.0
    for passed, state in changes:
        now += passed
        meter.enter(state, now)
    now += rest
    seconds = meter.seconds(now)
    assert sum(seconds.values()) == pytest.approx(now)
    assert meter.energy(now) == pytest.approx(
        sum(PowerModel().watts(state) * s for state, s in seconds.items()))


def test_time_does_not_go_back():
    meter = EnergyMeter(PowerModel(), 10)
    meter.enter('computing', 5)
    assert meter.energy(10) == 0


def test_unknown_states_are_refused():
    with pytest.raises(ValueError, match='computing, communicating, stalled'):
        EnergyMeter(PowerModel(), 0).enter('sleeping', 1)


class Jtop:
    """A fake client of jetson-stats."""

    def __init__(self):
        self.power = {'tot': {'power': 7500}}
        self.open = True

    def start(self):
        pass

    def close(self):
        self.open = False


def test_measured_power_has_the_same_interface():
    client = Jtop()
    with JetsonEnergyMeter(client, 0.0) as meter:
        meter.enter('computing', 2)
        client.power['tot']['power'] = 10000
        assert meter.energy(3) == pytest.approx(7.5 * 2 + 10)
        assert meter.power(3) == 10
    assert not client.open


def test_power_is_measured_where_jetson_stats_runs(monkeypatch):
    module = ModuleType('jtop')
    module.jtop = Jtop
    monkeypatch.setitem(sys.modules, 'jtop', module)
    assert isinstance(open_meter(PowerModel(), 0), JetsonEnergyMeter)

    def broken():
        raise RuntimeError('the service does not run')
    module.jtop = broken
    assert type(open_meter(PowerModel(), 0)) is EnergyMeter


def test_power_comes_from_the_model_without_jetson_stats(monkeypatch):
    monkeypatch.setitem(sys.modules, 'jtop', None)
    assert type(open_meter(PowerModel(), 0)) is EnergyMeter
