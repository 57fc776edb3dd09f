"""Reads the statuses of a fleet from a rosbag2 recording, to play them or to write run records."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleet_env.errors import RecordError
from fleet_env.records.events import Start
from fleet_env.records.run_recorder import Recorder
from rog_core.errors import shown
from rog_msgs.msg import FleetStatus, RobotStatus, TrainingStatus
from rog_ros import qos
from rog_ros.happened import APART, NAME, changes
from rog_ros.parameters import SERVER, fleet_namespace
from rog_tasks.errors import DataError, some
from rog_tasks.sources.bag import Recording

from .fleet_state import FleetState

RELAYED = f'/{SERVER}/{qos.ROBOTS}'  # topic of the statuses that the server publishes again
FLEET, ROBOT = 'rog_msgs/msg/FleetStatus', 'rog_msgs/msg/TrainingStatus'
CLASSES: dict[str, Any] = {FLEET: FleetStatus, ROBOT: TrainingStatus}
# iterator over tuples: a time in seconds by the recorder's clock, and a status
Played = Iterator[tuple[float, Any]]


def is_bag(path: Path) -> bool:
    """Return whether ``path`` is the folder or the file of a recording, also of a wrong kind."""
    return path.suffix in ('.mcap', '.db3', '.bag', '.zstd') or (path / 'metadata.yaml').exists()


def played(path: Path, namespace: str = '') -> Played:
    """Yield the statuses of one run of one fleet, in the order of recording.

    The first yielded status is always one of the server. If the recording begins with a status of a
    robot, the function first yields a made-up server status that lists only this robot. If the
    recording has several runs, the function yields the last run. It prints to stderr that several
    runs exist, and how many damaged messages it skipped.

    :param namespace: namespace of the fleet; needed if the recording contains several fleets.
    :raises RecordError: the recording is missing or damaged, contains no statuses or those of
        another version, or contains several fleets and none has ``namespace``.
    """
    try:
        topics = _of_one_fleet(path, Recording(str(path), {}).types, namespace)
        begin = _last_run(path, {t: (k,) for t, k in topics.items() if k == FLEET})
        recording = Recording(str(path), {t: (k,) for t, k in topics.items()})
        heard: set[str] = set()  # message types of the statuses that were yielded so far
        for topic, now, message in recording:
            kind = topics[topic]
            if kind not in heard:
                _same_fields(path, kind, message)
            if now < begin or (kind == ROBOT and not topic.endswith(
                    (f'/{message.robot}/training_status', RELAYED))):
                continue
            if not heard and kind == ROBOT:
                yield now, FleetStatus(sync=message.sync, state='training', robots=[
                    RobotStatus(robot=message.robot, state='training')])
            heard.add(kind)
            yield now, message
    except DataError as error:
        raise RecordError(str(error)) from error
    if not heard:
        raise RecordError(f'holds no status: its {len(topics)} topics are empty', str(path))
    if recording.damaged:
        print(f'rog: {path}: skipped {recording.damaged} damaged messages; the last one: '
              f'{shown(recording.damage)}', file=sys.stderr)


def _of_one_fleet(path: Path, types: dict[str, str], namespace: str) -> dict[str, str]:
    """Return the status topics of one fleet, as a dict: topic name -> message type."""
    found = {name: kind for name, kind in sorted(types.items()) if kind in CLASSES
             and not name.endswith((f'/{qos.PAST}', f'/{qos.PAST_FLEET}'))}
    if not found:
        raise RecordError(f'holds no statuses of a fleet ({", ".join(CLASSES)}); its topics are '
                          f'{some(sorted(types)) or "none"}', str(path))
    fleets = [fleet_namespace(fleet_namespace(name))  # '/blue/rog/fleet_status' gives '/blue'
              for name, kind in found.items() if kind == FLEET]
    if len(fleets) > 1 and namespace not in fleets:
        raise RecordError(f'holds {len(fleets)} fleets; choose one by --namespace: {some(fleets)}',
                          str(path))
    if fleets and namespace not in fleets:
        namespace = fleets[0]
    others = tuple(f'{fleet}/' for fleet in fleets if len(fleet) > len(namespace))
    return {name: kind for name, kind in found.items()
            if name.startswith(f'{namespace}/') and not name.startswith(others)}


def _last_run(path: Path, topics: dict[str, tuple[str, ...]]) -> float:
    """Return the time in seconds of the server's first status in the last run.

    The time is -inf if the recording has only one run.
    """
    begin, run = -math.inf, None
    for _, now, message in Recording(str(path), topics) if topics else ():
        if run is not None and message.run != run:
            begin = now
            print(f'rog: {path} holds several runs; showing the one that begins {now:.0f} s after '
                  '1970', file=sys.stderr)
        run = message.run
    return begin


def _same_fields(path: Path, kind: str, message: Any) -> None:
    missing = CLASSES[kind].get_fields_and_field_types().keys() - vars(message).keys()
    if missing:
        raise RecordError(f'was recorded by another version: its {kind} lacks '
                          f'{", ".join(sorted(missing))}', str(path))


def state_of_bag(path: Path, namespace: str = '') -> tuple[FleetState, float]:
    """Return a fleet's state at the end of a recording, and the time of the last status in seconds.

    :raises RecordError: see `played`.
    """
    state, now = FleetState(), 0.0
    for now, message in played(path, namespace):
        _take(state, message, now)
    return state, now


def _take(state: FleetState, message: Any, now: float) -> None:
    (state.on_fleet if hasattr(message, 'robots') else state.on_robot)(message, now)


def write_run(path: Path, folder: Path, namespace: str = '') -> None:
    """Make run records, as far as the recorded statuses allow, and write them to ``folder``.

    :raises RecordError: see `played`.
    """
    statuses = played(path, namespace)
    now, first = next(statuses)
    recorder = Recorder(folder, Start(0.0, '', '', shown(first.sync, NAME), 0, path.stem))
    state, t = FleetState(), 0.0
    state.on_fleet(first, now)
    for now, message in statuses:
        former = state.fleet
        _take(state, message, now)
        t = max(t, state.elapsed(now))
        if state.fleet is former:
            recorder.status(t, message)
            continue
        for event in changes(former, message):
            what, _, detail = event.text.partition(': ')
            if what in APART:
                recorder.fault(t, event.robot, what, detail)
    recorder.stop(t, 'recorded')
