"""Tests of traces that are recorded from transfers or from the output of `iw`."""

import math

import numpy as np
import pytest
from fleet_env.errors import TraceError
from fleet_env.links.bucket import TokenBucket
from fleet_env.links.trace import LinkTrace
from fleet_env.links.trace_recorder import TraceRecorder, parse_iw
from hypothesis import given
from hypothesis import strategies as st

LINK = '''\
Connected to 04:F0:21:AA:BB:CC (on wlan0)
\tSSID: garden
\tfreq: 5180
\tRX: 1523 bytes (12 packets)
\tsignal: -52 dBm
\trx bitrate: 292.5 MBit/s VHT-MCS 7 80MHz short GI VHT-NSS 1
\ttx bitrate: 433.3 MBit/s VHT-MCS 9 80MHz short GI VHT-NSS 1
'''
DUMP = '''\
Station 04:f0:21:aa:bb:cc (on wlan0)
\tinactive time:\t20 ms
\ttx bitrate:\t65.0 MBit/s MCS 7
Station 04:f0:21:aa:bb:dd (on wlan0)
\ttx bitrate:\t(unknown)
'''


def test_a_link_that_is_always_in_use_is_found_again():
    trace = LinkTrace([0, 1, 2, 3], [8, 2, 40, 16], 4)
    bucket, recorder, begin = TokenBucket(trace), TraceRecorder(.5), 0.0
    while begin < 3.99:
        end = bucket.offer(2500, begin)
        recorder.add(begin, end, 2500)
        begin = end
    found = recorder.trace()
    assert found.rates[:8].tolist() == pytest.approx([8, 8, 2, 2, 40, 40, 16, 16], rel=.03)


def test_gaps_keep_the_rate_and_nothing_carried_is_no_link():
    recorder = TraceRecorder(1)
    recorder.add(104, 105, 0)             # the link was dead
    recorder.add(100.5, 100.75, 250_000)  # 2 Mbit in 0.25 s
    assert recorder.trace().rates.tolist() == [8, 8, 8, 0, 0]
    assert recorder.trace().times.tolist() == [0, 1, 2, 3, 4]


def test_transfers_at_the_same_time_add_up():
    recorder = TraceRecorder(1)
    recorder.add(0, 2, 500_000)
    recorder.add(1, 2, 500_000)
    assert recorder.trace().rates.tolist() == pytest.approx([2, 6])


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(.01, 10), st.floats(0, 1e6)), min_size=1,
                max_size=20), st.floats(.1, 5))
def test_no_more_is_found_than_was_carried_where_the_link_was_busy(transfers, step):
    recorder = TraceRecorder(step)
    for begin, length, nbytes in transfers:
        recorder.add(begin, begin + length, nbytes)
    trace = recorder.trace()
    assert np.isfinite(trace.rates).all() and (trace.rates >= 0).all()
    peak = sum(nbytes * 8e-6 / length for _, length, nbytes in transfers)
    assert trace.rates.max() <= peak * (1 + 1e-6) + 1e-6


def test_steps_that_would_fill_the_memory_are_refused():
    recorder = TraceRecorder(1e-9)
    recorder.add(0, 60, 1000)
    with pytest.raises(TraceError, match='choose longer steps'):
        recorder.trace()


def test_a_trace_without_transfers_is_refused():
    recorder = TraceRecorder()
    recorder.add(3, 3, 10)
    with pytest.raises(TraceError, match='nothing was recorded'):
        recorder.trace()


@pytest.mark.parametrize('transfer', [(2, 1, 5), (0, 1, -1), (0, math.inf, 1), (0, 1, math.nan)])
def test_impossible_transfers_are_refused(transfer):
    with pytest.raises(TraceError, match='a transfer must have'):
        TraceRecorder().add(*transfer)
    with pytest.raises(TraceError, match='step'):
        TraceRecorder(0)


def test_output_of_iw_is_parsed():
    assert parse_iw(LINK) == {'04:f0:21:aa:bb:cc': 433.3}
    dump = parse_iw(DUMP)
    assert dump.pop('04:f0:21:aa:bb:cc') == 65 and [*map(math.isnan, dump.values())] == [True]
    assert parse_iw('Not connected.\n') == parse_iw('') == {}
    with pytest.raises(TraceError, match="'usage: iw' is not what"):
        parse_iw('usage: iw\n')
