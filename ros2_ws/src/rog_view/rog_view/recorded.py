"""Reads a recorded run: the directory of a run, or a rosbag2 recording of its statuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fleet_env.records.events import Evaluation, Fault, Iteration, Start, Status, read_run
from fleet_env.records.run_recorder import RobotReport
from fleet_env.records.summary import SUMMARY_FILE, read_summary
from rog_cli.commands.control import ControlError
from rog_cli.display.bag import is_bag, state_of_bag
from rog_cli.display.fleet_state import FleetState
from rog_core.errors import shown
from rog_msgs.msg import FleetStatus, RobotStatus
from rog_ros.happened import NAME, Event

from .source import view_of


class Recorded:
    """The recorded run at ``path``, which is read only once.

    :param namespace: namespace of the fleet, for a recording with several fleets.
    :raises RecordError: the run cannot be read.
    """

    live = False

    def __init__(self, path: Path, namespace: str = '') -> None:
        self.view = view_of(*(state_of_bag(path, namespace) if is_bag(path)
                              else state_of_run(path)), str(path))

    async def ask(self, service: str, **values: str) -> str:
        """Raise `ControlError`, because nobody can control a recorded run."""
        raise ControlError('this is a recording')


def state_of_run(directory: Path) -> tuple[FleetState, float]:
    """Return the last state of a run, and its time in seconds since the start of the run.

    :param directory: directory of the run, which may be unfinished.
    """
    events = read_run(directory)
    summary = read_summary(directory) if (directory / SUMMARY_FILE).exists() else None
    start = next((e for e in events if isinstance(e, Start)), None)
    names = sorted({e.robot for e in events if e.robot})
    fields = {'sync': start.sync if start else '',
              'robots': [RobotStatus(robot=name, state='training') for name in names]}
    state, reports = FleetState(), {name: RobotReport(name) for name in names}
    state.on_fleet(FleetStatus(state='training', **fields), 0.0)
    for event in events:
        if isinstance(event, Fault):
            state.happened(Event(event.t, shown(event.robot, NAME),
                                 shown(f'{event.what}: {event.detail}')))
        if event.robot not in reports:
            continue
        report = reports[event.robot]
        if isinstance(event, Iteration):
            report = replace(
                report, iteration=event.iteration, loss=event.loss,
                staleness=event.staleness, rows_pushed=event.rows_pushed,
                rows_total=event.rows_total, bandwidth=event.bandwidth,
                link_rate=event.link_rate, compute_time=report.compute_time + event.compute_s,
                communicate_time=report.communicate_time + event.communicate_s,
                stall_time=report.stall_time + event.stall_s)
        elif isinstance(event, Evaluation):
            report = replace(report, accuracy=event.metric, evaluated_at=event.iteration)
        elif isinstance(event, Status):
            report = replace(report, state=event.state, power=event.power, energy=event.energy)
        reports[event.robot] = report
        state.on_robot(report, event.t)
    end = max((e.t for e in events), default=0.0) if summary is None else summary.duration_s
    state.on_fleet(FleetStatus(state='stopped' if summary else 'not ended', elapsed=end, **fields),
                   end)
    return state, end
