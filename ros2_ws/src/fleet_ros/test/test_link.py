"""The parameters of an emulated link say what link it is."""

import math
from types import SimpleNamespace

import pytest
from fleet_env.errors import TraceError
from fleet_ros.link import LINK, shaped_link


def link(**given):
    defaults = {name: knob.default for name, knob in LINK.items()}
    return shaped_link(SimpleNamespace(**defaults | given))


def test_by_default_it_is_the_real_one():
    made, out = link(), []
    made.send(10 ** 9, lambda: out.append(1), 0.0)
    assert out == [1] and math.isnan(made.rate(0.0))


def test_a_latency_alone_delays_without_a_limit_of_rate():
    made, out = link(link_latency=0.25), []
    for number in range(3):
        made.send(10 ** 9, lambda number=number: out.append(number), 10.0)
    assert made.deadline == 10.25
    made.release(10.2)
    assert not out
    made.release(10.25)
    assert out == [0, 1, 2] and math.isinf(made.deadline)


def test_a_rate_and_its_latency():
    made = link(link_rate=8.0, link_latency=0.25)
    start = made.start
    made.send(500_000, lambda: None, start)
    assert made.deadline == pytest.approx(start + 0.75) and made.rate(start) == 8.0


def test_a_trace_goes_before_a_rate(tmp_path):
    path = tmp_path / 'trace.txt'
    path.write_text('0 4\n')
    assert link(link_trace=str(path), link_rate=8.0).rate(0.0) == 4.0
    with pytest.raises(TraceError, match='nowhere'):
        link(link_trace=str(tmp_path / 'nowhere'))
