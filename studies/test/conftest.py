"""Fixtures that several tests of the studies share."""

import made_up_runs
import pytest


@pytest.fixture
def made_up(monkeypatch):
    """Replace runs by invented results; return the list of requested runs: (method, seed)."""
    asked = []

    def simulate(fleet, out, progress, server_every):
        asked.append((fleet.training.sync, fleet.seed))
        made_up_runs.record(out, fleet.training.sync, fleet.seed, 60 * fleet.minutes,
                            len(fleet.robots))

    monkeypatch.setattr('rog_sim.simulation.simulate', simulate)
    return asked
