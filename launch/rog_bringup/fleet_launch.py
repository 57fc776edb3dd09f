"""The launch description of a fleet: a server, a worker per robot, settings as arguments."""

from __future__ import annotations

import os
import time
from typing import Any

from fleet_env.settings.base import arguments as arguments_of
from fleet_env.settings.base import knobs
from fleet_env.settings.fleet import FleetSettings
from fleet_env.settings.fleet_file import find_tasks, load_fleet, with_overrides
from fleet_ros.environment import dds_environment
from launch.actions import DeclareLaunchArgument, LogInfo
from launch_ros.actions import Node
from rog_core.method_check import check_method
from rog_core.warm_up import warm_up
from rog_ros.parameters import SERVER, server_parameters, worker_parameters
from rog_tasks.task import check_task

from launch import LaunchDescription
from rog_bringup import FLEETS
from rog_bringup.arguments import (
    ENCLAVE,
    ONLY,
    chosen,
    declared,
    described,
    enclave,
    enforced,
    environment,
    given,
    typed,
    value,
)
from rog_bringup.ending import TIMES, Ending
from rog_bringup.task_check import checked


def fleet_launch(default_fleet: str) -> LaunchDescription:
    """Return the launch description of a fleet.

    ``default_fleet``: the fleet to start if the user omits the argument `fleet`.
    """
    return described([
        DeclareLaunchArgument('fleet', default_value=default_fleet,
                              description='built-in fleet (indoor, outdoor, non_iid, '
                                          'heterogeneous, two_speeds, two_level, crimp) or the '
                                          'path of a fleet file'),
        DeclareLaunchArgument('out', default_value='', description='directory for run.jsonl, '
                              'summary.json and the checkpoint; empty for runs/<fleet>-<time>'),
        ONLY, ENCLAVE,
        DeclareLaunchArgument('resume', default_value='false', choices=['true', 'false'],
                              description='go on from the checkpoint in out'),
        DeclareLaunchArgument('autostart', default_value='true', choices=['true', 'false'],
                              description='whether the nodes configure and activate themselves; '
                                          'if not, a lifecycle manager does'),
        *declared({name: f'{text}. Left empty: what the fleet file says'
                   for name, text in arguments_of(FleetSettings).items()})], _start)


def _start(context: Any) -> list[Any]:
    settings = {knob.name: '.'.join(knob.path) for knob in knobs(FleetSettings)}
    fleet = with_overrides(load_fleet(value(context, 'fleet'), [FLEETS]), {
        settings[name]: text for name, text in given(context, settings).items()})
    find_tasks(fleet)
    # The server of a child fleet is a robot of this fleet. The child fleet starts this server, so
    # do not start it here.
    here = chosen(context, [r.name for r in fleet.robots if not r.fleet])
    check_task(fleet.training.task, fleet.training.task_options)
    if 'server' in here:  # only the server needs the code of the method
        check_method(fleet, fleet.capacities)
    robots_here = [r.name for r in fleet.robots if r.name in here]
    # a machine with only the server may lack the data of the robots
    found = checked(fleet, robot=robots_here[0]).lines if robots_here else ()
    out = os.path.abspath(value(context, 'out') or os.path.join(
        'runs', f'{fleet.name}-{time.strftime("%Y%m%d-%H%M%S")}'))
    warm_up()  # compile the numba functions here once, not in all processes at the same time
    space, begins = fleet.network.namespace, value(context, 'autostart') == 'true'

    def node(package: str, executable: str, name: str, parameters: Any) -> Node:
        return Node(package=package, executable=executable, namespace=f'{space}/{name}',
                    parameters=typed({**parameters, 'autostart': begins}), output='screen',
                    additional_env=dds_environment(fleet.network, robot=name != SERVER),
                    ros_arguments=enclave(context, f'{space}/{name}'), **TIMES)

    server = node('rog_ps', 'parameter_server', SERVER, server_parameters(fleet, out) | {
        'resume': value(context, 'resume') == 'true'}) if 'server' in here else None
    robots = [node('rog_worker', 'worker', robot.name, worker_parameters(fleet, robot))
              for robot in fleet.robots if robot.name in here]
    return [*(LogInfo(msg=line) for line in found),
            *environment(fleet.network), *enforced(context),
            *Ending(server, robots, run=True).actions(), *([server] if server else []), *robots]
