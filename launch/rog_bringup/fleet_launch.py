"""The launch description of a fleet: server, one worker per robot, all settings as arguments."""

from __future__ import annotations

import difflib
import os
import time
from typing import Any

from fleet_env.fleet import FleetConfig, FleetSettings
from fleet_env.fleet_file import find_tasks, load_fleet, with_overrides
from fleet_env.settings import arguments as arguments_of
from fleet_env.settings import knobs
from launch.actions import (
    DeclareLaunchArgument,
    LogInfo,
    OpaqueFunction,
    RegisterEventHandler,
    Shutdown,
    TimerAction,
)
from launch.event_handlers import OnProcessExit
from launch_ros.actions import Node
from rog_core.methods import check_method
from rog_core.warm_up import warm_up
from rog_ros.parameters import server_parameters, worker_parameters

from launch import LaunchDescription
from rog_bringup import FLEETS
from rog_bringup.arguments import (
    ONLY,
    PATIENCE,
    chosen,
    declared,
    environment,
    given,
    typed,
    value,
)


def fleet_launch(default_fleet: str) -> LaunchDescription:
    """Return the launch description for a fleet, by default the one named."""
    arguments = [
        DeclareLaunchArgument('fleet', default_value=default_fleet,
                              description='fleet that comes along (indoor, outdoor, non_iid, '
                                          'heterogeneous, two_speeds) or the path of a fleet file'),
        DeclareLaunchArgument('out', default_value='', description='directory for run.jsonl, '
                              'summary.json and the checkpoint; empty for runs/<fleet>-<time>'),
        ONLY,
        DeclareLaunchArgument('resume', default_value='false', choices=['true', 'false'],
                              description='go on from the checkpoint in out'),
        *declared({name: f'{text}. Left empty: what the fleet file says'
                   for name, text in arguments_of(FleetSettings).items()})]
    names = [argument.name for argument in arguments]
    return LaunchDescription([*arguments, OpaqueFunction(function=_start, args=[names])])


def _start(context: Any, names: list[str]) -> list[Any]:
    settings = {knob.name: '.'.join(knob.path) for knob in knobs(FleetSettings)}
    fleet = with_overrides(load_fleet(value(context, 'fleet'), [FLEETS]), {
        settings[name]: text for name, text in given(context, settings).items()})
    find_tasks(fleet)
    here = chosen(context, [r.name for r in fleet.robots])
    if 'server' in here:  # robots need not have the method
        check_method(fleet, fleet.capacities)
    out = os.path.abspath(value(context, 'out') or os.path.join(
        'runs', f'{fleet.name}-{time.strftime("%Y%m%d-%H%M%S")}'))
    warm_up()  # compile once, not in every process at the same time
    nodes = _nodes(fleet, here, out, value(context, 'resume') == 'true')
    return [*_misspelt(context, names), *environment(fleet.network), *nodes,
            *_Ending(nodes).handlers()]


def _nodes(fleet: FleetConfig, here: list[str], out: str, resume: bool) -> list[Node]:
    nodes = []
    if 'server' in here:
        parameters = server_parameters(fleet, 0.0, out) | {'resume': resume}
        nodes.append(Node(package='rog_ps', executable='parameter_server', output='screen',
                          parameters=typed(parameters), sigterm_timeout=str(PATIENCE)))
    return nodes + [
        Node(package='rog_worker', executable='worker', namespace=robot.name, output='screen',
             parameters=typed(worker_parameters(fleet, robot, 0.0)),
             sigterm_timeout=str(PATIENCE))
        for robot in fleet.robots if robot.name in here]


def _misspelt(context: Any, names: list[str]) -> list[Any]:
    """Warn of arguments that do not exist: launch itself takes any name and says nothing."""
    def text(given: str) -> str:
        near = difflib.get_close_matches(given, names, 1)
        return f"did you mean '{near[0]}'?" if near else '--show-args lists all'
    return [LogInfo(msg=f"warning: there is no argument '{given}'; {text(given)}")
            for given in context.launch_configurations if given not in names]


class _Ending:
    """Ends the launch when the run is over, and lets it fail when a process of it has failed."""

    def __init__(self, nodes: list[Node]) -> None:
        self._running = list(nodes)
        self._server = nodes[0] if nodes and nodes[0].node_package == 'rog_ps' else None
        self._failed: list[str] = []

    def handlers(self) -> list[Any]:
        return [RegisterEventHandler(OnProcessExit(
            target_action=node, on_exit=lambda event, context, node=node: self._on_exit(
                node, event, context))) for node in self._running]

    def _on_exit(self, node: Node, event: Any, context: Any) -> list[Any]:
        self._running.remove(node)
        if event.returncode:
            self._failed.append(f'{event.process_name} (exit code {event.returncode})')
        if context.is_shutdown:
            return []
        if node is self._server and not event.returncode and self._running:
            # They end on the server's word; one that has never heard of it does not.
            return [TimerAction(period=PATIENCE, actions=[Shutdown(reason='the run is over')])]
        if node is self._server or self._running in ([], [self._server]):
            if self._failed:  # an exception is what makes `ros2 launch` end with exit code 1
                raise RuntimeError(f'failed: {", ".join(self._failed)}')
            return [Shutdown(reason='the run is over')]
        return []
