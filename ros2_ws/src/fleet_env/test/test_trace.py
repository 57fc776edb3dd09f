"""Link traces: reading, writing, integrating and shifting."""

import math
from pathlib import Path

import numpy as np
import pytest
from fleet_env.errors import TraceError
from fleet_env.links.trace import LinkTrace, read_trace, write_trace
from hypothesis import given
from hypothesis import strategies as st
from trace_strategies import traces

RECORDS = Path('/work/shared/data/traces')


def test_a_sample_holds_until_the_next_and_the_trace_repeats():
    trace = LinkTrace([0, 1, 3], [10, 0, 5], period=4)
    rates = trace.rate_at([0, .99, 1, 2.9, 3, 3.9, 4, 5, -1])
    assert rates.tolist() == [10, 10, 0, 0, 5, 5, 10, 0, 5]
    assert trace.rate_at(1.5).shape == ()
    assert trace.mean == pytest.approx((10 + 5) / 4)


def test_the_last_sample_lasts_as_long_as_the_one_before():
    assert LinkTrace([0, 1, 3], [1, 2, 3]).period == 5
    assert LinkTrace([7], [3]).rate_at([0, 100]).tolist() == [3, 3]


@given(traces(), st.floats(0, 50))
def test_carried_is_the_integral_of_the_rate(trace, t):
    edges = np.unique(np.concatenate([trace.times + k * trace.period for k in range(0, 2)]))
    edges = np.concatenate([edges + m * 2 * trace.period
                            for m in range(int(t / (2 * trace.period)) + 1)])
    edges = np.concatenate([edges[edges < t], [t]]) if t > 0 else np.array([0.0])
    middles = (edges[1:] + edges[:-1]) / 2
    assert trace.carried(t) == pytest.approx(
        float((trace.rate_at(middles) * np.diff(edges)).sum()), rel=1e-6, abs=1e-6)


@given(traces(), st.floats(0.001, 2000))
def test_time_to_carry_is_the_earliest_time(trace, mbit):
    t = trace.time_to_carry(mbit)
    if trace.mean == 0:
        assert t == math.inf
        return
    assert trace.carried(t) == pytest.approx(mbit, rel=1e-7)
    before = t - 1e-3 * max(1, t)
    assert before <= 0 or trace.carried(before) < mbit


@given(traces(), st.floats(-20, 20), st.floats(0, 40))
def test_shifted_starts_later_in_the_same_trace(trace, offset, t):
    shifted = trace.shifted(offset)
    assert shifted.period == trace.period
    assert shifted.mean == pytest.approx(trace.mean, abs=1e-6)
    phase = (t + offset) % trace.period
    if np.abs(np.append(trace.times, trace.period) - phase).min() > 1e-6:
        assert shifted.rate_at(t) == trace.rate_at(t + offset)


def test_scaled_multiplies_every_rate():
    assert LinkTrace([0, 1], [10, 0]).scaled(.5).rates.tolist() == [5, 0]
    with pytest.raises(TraceError, match='scale'):
        LinkTrace([0], [1]).scaled(-1)


@given(traces())
def test_a_written_trace_reads_back(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp('trace') / 'link.txt'
    write_trace(path, trace, 'recorded\nhere')
    back = read_trace(path)
    assert back.times.tolist() == trace.times.tolist()
    assert back.rates.tolist() == trace.rates.tolist()


def test_comments_and_empty_lines_are_skipped(tmp_path):
    path = tmp_path / 'link.txt'
    path.write_text('# seconds Mbit/s\n\n10 5  # good\n11\t0\n')
    trace = read_trace(path)
    assert trace.times.tolist() == [0, 1] and trace.rates.tolist() == [5, 0]


def test_a_byte_order_mark_is_skipped(tmp_path):
    path = tmp_path / 'link.txt'
    path.write_text('0 5\n1 2\n', encoding='utf-8-sig')
    assert read_trace(path).rates.tolist() == [5, 2]


@pytest.mark.parametrize('text, line, words', [
    ('', 0, 'no samples'),
    ('# nothing\n', 0, 'no samples'),
    ('0 1\n1 x\n', 2, 'not a number'),
    ('0 1\n1 -2\n', 2, 'negative'),
    ('0 1\n1 nan\n', 2, 'not finite'),
    ('0 inf\n', 1, 'not finite'),
    ('0 1\n2 1\n1 1\n', 3, 'come after'),
    ('0 1\n0 2\n', 2, 'come after'),
    ('0 1\n1\n', 2, 'columns'),
    ('0 1 2\n', 1, 'columns'),
])
def test_a_bad_file_is_refused_with_its_line(tmp_path, text, line, words):
    path = tmp_path / 'link.txt'
    path.write_text(text)
    with pytest.raises(TraceError, match=words) as caught:
        read_trace(path)
    assert caught.value.file == str(path) and caught.value.line == line
    assert str(path) in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(TraceError, match='cannot be read'):
        read_trace(tmp_path / 'none.txt')


@pytest.mark.parametrize('times, rates, period', [
    ([], [], None), ([0, 1], [1], None), ([0, 0], [1, 1], None), ([0], [-1], None),
    ([0], [math.nan], None), ([0, 1], [1, 1], 1.0), ([0], [1], math.inf)])
def test_impossible_samples_are_refused(times, rates, period):
    with pytest.raises(TraceError):
        LinkTrace(times, rates, period)


@pytest.mark.skipif(not RECORDS.is_dir(), reason='the records are not on this machine')
def test_the_published_records_read():
    assert read_trace(RECORDS / 'rog_outdoors_record.txt').mean == pytest.approx(73.3, abs=.1)
    assert read_trace(RECORDS / 'lop_indoors.txt').mean == pytest.approx(84.7, abs=.1)
