"""Generated traces resemble the published links."""

from pathlib import Path

import numpy as np
import pytest
from fleet_env.errors import TraceError
from fleet_env.links.generate import PROFILES, generate
from fleet_env.links.statistics import autocorrelation, change_interval, describe
from fleet_env.links.trace import LinkTrace, read_trace

RECORD = Path('/work/shared/data/traces/rog_outdoors_record.txt')

# Statistics from facts.md, Links: mean, percentiles, autocorrelation at 0.5 s and at 10 s. No
# single link has all of them. Indoors, the percentiles are of a record with the mean 85, not 93.
# Outdoors, mean and percentiles are of ROG's record, whose autocorrelations are .93 and .11; .90 is
# of LOPInfer's record. No record in steps of 0.5 s can show a 20 % change every 0.4 s; the records
# show one every 0.97 to 1.3 s.
PUBLISHED = {
    'indoor': (93, {1: 7.5, 5: 12, 25: 62, 50: 84, 75: 107, 95: 168, 99: 230}, {.5: .78, 10: .58}),
    'outdoor': (73, {5: .8, 25: 4.2, 50: 43, 75: 133, 95: 213, 99: 256}, {.5: .93, 10: .90}),
}


@pytest.mark.parametrize('name', PUBLISHED)
def test_built_in_traces_match_what_was_published(name):
    mean, percentiles, correlation = PUBLISHED[name]
    found = describe(generate(name))
    assert found.mean == pytest.approx(mean, rel=.1)
    for share, rate in percentiles.items():
        assert found.percentiles[share] == pytest.approx(rate, rel=.1)
    for lag, value in correlation.items():
        assert found.autocorrelation[lag] == pytest.approx(value, rel=.1)
    assert found.change_20 == pytest.approx(.4, rel=.1)
    assert found.change_40 == pytest.approx(1.2, rel=.1)


@pytest.mark.parametrize('name', PUBLISHED)
@pytest.mark.parametrize('seed', range(1, 6))
def test_other_seeds_stay_close(name, seed):
    mean, percentiles, correlation = PUBLISHED[name]
    found = describe(generate(name, seed))
    assert found.mean == pytest.approx(mean, rel=.1)
    for share, rate in percentiles.items():
        assert found.percentiles[share] == pytest.approx(rate, rel=.1)
    for lag, value in correlation.items():
        assert found.autocorrelation[lag] == pytest.approx(value, rel=.25)
    assert found.change_20 == pytest.approx(.4, rel=.25)
    assert found.change_40 == pytest.approx(1.2, rel=.25)


def test_edge_links_wander_between_3_and_5_megabytes_a_second():
    trace = generate('edge')
    assert trace.mean == pytest.approx(32) and trace.rates.std() > 3
    assert 23.9 <= trace.rates.min() < 25 and 39 < trace.rates.max() <= 40.1


def test_a_steady_link_is_steady():
    assert set(generate('steady').rates.tolist()) == {100.0}


def test_outdoor_fades_are_as_long_as_those_of_the_record():
    found = describe(generate('outdoor_fades'), step=.5)
    assert found.below_5 == pytest.approx(.31, abs=.03)
    assert found.below_10 == pytest.approx(.38, abs=.03)
    assert found.spell_mean == pytest.approx(4.9, rel=.15)
    assert found.spell_max < 40
    assert found.change_20 == pytest.approx(.96, rel=.1)
    assert found.change_40 == pytest.approx(1.43, rel=.1)


@pytest.mark.skipif(not RECORD.is_file(), reason='the record is not on this machine')
def test_outdoor_fades_are_like_the_record():
    record, ours = describe(read_trace(RECORD), .5), describe(generate('outdoor_fades'), .5)
    assert ours.mean == pytest.approx(record.mean, rel=.02)
    assert ours.std == pytest.approx(record.std, rel=.05)
    for share in (5, 25, 50, 75, 95):
        assert ours.percentiles[share] == pytest.approx(record.percentiles[share], rel=.1)
    for lag in (.5, 10):
        assert ours.autocorrelation[lag] == pytest.approx(record.autocorrelation[lag], abs=.08)


def test_different_seeds_give_different_traces():
    assert generate('indoor', 3).rates.tolist() == generate('indoor', 3).rates.tolist()
    assert generate('indoor', 3).rates.tolist() != generate('indoor', 4).rates.tolist()


def test_a_trace_has_600_seconds_in_steps_of_a_tenth():
    trace = generate('outdoor')
    assert len(trace) == 6000 and trace.period == pytest.approx(600)
    assert np.diff(trace.times) == pytest.approx(np.full(5999, .1))


def test_a_trace_repeats_without_a_jump():
    trace = generate(PROFILES['outdoor'], 2)
    jumps = np.abs(np.diff(trace.rates))
    assert abs(trace.rates[0] - trace.rates[-1]) <= jumps.max()


def test_impossible_requests_are_refused():
    with pytest.raises(TraceError, match='indoor, outdoor'):
        generate('garage')
    with pytest.raises(TraceError, match='duration'):
        generate('indoor', duration=1)
    with pytest.raises(TraceError, match='more than 10000000 steps'):
        generate('indoor', duration=1e15)
    with pytest.raises(TraceError, match='seed is -1'):
        generate('indoor', seed=-1)


def test_times_in_nanoseconds_are_refused():
    """A record with times in nanoseconds is refused; it filled the memory in an earlier version."""
    with pytest.raises(TraceError, match='are its times in seconds'):
        describe(LinkTrace([0, 10**15], [5, 6]))


def test_change_interval_counts_from_the_last_change():
    assert change_interval(np.array([10, 11, 13, 14, 16.]), .2, .5) == pytest.approx(1.0)
    assert change_interval(np.ones(5), .2, .5) == float('inf')


def test_autocorrelation_of_nothing_is_unknown():
    assert np.isnan(autocorrelation(np.ones(10), 2))
    assert np.isnan(autocorrelation(np.arange(5.), 9))


def test_spells_are_measured():
    found = describe(LinkTrace([0, 1, 3], [50, 0, 50], 4), step=.5, lags=(.5,))
    assert found.spell_mean == found.spell_max == 2.0
    assert found.below_10 == .5
