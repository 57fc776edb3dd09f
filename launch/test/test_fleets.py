"""Every built-in fleet file can be loaded, written and read back; its task can be created."""

from pathlib import Path

import pytest
import rog_bringup
from fleet_env.settings.fleet_file import dump_fleet, link_trace, read_fleet
from rog_tasks.task import load_task

FLEETS = sorted((Path(rog_bringup.__file__).parent / 'fleets').glob('*.yaml'))


@pytest.mark.parametrize('file', FLEETS, ids=lambda file: file.stem)
def test_a_shipped_fleet_is_complete(file, tmp_path):
    fleet = read_fleet(file)
    assert fleet.name == file.stem and fleet.description
    copy = tmp_path / 'copy.yaml'
    copy.write_text(dump_fleet(fleet))
    assert read_fleet(copy) == fleet
    assert all(link_trace(robot.link).mean > 0 for robot in fleet.robots)
    training = fleet.training
    task = load_task(training.task, training.task_options, fleet.seed, training.batch_size)
    assert task.loss(task.model(), next(iter(task.batches(0, len(fleet.robots))))).isfinite()
