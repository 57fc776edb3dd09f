"""`rog plot` draws the same figures from recorded statuses as from the run itself.

A damaged recording is refused.
"""

import math
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from fleet_env.records.events import Evaluation, Fault, Iteration, Start, read_run
from fleet_env.records.run_recorder import Recorder
from fleet_env.records.summary import read_summary
from fleet_testing import mostly_long
from rog_cli.display.bag import state_of_bag, write_run
from rog_cli.main import main
from rog_msgs.msg import FleetStatus, RobotStatus, TrainingStatus

rosbag2 = pytest.importorskip('rosbags.rosbag2')
MESSAGES = Path(__file__).parents[2] / 'rog_msgs/msg'
BEGIN = 1_700_000_000.0  # time at which the recorder was started, in seconds since 1970
KINDS = {'FleetStatus': 'rog_msgs/msg/FleetStatus', 'TrainingStatus': 'rog_msgs/msg/TrainingStatus',
         'String': 'std_msgs/msg/String'}


def run(robots=('robot1', 'robot2'), run=7, start=5.0, steps=12, fleet=True, space=''):
    """Yield the statuses of a run that begins before the recording and ends during the recording.

    Each item is a tuple (topic, time in seconds, status).
    """
    for step in range(steps):
        now = start + step
        if fleet:
            yield f'{space}/rog/fleet_status', now, FleetStatus(
                run=run, sync='rsp:4', elapsed=now, rows_total=20,
                state='stopped' if step == steps - 1 else 'training', robots=[
                    RobotStatus(robot=robot, state='away' if step == 6 and robot == 'robot2'
                                else 'training', why='no heartbeat' if step == 6 else '')
                    for robot in robots])
        for rank, robot in enumerate(robots):
            yield f'{space}/{robot}/training_status', now + 0.25, TrainingStatus(
                robot=robot, incarnation=rank + 1, sync='rsp:4', iteration=step + 1,
                state='stopped' if step == steps - 1 else 'computing', loss=1 / (step + 1),
                accuracy=step / 20, evaluated_at=step, staleness=rank, rows_total=20,
                rows_pushed=10 + rank, bandwidth=3.0, link_rate=math.nan,
                compute_time=.5 * step, stall_time=.1 * step, energy=5.0 * step, power=4.0)


def write(path, statuses, storage='mcap', without=()):
    """Write a recording in the format of rosbag2.

    ``statuses``: tuples (topic, time in seconds, message). ``without``: fields that the message
    types of the recording lack.
    """
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore
    store = get_typestore(Stores.ROS2_JAZZY)
    for name in ('RobotStatus', 'FleetStatus', 'TrainingStatus'):
        lines = (MESSAGES / f'{name}.msg').read_text().splitlines()
        text = '\n'.join(line for line in lines if not any(f' {f} ' in line for f in without))
        store.register(get_types_from_msg(text, f'rog_msgs/msg/{name}'))
    plugin = getattr(rosbag2.StoragePlugin, storage.upper())
    with rosbag2.Writer(path, version=9, storage_plugin=plugin) as writer:
        connections = {}
        for topic, seconds, message in statuses:
            kind = KINDS[type(message).__name__]
            if topic not in connections:
                connections[topic] = writer.add_connection(topic, kind, typestore=store)
            writer.write(connections[topic], int((BEGIN + seconds) * 1e9),
                         store.serialize_cdr(converted(store, kind, message), kind))
    return path


def converted(store, kind, message):
    """Return a message as an object of the library rosbags.

    ``store``: the message types of rosbags. The object has the fields that ``store`` lists for
    its type.
    """
    values = {}
    for name in store.types[kind].__dataclass_fields__.keys() - {'__msgtype__'}:
        value = getattr(message, name)
        if name == 'header':
            value = store.types['std_msgs/msg/Header'](
                store.types['builtin_interfaces/msg/Time'](0, 0), '')
        elif name == 'robots':
            value = [converted(store, 'rog_msgs/msg/RobotStatus', robot) for robot in value]
        elif name == 'tag':
            value = np.array(value, np.uint8)
        values[name] = value
    return store.types[kind](**values)


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
def test_the_records_of_a_recording_are_those_of_the_run(tmp_path, storage):
    statuses = list(run())
    recorder = Recorder(tmp_path / 'run', Start(0.0, '', '', 'rsp:4', 0))
    for _, now, message in statuses:
        if isinstance(message, TrainingStatus):
            recorder.status(now if message.state != 'stopped' else 16.0, message)
    recorder.stop(16.0, 'recorded')
    write_run(write(tmp_path / 'bag', statuses, storage), tmp_path / 'read')
    for kind in (Iteration, Evaluation):
        there, here = ([e for e in read_run(tmp_path / folder) if isinstance(e, kind)]
                       for folder in ('run', 'read'))
        assert len(there) == len(here) > 20
        for a, b in zip(there, here, strict=True):
            assert a.t == pytest.approx(b.t, abs=1e-3)
            assert (a.robot, a.iteration) == (b.robot, b.iteration)
    faults = [e for e in read_run(tmp_path / 'read') if isinstance(e, Fault)]
    assert [(e.robot, e.what, e.detail) for e in faults] == [('robot2', 'away', 'no heartbeat')]
    there, here = (read_summary(tmp_path / folder) for folder in ('run', 'read'))
    assert here.sync == 'rsp:4' and here.duration_s == pytest.approx(16.0)
    for name, robot in there.robots.items():
        read = here.robots[name]
        assert (read.iterations, read.energy_j, read.compute_s, read.accuracy.after) == (
            robot.iterations, robot.energy_j, robot.compute_s, robot.accuracy.after)


@pytest.mark.parametrize('storage', mostly_long(['mcap', 'sqlite3'], 'mcap'))
def test_plot_draws_a_recording_beside_it(tmp_path, capsys, storage):
    bag = write(tmp_path / 'bag', run(), storage)
    assert main(['plot', str(bag)]) == 0
    assert capsys.readouterr().out.split() == [str(bag / f'{name}.{kind}') for name in
                                               ('run', 'micro') for kind in ('png', 'svg')]
    file = next(bag.glob('*.mcap' if storage == 'mcap' else '*.db3'))
    assert main(['plot', str(file), '--out', str(tmp_path / 'out')]) == 0
    assert (tmp_path / 'out/run.png').read_bytes() == (bag / 'run.png').read_bytes()


@pytest.mark.skipif(not find_spec('tensorboard'),
                    reason='TensorBoard is not installed: pip install tensorboard')
def test_the_curves_of_a_recording_have_its_name(tmp_path, capsys):
    bag = write(tmp_path / 'monday', run())
    assert main(['plot', str(bag), '--tensorboard', str(tmp_path / 'tb')]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / 'tb/monday')]
    assert list((tmp_path / 'tb/monday').glob('events.out.tfevents.*'))


def test_a_recording_without_the_server_is_read_too(tmp_path):
    write_run(write(tmp_path / 'bag', run(fleet=False)), tmp_path / 'read')
    assert read_summary(tmp_path / 'read').robots.keys() == {'robot1', 'robot2'}


def test_the_state_is_that_at_the_end(tmp_path):
    state, now = state_of_bag(write(tmp_path / 'bag', run()))
    fleet = state.shown(now)
    assert (fleet.state, fleet.elapsed) == ('stopped', 16.0)
    assert [r.iteration for r in fleet.robots] == [12, 12]
    assert len(state.curves['link']['robot1'].points) == 12


def test_of_several_runs_the_last_one_counts(tmp_path, capsys):
    bag = write(tmp_path / 'bag', [*run(['robot1'], run=7), *run(['robot2'], run=8, start=100.0)])
    write_run(bag, tmp_path / 'read')
    assert read_summary(tmp_path / 'read').robots.keys() == {'robot2'}
    assert 'several runs' in capsys.readouterr().err


def test_of_several_fleets_one_is_chosen(tmp_path):
    bag = write(tmp_path / 'bag', sorted([*run(['robot1'], space='/blue'),
                                          *run(['robot1', 'robot9'], space='/red')],
                                         key=lambda status: status[1]))
    with pytest.raises(ValueError, match='2 fleets; choose one by --namespace: /blue, /red'):
        write_run(bag, tmp_path / 'read')
    write_run(bag, tmp_path / 'read', '/red')
    assert read_summary(tmp_path / 'read').robots.keys() == {'robot1', 'robot9'}


def test_what_claims_to_be_another_robot_is_left_out(tmp_path):
    status = TrainingStatus(robot='robot1', incarnation=9, iteration=99)
    bag = write(tmp_path / 'bag', [*run(), ('/robot2/training_status', 17.0, status)])
    state, _ = state_of_bag(bag)
    assert state.robots['robot1'].iteration == 12


def test_statuses_that_the_server_publishes_again_are_as_good(tmp_path):
    again = [('/rog/robots' if topic.endswith('/training_status') else topic, now, status)
             for topic, now, status in run()]
    state, _ = state_of_bag(write(tmp_path / 'bag', again))
    assert {name: robot.iteration for name, robot in state.robots.items()} == {
        'robot1': 12, 'robot2': 12}


def refused(capsys, path):
    assert main(['plot', str(path)]) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
def test_a_recording_that_cannot_be_read_is_refused_in_words(tmp_path, capsys, storage):
    from std_msgs.msg import String
    assert 'is not there' in refused(capsys, tmp_path / 'no.mcap')
    other = write(tmp_path / 'other', [('/chatter', 1.0, String(data='hello'))], storage)
    assert 'holds no statuses of a fleet' in (said := refused(capsys, other)) and '/chatter' in said
    assert 'holds no statuses' in refused(capsys, write(tmp_path / 'empty', [], storage))
    bag = write(tmp_path / 'bag', run(), storage)
    file = next(path for path in bag.iterdir() if path.name != 'metadata.yaml')
    data = file.read_bytes()
    for damaged in (data[:len(data) // 2], b'', bytes(len(data))):
        file.write_bytes(damaged)
        said = refused(capsys, bag)
        assert said.startswith('rog: ') and 'Traceback' not in said and str(bag) in said, said


def test_a_recording_of_another_version_is_refused_by_the_fields_that_it_lacks(tmp_path, capsys):
    statuses = list(run())
    bag = tmp_path / 'older'
    write(bag, statuses, without=('energy',))
    assert 'recorded by another version' in refused(capsys, bag)
