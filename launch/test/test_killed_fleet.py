"""All processes of a fleet are killed together, several times.

Each time, the fleet resumes from its directory. Events, not times, decide when the
processes are killed. The test kills them when they have logged a random number of lines
since their start. A process logs one line when it joins, and one line for each
transfer. With a probability of one half, the test then also waits until a checkpoint is
half written.
"""

import math
import os
import random

import numpy as np
import pytest
from fleet_emulation.chaos_watch import checksums, mirrored
from fleet_env.records.events import Iteration, read_run
from fleet_env.records.summary import read_summary
from fleet_env.versions import MODEL_FILE, Versions, check_digest
from fleet_testing import eventually
from fleet_under_test import SEED, Fleet
from rog_core.model.flat import partition_of_model, unflatten
from rog_ps import checkpoint
from rog_ps.directory import kept
from tiny_task import Tiny

pytestmark = pytest.mark.long

NAMES = ['server', 'robot1', 'robot2']
BOUND = 4                # the staleness bound of rsp:4
LINES = 300              # maximum number of lines that the processes log between two kills
KILLS = 20 if os.environ.get('ROG_SLOW') else 5


class Killed:
    """A fleet whose processes are killed together; stores the last checkpoint's state."""

    def __init__(self, fleet):
        self.fleet, self.chance = fleet, random.Random(15)
        self.training = fleet.fleet.training
        self.partition = partition_of_model(Tiny().model(), self.training.granularity,
                                            self.training.codec)
        self.iteration, self.updated_at = 0, np.zeros(self.partition.rows, np.int64)
        self.metric = 0.0
        self.before = dict.fromkeys(NAMES, 0)  # number of log lines before the last start

    def start(self):
        self.before = {name: len(self.lines(name)) for name in NAMES}
        # a status of the killed server may still be on its way
        self.former = self.fleet.status and self.fleet.status.incarnation
        self.fleet.status = None
        for name in NAMES:
            more = {'resume': True} if name == 'server' else {}
            self.fleet.start(name, checksums=True, **more)

    def lines(self, name):
        path = self.fleet.log_path(name)
        return path.read_text().splitlines() if path.exists() else []

    def logged(self):
        """Return the number of lines logged since the start."""
        return sum(len(self.lines(name)) - self.before[name] for name in NAMES)

    def until_a_random_moment(self):
        moment = round(math.exp(self.chance.uniform(0.0, math.log(LINES))))

        def has_come():
            self.check_status()
            return self.logged() >= moment

        self.fleet.until(has_come, f'{moment} lines')
        if self.chance.random() < 0.5:
            eventually(self.writes, lambda: 'a checkpoint is written', lambda: None)

    def writes(self):
        """Return whether a checkpoint is half written."""
        out = self.fleet.out
        return out.exists() and any(name.startswith('.checkpoint-') for name in os.listdir(out))

    def kill(self):
        for name in self.chance.sample(NAMES, len(NAMES)):
            self.fleet.processes[name].kill()
        for name in NAMES:
            self.fleet.ended(name)

    # -- checks

    def check_status(self):
        """Check that the staleness is within the bound and that no progress is lost."""
        status = self.fleet.status
        if status is not None and status.incarnation != self.former \
                and any(r.state == 'training' for r in status.robots):
            assert status.fastest - status.slowest <= BOUND, status
            assert status.fastest >= self.iteration, status

    def check_start(self):
        """Check that a started server has resumed from the newest checkpoint of the directory."""
        said = [line for line in self.lines('server')[self.before['server']:]
                if 'going on from' in line or 'accuracy at the start' in line]
        assert all(f'iteration {self.iteration}, ' in line for line in said if self.iteration), said

    def check_directory(self):
        """Check that the newest checkpoint is undamaged and not older than at the previous check.

        Return the metric of its model; 0 if there is no checkpoint.
        """
        versions = Versions(self.fleet.out / 'models')
        assert len(versions.listed()) == len(versions.numbers()), versions.skipped
        for number in versions.numbers():
            file = versions.path(number) / MODEL_FILE
            check_digest(file, file.read_bytes())
        store = kept(self.fleet.out)
        found = store.newest()
        assert not store.skipped
        if found is None:
            assert not self.iteration, 'there was a checkpoint'
            return 0.0
        master, state, _ = checkpoint.read(found, self.partition)
        assert self.iteration <= state.iteration
        assert np.all(self.updated_at <= state.updated_at)
        assert state.updated_at.max(initial=0) <= state.iteration
        self.iteration, self.updated_at = state.iteration, state.updated_at
        task = Tiny(SEED)
        model = task.model()
        unflatten(model, master)
        return task.evaluate(model)


def test_a_fleet_that_is_killed_again_and_again_goes_on_where_it_was(tmp_path):
    with Fleet(tmp_path, robots=2) as fleet:
        killed, best = Killed(fleet), 0.0
        for _ in range(KILLS):
            killed.start()
            killed.until_a_random_moment()
            killed.kill()
            killed.check_start()
            metric = killed.check_directory()
            assert metric >= best - 0.02, 'what was learnt is lost'
            best = max(metric, best)
        killed.start()
        fleet.until_trained('robot1', 'robot2', iterations=30)
        fleet.interrupt('server')
        assert [fleet.ended(name) for name in NAMES] == [0, 0, 0]
        killed.check_start()
        assert killed.check_directory() >= best and killed.iteration > 30
        sums = {name: checksums(killed.lines(name)) for name in NAMES}
    compared, different = mirrored(sums.pop('server'), sums.values())
    assert compared > 30 and not different
    assert len(list(fleet.out.glob('checkpoint-*'))) == fleet.fleet.server.keep
    assert read_summary(fleet.out).notes['reason'] == 'interrupted'
    assert any(isinstance(event, Iteration) for event in read_run(fleet.out))
