"""The fleet of the published runs, and its results in virtual time."""

import os
from pathlib import Path

import numpy as np
import pytest
import virtual_fleet
from fleet_env.links.trace import LinkTrace, read_trace
from fleet_env.settings.fleet_file import dump_fleet, load_fleet
from rog_core.errors import ConfigError
from rog_core.model.partition import partition_of
from rog_sim.simulation import simulate
from rog_sim.traffic import MODELS, traffic_factor
from rog_studies.calibration import TABLE, measure, published_fleet

RECORD = Path(__file__).parents[3] / 'shared/data/traces/rog_outdoors_record.txt'


def made_up():
    """Return a record of random rates, so long that every published worker can begin in it."""
    noise = np.random.default_rng(4)
    return LinkTrace(np.arange(1400) * .5, noise.uniform(1.0, 90.0, 1400))


def test_the_fleet_of_the_published_runs_is_a_fleet_file_like_any_other(tmp_path):
    fleet = published_fleet(made_up(), 2, tmp_path / 'links', minutes=1.0)
    path = tmp_path / 'published.yaml'
    path.write_text(dump_fleet(fleet))
    assert load_fleet(path) == fleet
    assert len({robot.link.trace for robot in fleet.robots}) == 4
    assert not fleet.channel.shared


def test_a_push_of_the_small_model_weighs_on_the_air_what_the_published_one_did():
    partition = partition_of([('w', (336, 475))])
    sizes = 2 + (475 + 7) // 8 + 1
    assert traffic_factor('convmlp-m', partition) * 336 * sizes == \
        pytest.approx(MODELS['convmlp-m'].push_bytes)
    assert traffic_factor('', partition) == 1.0
    with pytest.raises(ConfigError, match='convmlp-m'):
        traffic_factor('resnet', partition)


def test_a_code_that_takes_more_room_takes_more_on_the_air(tmp_path):
    sent = {}
    for codec in ('onebit', 'raw'):
        fleet = virtual_fleet.fleet_of(tmp_path, 'bsp', .2, codec=codec)
        sent[codec] = [robot.bytes_sent / robot.iterations
                       for robot in simulate(fleet).robots.values() if robot.iterations]
    assert min(sent['raw']) > 8 * max(sent['onebit'])


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get('ROG_SLOW'), reason='takes minutes; set ROG_SLOW=1')
@pytest.mark.skipif(not RECORD.exists(), reason=f'needs the published record, {RECORD}')
@pytest.mark.parametrize('row', TABLE, ids=lambda row: row.sync)
def test_the_iterations_of_an_hour_are_the_published_ones(row, tmp_path):
    (found,) = measure(read_trace(RECORD), 10, tmp_path, [row], workers=1)
    assert abs(found.deviation) <= row.tolerance, (found.mean, row.iterations)
