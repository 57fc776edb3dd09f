"""What a robot keeps on its disk comes back as it was, or is said to be lost."""

import subprocess
import sys
import time

import numpy as np
import pytest
from fleet_env.durable import Kept
from fleet_env.errors import DurableError
from rog_core.loopback import Loopback
from rog_core.methods import Team
from rog_core.model.partition import partition_of
from rog_core.protocol.config import SgdConfig
from rog_worker.unsent import Keeper

SGD = SgdConfig(0.1, 0.9, 0.0, True)
HOLD = """
import sys
from rog_worker.unsent import Keeper
keeper = Keeper(sys.argv[1], 'robot1', 0.0, None)
print(flush=True)
sys.stdin.read()
"""


class Log(list):
    def warning(self, text):
        self.append(text)

    info = warning


class Robot:
    """A robot in a fleet of one, whose gradients are noise."""

    def __init__(self, sync='asp'):
        self.loop = Loopback.small([('layer', (40, 30)), ('bias', (8,))], sync,
                                   Team({'robot1': 1.0}, 'onebit', 0.0))
        self.machine = self.loop.workers['robot1']
        self.noise = np.random.default_rng(3)
        self.loop.start()

    def train(self, iterations=1):
        elements = self.machine.partition.elements
        for _ in range(iterations):
            gradient = self.noise.standard_normal(elements).astype(np.float32)
            self.loop.want('robot1', self.machine.on_gradient(gradient, SGD, self.loop.now))
            self.loop.deliver()
        return self


@pytest.fixture
def log():
    return Log()


@pytest.fixture
def keeper(tmp_path, log):
    made = []

    def make(every=0.0, robot='robot1'):
        made.append(Keeper(str(tmp_path), robot, every, log))
        return made[-1]
    yield make
    for each in made:
        each.close()


def store(tmp_path):
    return Kept(tmp_path / 'robots' / 'robot1', 'unsent', '.safetensors')


def saved(tmp_path):
    return store(tmp_path).numbers()


def until_written(keeper):
    keeper._writing.result(30)


def test_it_comes_back_as_it_was(keeper, log):
    robot = Robot().train(3)
    first = keeper()
    first.finish(robot.machine)
    until_written(first)
    found, unsent = keeper().former(robot.machine.partition), robot.machine.unsent()
    assert (found.incarnation, found.attempt) == (robot.machine.incarnation, 3)
    assert (found.pending == unsent.pending).all() and found.pending.any()
    assert (found.momentum == unsent.momentum).all() and found.momentum.any()
    assert not log


def test_of_coded_gradients_nothing_is_kept_and_that_is_said_once(keeper, log, tmp_path):
    robot = Robot('gc:0')
    first = keeper(every=1000.0)
    for late in (2000, 4000):
        robot.train()
        first.look(robot.machine, time.monotonic() + late)
    assert saved(tmp_path) == []
    assert log == ['what is not sent is not kept: with gc:0 it is of no use in another round']


def test_where_there_is_none_nothing_is_said(keeper, log):
    assert keeper().former(Robot().machine.partition) is None and not log


def test_of_a_robot_that_has_computed_nothing_nothing_is_written(keeper, tmp_path):
    first = keeper()
    machine = Loopback.small([('layer', (4, 3))], 'asp', Team({'robot1': 1.0}, 'onebit', 0.0)
                             ).workers['robot1']
    first.finish(machine)
    assert saved(tmp_path) == []


def test_it_is_written_when_it_is_time_and_only_if_it_has_changed(keeper, tmp_path):
    robot, begun = Robot().train(), time.monotonic()
    first = keeper(every=1000.0)
    first.look(robot.machine, begun + 500)
    assert saved(tmp_path) == []
    first.look(robot.machine, begun + 1001)
    until_written(first)
    first.look(robot.machine, begun + 1500)
    first.look(robot.machine, begun + 5000)
    assert saved(tmp_path) == [1]
    robot.train()
    first.look(robot.machine, begun + 5000)
    until_written(first)
    assert saved(tmp_path) == [1, 2]
    robot.train()
    first.finish(robot.machine)
    until_written(first)
    assert saved(tmp_path) == [2, 3]  # two are kept


def test_a_push_under_way_is_waited_for_but_not_for_ever(keeper, tmp_path):
    robot, begun = Robot().train(), time.monotonic()
    elements = robot.machine.partition.elements
    robot.machine.on_gradient(np.ones(elements, np.float32), SGD, robot.loop.now)
    assert robot.machine.push is not None
    first = keeper(every=1000.0)
    first.look(robot.machine, begun + 1900)
    assert saved(tmp_path) == []
    first.look(robot.machine, begun + 2100)
    until_written(first)
    assert saved(tmp_path) == [1]


def test_if_the_newest_is_damaged_the_one_before_is_used(keeper, log, tmp_path):
    robot = Robot().train()
    first = keeper()
    for _ in range(2):
        first.finish(robot.train().machine)
        until_written(first)
    path = store(tmp_path).path(2)
    path.write_bytes(path.read_bytes()[:-1] + b'x')
    assert keeper().former(robot.machine.partition).attempt == 2
    assert len(log) == 1 and 'unsent-000002' in log[0] and 'the save before it is used' in log[0]


@pytest.mark.parametrize('damage', [b'', b'x' * 1000])
def test_if_all_are_damaged_that_is_said(keeper, log, tmp_path, damage):
    robot = Robot().train()
    first = keeper()
    first.finish(robot.machine)
    until_written(first)
    store(tmp_path).path(1).write_bytes(damage)
    assert keeper().former(robot.machine.partition) is None
    assert len(log) == 1 and log[0].startswith('what a former process had not sent is lost: ')


@pytest.mark.parametrize('shapes, changes, said', [
    ([('layer', (40, 31)), ('bias', (8,))], {}, 'its model must be'),
    (None, {'robot': 'robot2'}, 'its robot must be robot1, got robot2'),
    (None, {'schema': 'rog-unsent/9'}, 'its schema must be'),
    (None, {'attempt': -1}, 'out of range'), (None, {'attempt': 2 ** 32}, 'out of range'),
    (None, {'incarnation': 0}, 'out of range'), (None, {'incarnation': 'x'}, 'cannot be used'),
    (None, {'attempt': None}, 'cannot be used')])
def test_one_that_does_not_fit_is_not_used(keeper, log, tmp_path, shapes, changes, said):
    robot = Robot().train()
    first = keeper()
    first.finish(robot.machine)
    until_written(first)
    found = store(tmp_path).newest()
    store(tmp_path).write(found.payload, {**found.meta, **changes})
    partition = partition_of(shapes, 'row', 'onebit') if shapes else robot.machine.partition
    assert keeper().former(partition) is None
    assert len(log) == 1 and said in log[0]


def test_values_that_are_not_finite_are_not_used(keeper, log):
    robot = Robot().train()
    robot.machine.accumulator.pending[5] = np.nan
    first = keeper()
    first.finish(robot.machine)
    until_written(first)
    assert keeper().former(robot.machine.partition) is None
    assert 'not finite' in log[0]


def test_a_full_disk_costs_the_saves_and_is_said_once(keeper, log, tmp_path, monkeypatch):
    def full(*_):
        raise DurableError('no space left on device')
    robot = Robot().train()
    first = keeper(every=1000.0)
    with monkeypatch.context() as patched:
        patched.setattr(Kept, 'write', full)
        for late in (2000, 9000):
            first.look(robot.train().machine, time.monotonic() + late)
            until_written(first)
    assert log == ['what is not sent is not saved: no space left on device']
    first.finish(robot.machine)
    until_written(first)
    assert saved(tmp_path) == [1]


def test_two_processes_of_a_robot_cannot_have_it(tmp_path, keeper):
    other = subprocess.Popen([sys.executable, '-c', HOLD, str(tmp_path)], text=True,
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    other.stdout.readline()
    try:
        with pytest.raises(DurableError, match='another process of robot1.*still running'):
            keeper()
        keeper(robot='robot2')
    finally:
        other.kill()
        other.wait()
    keeper()


def test_a_directory_that_cannot_be_written_is_refused(tmp_path, log):
    (tmp_path / 'robots').write_text('a file')
    with pytest.raises(DurableError, match='cannot be written'):
        Keeper(str(tmp_path), 'robot1', 0.0, log)


def test_without_a_directory_nothing_is_kept(log, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    robot = Robot().train()
    nowhere = Keeper('', 'robot1', 1.0, log)
    nowhere.look(robot.machine, time.monotonic() + 100)
    nowhere.finish(robot.machine)
    assert nowhere.former(robot.machine.partition) is None
    nowhere.close()
    assert not log and not list(tmp_path.iterdir())
