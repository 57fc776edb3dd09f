"""`replay` plays a record as the authors' script does.

With seed 0, it holds each sample as long as in the published runs.
"""

from pathlib import Path

import numpy as np
import pytest
from fleet_env.errors import TraceError
from fleet_env.links.trace import LinkTrace, read_trace
from rog_studies.replay import PUBLISHED_STARTS, replay

RECORD = Path(__file__).parents[3] / 'shared/data/traces/rog_outdoors_record.txt'

# For each worker: by how many seconds each of the first samples was prolonged. The numbers are from
# the published logs bw_replay-1.txt to bw_replay-4.txt.
HOLDS = {1: [0, 79, 0, 87, 90, 18, 11, 43, 39, 0, 79, 70, 29, 0],
         2: [0, 0, 0, 71, 0, 0, 0, 0, 80, 0, 0, 0, 78, 45],
         3: [42, 77, 0, 41, 0, 0, 0, 70, 0, 79, 0, 41, 0, 0],
         4: [20, 43, 0, 0, 0, 70, 50, 0, 0, 35, 78, 22, 0, 80]}


def ramp(n=60):
    return LinkTrace(np.arange(n) / 2, np.arange(n) + 1.0)


@pytest.mark.parametrize('worker', HOLDS)
def test_seed_0_holds_what_the_published_runs_held(worker):
    link = replay(ramp(), worker, 0, 1e4)
    assert np.diff(link.times[:15]).tolist() == [hold + .5 for hold in HOLDS[worker]]


@pytest.mark.parametrize('worker, start, first', [(1, None, 10), (4, None, 40), (2, 0, 0),
                                                  (9, None, 57)])
def test_workers_start_at_sixths_of_the_record_and_wrap_before_its_end(worker, start, first):
    link = replay(ramp(), worker, 3, 2000, hold_probability=0, start=start)
    assert link.rates[:200].tolist() == pytest.approx(
        [.7 * ((first + i) % 58 + 1) for i in range(200)])
    assert np.diff(link.times) == pytest.approx(np.full(len(link) - 1, .5))
    assert link.period == 2000


def test_a_sample_of_zero_was_no_limit_there():
    record = LinkTrace([0, .5, 1, 1.5], [0, 2, 1, 1])
    assert replay(record, 1, 0, .4, start=0).rates.tolist() == [59]
    assert replay(record, 1, 1, 2, .5, 0, start=0, zero_as=0).rates.tolist() == [0, 1, 0, 1]


def test_another_seed_or_worker_holds_otherwise_and_the_same_alike():
    times = {(w, s): tuple(replay(ramp(), w, s, 3600, start=0).times)
             for w in (1, 2) for s in (1, 2)}
    assert len(set(times.values())) == 4
    assert times[1, 1] == tuple(replay(ramp(), 1, 1, 3600, start=0).times)


@pytest.mark.parametrize('change', [{'worker': 0}, {'duration': 0}, {'hold_probability': 2},
                                    {'hold_low': 91}, {'overhead': -1}, {'start': -1},
                                    {'record': LinkTrace([0], [1])}])
def test_what_makes_no_sense_is_refused(change):
    with pytest.raises(TraceError):
        replay(**{'record': ramp(), 'worker': 1, 'seed': 0, 'duration': 10, **change})


def shares(links, duration):
    rates = np.array([link.rate_at(np.arange(.25, duration, .5)) for link in links])
    return [float(x) for x in ((rates < 5).mean(), (rates < 10).mean(),
                               (rates < 10).any(axis=0).mean(), rates.mean())]


@pytest.mark.skipif(not RECORD.is_file(), reason='the record is not on this machine')
def test_it_is_like_the_links_that_the_published_runs_logged():
    record = read_trace(RECORD)

    def links(seed):
        return [replay(record, worker, seed, 3600, start=start)
                for worker, start in enumerate(PUBLISHED_STARTS, 1)]
    assert shares(links(0), 3600) == pytest.approx([.343, .397, .963, 57.0], rel=.01)
    others = np.mean([shares(links(seed), 3600) for seed in range(1, 21)], axis=0)
    assert others.tolist() == pytest.approx([.343, .397, .963, 57.0], rel=.1)
