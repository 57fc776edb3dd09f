"""The pauses of robots have the frequency and length that the fleet file sets.

Equal seeds give equal pauses.
"""

import pytest
from fleet_env.emulated.stragglers import Pause, Stragglers
from fleet_env.settings.fleet import StragglerConfig
from hypothesis import given
from hypothesis import strategies as st

shares = st.floats(0, 1)


def pauses(config, seed=0, rank=0, count=300):
    stragglers = Stragglers(config, seed, rank)
    return [stragglers.next() for _ in range(count)]


@given(shares, shares, st.integers(0, 2**31 - 1), st.integers(0, 100))
def test_equal_seeds_pause_alike_and_only_as_configured(late, away, seed, rank):
    config = StragglerConfig(probability=late, time=2.0, drop_probability=away, drop_time=9.0)
    found = pauses(config, seed, rank, 20)
    assert found == pauses(config, seed, rank, 20)
    assert set(found) <= {Pause(0.0, False), Pause(2.0, False), Pause(9.0, True)}


def test_pauses_have_the_configured_probability():
    config = StragglerConfig(probability=.2, time=2.0, drop_probability=.1, drop_time=9.0)
    found = pauses(config, count=10_000)
    assert found.count(Pause(9.0, True)) == pytest.approx(1000, abs=100)
    assert found.count(Pause(2.0, False)) == pytest.approx(.9 * 2000, abs=150)


def test_robots_and_seeds_differ():
    config = StragglerConfig(probability=.5, time=1.0)
    assert pauses(config, 0, 0) != pauses(config, 0, 1)
    assert pauses(config, 0, 1) != pauses(config, 1, 0)


def test_certain_and_impossible_pauses():
    assert set(pauses(StragglerConfig(probability=1.0, time=3.0))) == {Pause(3.0, False)}
    for certain, pause in ((1.0, Pause(5.0, True)), (0.0, Pause(0.0, False))):
        assert set(pauses(StragglerConfig(probability=certain, time=3.0, drop_probability=certain,
                                          drop_time=5.0))) == {pause}


def test_dropping_out_more_often_leaves_the_late_gradients_where_they_were():
    few, many = (pauses(StragglerConfig(probability=.3, time=1.0, drop_probability=p,
                                        drop_time=9.0)) for p in (0, .3))
    assert all(a == b for a, b in zip(few, many, strict=True) if not b.drops_out)
