"""The parameters of an emulated link have the same meaning in every package."""

import math

import pytest
from fleet_env.errors import TraceError
from fleet_env.settings.base import from_flat
from fleet_ros.link import LinkSettings


def link(**given):
    return from_flat(LinkSettings, {f'link.{key}': value for key, value in given.items()}
                     ).shaped_link()


@pytest.mark.parametrize('given', [{}, {'emulate': False, 'rate': 8.0, 'latency': 0.5}])
def test_a_link_without_settings_is_the_real_one(given):
    made, out = link(**given), []
    made.send(10 ** 9, lambda: out.append(1), 0.0)
    assert out == [1] and math.isnan(made.rate(0.0))


def test_a_latency_alone_delays_without_a_limit_of_rate():
    made, out = link(latency=0.25), []
    for number in range(3):
        made.send(10 ** 9, lambda number=number: out.append(number), 10.0)
    assert made.deadline == 10.25
    made.release(10.2)
    assert not out
    made.release(10.25)
    assert out == [0, 1, 2] and math.isinf(made.deadline)


def test_a_rate_and_its_latency():
    made = link(rate=4.0, scale=2.0, latency=0.25)
    start = made.start
    made.send(500_000, lambda: None, start)
    assert made.deadline == pytest.approx(start + 0.75) and made.rate(start) == 8.0


def test_a_rate_goes_before_a_trace(tmp_path):
    path = tmp_path / 'trace.txt'
    path.write_text('0 4\n')
    assert link(trace=str(path)).rate(0.0) == 4.0
    assert link(trace=str(path), rate=8.0).rate(0.0) == 8.0
    with pytest.raises(TraceError, match='nowhere'):
        link(trace=str(tmp_path / 'nowhere'))
