"""The launch description of a fleet file: one server, one worker per robot, every knob an argument."""

from __future__ import annotations

import dataclasses
import os
import time
from typing import Any

from fleet_env.fleet import FleetConfig, TrainingConfig
from fleet_env.fleet_file import load_fleet, with_overrides
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, EmitEvent, OpaqueFunction, RegisterEventHandler
from launch.event_handlers import OnProcessExit
from launch.events import Shutdown
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from rog_ros.parameters import server_parameters, worker_parameters

from rog_bringup import FLEETS

_KEEP = ''  # an argument left empty keeps what the fleet file says


def _settings() -> dict[str, tuple[str, str]]:
    """Launch argument -> (setting of the fleet file, description)."""
    training = {f.name: ('training.' + f.name, f.metadata['help'] + _unit(f))
                for f in dataclasses.fields(TrainingConfig) if f.name != 'task_options'}
    fleet = {f.name: f for f in dataclasses.fields(FleetConfig)}
    return training | {name: (name, fleet[name].metadata['help'] + _unit(fleet[name]))
                       for name in ('seed', 'minutes')} | {
        'link_scale': ('link.scale', 'factor on the rate of the emulated links'),
        'emulate_links': ('link.emulate', 'false on real robots: the links are real'),
        'heartbeat_limit': ('heartbeat.limit', 'silence after which a peer counts as gone [s]'),
    }


def _unit(field: Any) -> str:
    return f' [{field.metadata["unit"]}]' if field.metadata.get('unit') else ''


def fleet_launch(default_fleet: str) -> LaunchDescription:
    """Return the launch description for a fleet, by default the one named."""
    arguments = [
        DeclareLaunchArgument('fleet', default_value=default_fleet,
                              description='fleet file: indoor, outdoor or a path'),
        DeclareLaunchArgument('out', default_value='', description='directory for run.jsonl, '
                              'summary.json and the checkpoint; empty for runs/<fleet>-<time>'),
        DeclareLaunchArgument('only', default_value='', description='start only these, separated '
                              'by commas: server, or names of robots; empty for all'),
        DeclareLaunchArgument('resume', default_value='false',
                              description='go on from the checkpoint in out'),
        *(DeclareLaunchArgument(name, default_value=_KEEP,
                                description=f'{text}; empty keeps what the fleet file says')
          for name, (_, text) in _settings().items())]
    return LaunchDescription([*arguments, OpaqueFunction(function=_start)])


def _start(context: Any) -> list[Any]:
    def value(name: str) -> str:
        return LaunchConfiguration(name).perform(context).strip()

    fleet = load_fleet(value('fleet'), [FLEETS])
    chosen = {setting: value(name) for name, (setting, _) in _settings().items()
              if value(name) != _KEEP}
    fleet = with_overrides(fleet, chosen)
    only = [name.strip() for name in value('only').split(',') if name.strip()]
    unknown = set(only) - {'server', *(r.name for r in fleet.robots)}
    if unknown:
        raise RuntimeError(f"only:={value('only')} names {', '.join(sorted(unknown))}; the fleet "
                           f"has server, {', '.join(r.name for r in fleet.robots)}")
    epoch = time.time()
    out = value('out') or os.path.abspath(
        os.path.join('runs', f'{fleet.name}-{time.strftime("%Y%m%d-%H%M%S")}'))
    actions: list[Any] = []
    if not only or 'server' in only:
        parameters = server_parameters(fleet, epoch, out) | {
            'resume': value('resume').lower() == 'true'}
        server = Node(package='rog_ps', executable='parameter_server', output='screen',
                      parameters=[parameters], sigterm_timeout='15')
        actions += [server, RegisterEventHandler(OnProcessExit(
            target_action=server, on_exit=[EmitEvent(event=Shutdown(reason='the run is over'))]))]
    actions += [Node(package='rog_worker', executable='worker', namespace=robot.name,
                     output='screen', parameters=[worker_parameters(fleet, robot, epoch)])
                for robot in fleet.robots if not only or robot.name in only]
    return actions
