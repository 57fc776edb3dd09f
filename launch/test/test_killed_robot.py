"""What a robot had computed and not sent when its process ended comes back over real DDS, once.

Every gradient is 1 everywhere, so a row says how many have reached it: those in the master rows of
the checkpoint, and those that the robot still keeps at the end. The link carries a part of the rows
at a time, so that they differ in what is still to be sent.
"""

import numpy as np
import pytest
from counting_task import RATE, Counting
from fleet_env.durable import Kept
from fleet_env.errors import DurableError
from fleet_under_test import Fleet
from rog_core.model.flat import rows_of, trainable
from rog_ps import checkpoint
from rog_ps.directory import kept
from rog_worker.unsent import read

pytestmark = pytest.mark.long

SETTINGS = {'task': 'counting_task:Counting', 'codec': 'raw', 'momentum': 0.0, 'weight_decay': 0.0,
            'learning_rate': RATE, 'batch_size': 1}
OF_SERVER = {'sync': 'rsp:8', 'resume': True}
OF_ROBOT = {'save_every': 0.05, 'pushes': True, 'link.emulate': True, 'link.trace': '',
            'link.rate': 6.0}


class Counted(Fleet):
    """A server and one robot; what is in their files."""

    def __init__(self, folder):
        super().__init__(folder, robots=1)
        self.rows = rows_of(trainable(Counting().model()), 'row', 'raw')
        self.saves = Kept(self.out / 'robots' / 'robot1', 'unsent', '.safetensors')

    def begin(self, *names):
        for name in names:
            self.start(name, **SETTINGS, **(OF_SERVER if name == 'server' else OF_ROBOT))

    def end(self):
        self.interrupt('server')
        assert [self.ended(name) for name in ('server', 'robot1')] == [0, 0]

    def saved(self):
        """The newest save; None where there is none, or it has just been replaced."""
        try:
            found = self.saves.newest()
        except DurableError:
            return None
        return found and read(found, 'robot1', self.rows)

    def until_much_is_unsent(self):
        """Until a save holds rows in which several gradients wait, and others with none."""
        def is_it():
            unsent = self.saved()
            return unsent is not None and unsent.attempt > 6 \
                and unsent.pending.max() >= 4 * RATE > 0 == unsent.pending.min()
        self.until(is_it, 'a save with much to send')

    def pushed(self):
        """Pushes of all processes of the robot, each with one gradient, that were over."""
        return self.log('robot1').count(': push ')

    def gradients(self):
        """Of each element: those that count, and those that are kept."""
        master, _, _ = checkpoint.read(kept(self.out).newest(), self.rows)
        total = (self.saved().pending - master) / RATE
        assert (total == np.rint(total)).all()
        return total


def test_one_that_is_killed_loses_what_is_younger_than_its_save(tmp_path):
    with Counted(tmp_path) as fleet:
        fleet.begin('server', 'robot1')
        fleet.until_much_is_unsent()
        fleet.kill('robot1')
        saved = fleet.saved()  # by then it had made as many gradients as pushes
        fleet.until(lambda: fleet.state('robot1') == 'away', 'the robot is missed')
        fleet.begin('robot1')
        fleet.until_trained('robot1', iterations=3)
        fleet.end()
        total = fleet.gradients()
        assert total.min() >= saved.attempt > 6
        assert total.max() <= fleet.pushed() + 2  # one of each life may not have been over
        assert 'brought_back: ' in fleet.log('robot1')


def test_a_fleet_that_is_stopped_and_resumed_loses_nothing(tmp_path):
    with Counted(tmp_path) as fleet:
        for life in range(3):
            fleet.begin('server', 'robot1')
            if life:
                fleet.until_trained('robot1', iterations=4)
            else:
                fleet.until_much_is_unsent()
            fleet.end()
            total = fleet.gradients()
            assert total.min() == total.max() > 6
        assert fleet.log('robot1').count('brought_back: ') == 2


def test_killed_with_its_server_it_brings_back_nothing_that_counts_already(tmp_path):
    with Counted(tmp_path) as fleet:
        for _ in range(3):
            fleet.begin('server', 'robot1')
            fleet.until_much_is_unsent()
            fleet.until_trained('robot1', iterations=2)
            fleet.kill('robot1')
            fleet.kill('server')
        fleet.begin('server', 'robot1')
        fleet.until_trained('robot1', iterations=4)
        fleet.end()
        assert fleet.log('robot1').count('brought_back: ') == 3
        assert fleet.gradients().max() <= fleet.pushed() + 4
