"""How much of what links offer the pushes over them use, from what radio and robots write."""

import io
import math
from types import SimpleNamespace

import numpy as np
import pytest
from fleet_env.radio import Radio
from fleet_env.trace import LinkTrace
from rog_cli.link_use import link_use, pushes_of, read_periods
from rog_cli.radio import BEGIN, Forwarder
from rog_ros.receive import push_line

EIGHT = LinkTrace([0.0], [8.0])  # Mbit/s: a byte takes a microsecond


def use(periods, pushes=((0.0, 1.0),), traces=None, shared=True):
    """What a push of robot `a`, from 0 to 1 s, has of its link."""
    return link_use(traces or {'a': EIGHT, 'b': EIGHT}, shared, 0.0,
                    {flow: np.array(times) for flow, times in periods.items()},
                    {'a': np.array(pushes)})['a']


def test_a_link_is_used_while_something_waits_for_it_and_the_rest_is_lost_at_three_places():
    found = use({('a', True): [(0.1, 0.5), (0.7, 0.8)]})
    assert (found.pushes, found.seconds) == (1, 1.0)
    assert found.offered_mbit == pytest.approx(8)
    assert (found.used, found.busy) == pytest.approx((0.5, 0.5))
    assert (found.head, found.tail) == pytest.approx((0.1, 0.2))


def test_what_others_send_at_the_time_is_not_offered_if_they_share_the_air():
    periods = {('a', True): [(0.0, 0.5)], ('b', True): [(0.25, 1.0)]}
    assert use(periods).offered_mbit == pytest.approx(8 * 0.25 + 4 * 0.75)
    assert use(periods).used == pytest.approx((8 * 0.25 + 4 * 0.25) / (8 * 0.25 + 4 * 0.75))
    assert use(periods, shared=False).offered_mbit == pytest.approx(8)


def test_the_other_direction_of_the_same_link_has_its_share_too():
    periods = {('a', True): [(0.0, 1.0)], ('a', False): [(0.0, 0.5)]}
    for shared in (True, False):
        found = use(periods, shared=shared)
        assert found.offered_mbit == pytest.approx(8 * 0.75)
        assert found.used == pytest.approx(1)


def test_a_dead_link_offers_nothing_whatever_waits():
    fades = {'a': LinkTrace([0.0, 0.5], [8.0, 0.0]), 'b': EIGHT}
    found = use({('a', True): [(0.0, 1.0)]}, traces=fades)
    assert found.offered_mbit == pytest.approx(4)
    assert (found.used, found.busy) == pytest.approx((1, 1))
    gone = use({('a', True): [(0.5, 1.0)]}, [(0.5, 0.9)], fades)
    assert math.isnan(gone.used) and math.isnan(gone.busy)


def test_pushes_from_before_the_traces_do_not_count():
    periods = {('a', True): np.array([(1.0, 9.0)])}
    pushes = {'a': np.array([(1.0, 2.0), (6.0, 7.0)])}
    found = link_use({'a': EIGHT}, True, 5.0, periods, pushes)['a']
    assert (found.pushes, found.used) == (1, pytest.approx(1))
    assert link_use({'a': EIGHT}, True, 5.0, periods, {'a': pushes['a'][:1]}) == {}


def test_times_that_the_radio_writes_give_the_bytes_that_the_air_has_carried(capsys):
    noise, start = np.random.default_rng(1), 100.0
    traces = {name: LinkTrace(np.arange(20) * 0.1, noise.choice([0, 0.5, 4, 20], 20))
              for name in 'abc'}
    written, radio = io.StringIO(), Radio(traces)
    forwarder = Forwarder(radio, {}, written)
    radio.begin(start)
    written.write(f'{BEGIN} {start}\n')
    times = np.sort(noise.uniform(start, start + 5, 400))
    for now in times.tolist():
        radio.take(str(noise.choice(list('abc'))), bool(noise.random() < 0.7), bytes(1000), now)
    until = radio.deadline
    while radio.deadline < math.inf:
        until = radio.deadline
        radio.release(until)
    forwarder._report(0.0, until)
    began, periods = read_periods(written.getvalue().splitlines())
    found = link_use(traces, True, began, periods,
                     {name: np.array([(start, until)]) for name in traces})
    for name, counters in radio.report(until).items():
        assert found[name].used * found[name].offered_mbit == pytest.approx(
            counters['uplink']['bytes'] * 8e-6, rel=1e-3)
        assert found[name].used < 1


def test_the_line_of_a_push_is_read_again():
    push = SimpleNamespace(transfer=SimpleNamespace(iteration=7), started=1.25, closed=2.5,
                           bytes_sent=99)
    line = f'[INFO] [1.5] [robot1.worker]: {push_line(push, 3.125)}'
    assert pushes_of(['nothing', line]).tolist() == [[1.25, 3.125]]
