"""Run records are read back as they were written; an error names the damaged line."""

import hashlib
import json
import math
import os
import resource

import pytest
from fleet_env.errors import RecordError
from fleet_env.records.events import (
    EVENTS,
    RUN_FILE,
    SCHEMA,
    Evaluation,
    Fault,
    Iteration,
    RunReader,
    RunWriter,
    Start,
    Status,
    Stop,
    read_run,
)
from fleet_env.records.summary import Accuracy, RobotSummary, Summary, read_summary, write_summary

EVENTS_OF_A_RUN = [
    Start(0.0, '', 'a:B', 'rsp:4', 3, 'indoor', ['robot1']),
    # no NaN, since from Python 3.13 on an event that holds one does not equal itself
    Iteration(1.5, 'robot1', 1, 2.3, 1.0, .4, .1, rows_pushed=300, bandwidth=12.5, link_rate=20.0,
              energy_j=4.5),
    Evaluation(1.6, 'robot1', 1, .5),
    Status(1.7, 'robot1', 'waiting', 4.04, 20.0, 'robot2'),
    Fault(2.0, '', 'peer_lost', 'robot2 is silent for 3 s'),
    Stop(3.0, '', 'finished', 1),
]


def test_events_read_back(tmp_path):
    with RunWriter(tmp_path / 'new' / 'run') as writer:
        for event in EVENTS_OF_A_RUN:
            writer.write(event)
    assert read_run(tmp_path / 'new' / 'run') == EVENTS_OF_A_RUN
    assert {type(event).__name__.lower() for event in EVENTS_OF_A_RUN} == EVENTS.keys()


def test_unknown_numbers_are_null_in_the_file(tmp_path):
    with RunWriter(tmp_path) as writer:
        writer.write(Status(0.0, 'robot1', 'joining'))
    assert json.loads((tmp_path / 'run.jsonl').read_text())['power'] is None
    (event,) = read_run(tmp_path)
    assert isinstance(event, Status) and math.isnan(event.power)


def test_a_file_has_one_writer(tmp_path):
    with RunWriter(tmp_path) as writer:
        with pytest.raises(RecordError, match='written by another process'):
            RunWriter(tmp_path)
        writer.write(EVENTS_OF_A_RUN[0])
    with RunWriter(tmp_path) as writer:
        writer.write(EVENTS_OF_A_RUN[1])
    assert read_run(tmp_path) == EVENTS_OF_A_RUN[:2]


def test_an_incomplete_last_line_is_skipped(tmp_path):
    with RunWriter(tmp_path) as writer:
        writer.write(EVENTS_OF_A_RUN[-1])
    with (tmp_path / 'run.jsonl').open('a') as file:
        file.write('{"kind": "st')
    assert read_run(tmp_path) == EVENTS_OF_A_RUN[-1:]


@pytest.mark.parametrize('line, words', [
    ('{"kind": ', 'not JSON'), ('3', 'kind None'), ('{"kind": "party"}', 'known are start'),
    ('{"kind": "stop", "t": 1, "robot": ""}', 'stop: reason: Field required'),
    ('{"kind": "stop", "t": "x", "robot": "", "reason": ""}', 'stop: t: .* number.* got .x'),
    ('{"kind": "stop", "t": 1, "robot": "", "reason": "", "x": 1}', 'stop: x: Unexpected'),
    ('{"kind": "stop", "t": 1, "robot": "", "reason": "", "iterations": "x"}', 'iterations'),
    ('{"kind": "start", "t": 0, "robot": "", "task": "", "sync": "", "seed": 1, "schema": "x/9"}',
     SCHEMA),
])
def test_a_broken_line_is_named(tmp_path, line, words):
    with RunWriter(tmp_path) as writer:
        writer.write(EVENTS_OF_A_RUN[0])
    with (tmp_path / 'run.jsonl').open('a') as file:
        file.write(line + '\n')
    with pytest.raises(RecordError, match=words) as caught:
        read_run(tmp_path)
    assert caught.value.line == 2 and 'run.jsonl, line 2' in str(caught.value)


def test_a_missing_run_is_refused(tmp_path):
    with pytest.raises(RecordError, match='cannot be read'):
        read_run(tmp_path)
    with pytest.raises(RecordError, match='cannot be read'):
        read_summary(tmp_path)


def test_a_run_needs_a_folder(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(RecordError, match='cannot be opened'):
        RunWriter(tmp_path / 'file')


SUMMARY = Summary('rsp:4', 'a:B', 3, 90.0, {
    'robot1': RobotSummary(7, 1.0, 2.0, .5, 30.0, 10, 20, 99.5, Accuracy(.98, .5, .97),
                           [(1.5, 1, .6), (3.0, 2, .7)]),
    'robot2': RobotSummary()}, fleet='indoor', notes={'why': 'test'})


def test_a_summary_reads_back(tmp_path):
    path = write_summary(tmp_path / 'run', SUMMARY)
    back = read_summary(tmp_path / 'run')
    assert back.robots['robot1'] == SUMMARY.robots['robot1']
    assert math.isnan(back.robots['robot2'].accuracy.clean)
    assert (back.sync, back.seed, back.schema, back.notes) == ('rsp:4', 3, SCHEMA, {'why': 'test'})
    assert [file.name for file in path.parent.iterdir()] == ['summary.json']


def test_equal_summaries_are_equal_files(tmp_path):
    one, two = write_summary(tmp_path / 'a', SUMMARY), write_summary(tmp_path / 'b', SUMMARY)
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize('change, words', [
    (lambda d: d.pop('sync'), 'sync: Field required'),
    (lambda d: d.update(schema='rog-run/7'), 'rog-run/7'),
    (lambda d: d.update(robots=[]), 'robots: Input'),
    (lambda d: d['robots'].update(robot1=[]), 'robots.robot1: Input'),
    (lambda d: d['robots']['robot1'].update(evaluations=[[1, 2]]), 'robots.robot1.evaluations.0.2'),
    (lambda d: d['robots']['robot1'].update(evaluations=3), 'evaluations'),
    (lambda d: d['robots']['robot1'].update(iterations='x'), 'iterations'),
    (lambda d: d['robots']['robot1']['accuracy'].update(x=1), 'accuracy.x: Unexpected'),
])
def test_a_broken_summary_is_refused(tmp_path, change, words):
    path = write_summary(tmp_path, SUMMARY)
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    with pytest.raises(RecordError, match=words):
        read_summary(tmp_path)


def test_a_summary_that_is_not_json_is_refused(tmp_path):
    (tmp_path / 'summary.json').write_text('{')
    with pytest.raises(RecordError, match='cannot be read'):
        read_summary(tmp_path)


def test_a_line_that_does_not_fit_on_the_disk_is_removed(tmp_path):
    event = Fault(1.0, 'robot1', 'peer_lost', 'x' * 100)
    with RunWriter(tmp_path) as writer:
        writer.write(event)
        room = writer.path.stat().st_size + 10
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            with pytest.raises(RecordError, match='cannot be written'):
                writer.write(event)  # the disk has space for only ten bytes of the line
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        writer.write(event)
    assert read_run(tmp_path) == [event, event]


def test_a_full_disk_is_a_record_error(tmp_path):
    (tmp_path / RUN_FILE).symlink_to('/dev/full')
    with RunWriter(tmp_path) as writer, pytest.raises(RecordError, match='No space left'):
        writer.write(Fault(1.0, 'robot1', 'peer_lost'))


@pytest.mark.parametrize('read, name', [(read_run, RUN_FILE), (read_summary, 'summary.json')])
def test_a_file_without_an_end_is_refused(tmp_path, read, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(RecordError, match=f'{name}: cannot be read: it is not a regular file'):
        read(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to('/dev/zero')
    with pytest.raises(RecordError, match=f'{name}: cannot be read: it is not a regular file'):
        read(tmp_path)


DAMAGE = {'not UTF-8': b'{"kind": "fault", "t": 1.0, "robot": "\xff", "what": "x"}\n',
          'not JSON': b'{"kind": "fault"\n', 'no object': b'[1]\n', 'empty': b'\n',
          'a number too long': b'1' * 5000 + b'\n', 'too deep': b'[' * 100_000 + b'\n',
          'unknown kind': b'{"kind": "lunch", "t": 1.0, "robot": ""}\n',
          'a wrong field': b'{"kind": "fault", "t": "now", "robot": "", "what": "x"}\n',
          'zeros': bytes(4096) + b'\n'}


@pytest.mark.parametrize('damage', DAMAGE)
def test_a_damaged_line_costs_that_line_and_is_named(tmp_path, damage):
    with RunWriter(tmp_path) as writer:
        for event in EVENTS_OF_A_RUN:
            writer.write(event)
    lines = (tmp_path / RUN_FILE).read_bytes().splitlines(keepends=True)
    (tmp_path / RUN_FILE).write_bytes(b''.join([*lines[:2], DAMAGE[damage], *lines[2:]]))
    damaged = []
    assert read_run(tmp_path, damaged) == EVENTS_OF_A_RUN
    error, = damaged
    assert f'{RUN_FILE}, line 3' in str(error)
    # Without a list for damaged lines, the reader raises an error.
    with pytest.raises(RecordError, match=f'{RUN_FILE}, line 3'):
        read_run(tmp_path)


def test_a_reader_follows_a_record_and_leaves_a_line_that_is_being_written(tmp_path):
    reader = RunReader(tmp_path)
    with pytest.raises(RecordError, match='there is no such file'):
        reader.read()
    with RunWriter(tmp_path) as writer:
        for event in EVENTS_OF_A_RUN:
            writer.write(event)
    data = (tmp_path / RUN_FILE).read_bytes()
    read = []
    for size in (0, 10, len(data) // 2, len(data) - 1, len(data), len(data)):
        (tmp_path / RUN_FILE).write_bytes(data[:size])
        read += reader.read()
    assert read == EVENTS_OF_A_RUN and reader.position == len(data)
    assert reader.digest == hashlib.sha256(data).hexdigest()
    with (tmp_path / RUN_FILE).open('ab') as file:
        file.write(b'[]\n')
    with pytest.raises(RecordError, match=f'{RUN_FILE}, line {len(EVENTS_OF_A_RUN) + 1}'):
        reader.read()


def test_a_reader_can_stop_at_a_place(tmp_path):
    with RunWriter(tmp_path) as writer:
        for event in EVENTS_OF_A_RUN:
            writer.write(event)
    whole, part = RunReader(tmp_path), RunReader(tmp_path)
    whole.read()
    end = (tmp_path / RUN_FILE).read_bytes().index(b'\n') + 1
    assert part.read(end=end) == EVENTS_OF_A_RUN[:1] and part.position == end
    assert part.read() == EVENTS_OF_A_RUN[1:] and part.digest == whole.digest


def test_a_writer_removes_an_incomplete_last_line(tmp_path):
    with RunWriter(tmp_path) as writer:
        writer.write(EVENTS_OF_A_RUN[0])
    with (tmp_path / RUN_FILE).open('ab') as file:
        file.write(b'{"kind": "fau')
    with RunWriter(tmp_path) as writer:
        writer.write(EVENTS_OF_A_RUN[4])
    assert read_run(tmp_path) == [EVENTS_OF_A_RUN[0], EVENTS_OF_A_RUN[4]]


@pytest.mark.parametrize('place', ['run', 'run/run.jsonl'])
@pytest.mark.parametrize('is_replaced', [False, True])
def test_a_record_that_is_removed_while_it_is_written_is_told(tmp_path, place, is_replaced):
    with RunWriter(tmp_path / 'run') as writer:
        writer.write(EVENTS_OF_A_RUN[0])
        (tmp_path / place).rename(tmp_path / 'elsewhere')
        if is_replaced:
            (tmp_path / 'run').mkdir(exist_ok=True)
            (tmp_path / 'run/run.jsonl').write_text('')
        with pytest.raises(RecordError, match=r'run.jsonl: was removed .* and is lost'):
            writer.write(EVENTS_OF_A_RUN[4])
