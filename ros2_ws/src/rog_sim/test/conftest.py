"""Provides a fleet of two robots for tests whose runs are invented instead of simulated."""

import pytest
from fleet_env.settings.fleet_file import read_fleet


@pytest.fixture
def fleet(tmp_path):
    path = tmp_path / 'toy.yaml'
    path.write_text('name: toy\nseed: 1\nminutes: 10\nrobots: [{name: robot1}, {name: robot2}]\n')
    return read_fleet(path)
