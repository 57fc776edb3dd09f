"""ros2 launch rog_bringup rrto.launch.py: a server and programs that use it; --show-args: knobs."""

import shlex
from functools import partial

from fleet_ros.link import LINK
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    OpaqueFunction,
    RegisterEventHandler,
)
from launch.event_handlers import OnProcessIO
from launch_ros.actions import Node
from launch_ros.substitutions import ExecutableInPackage
from rog_bringup.arguments import (
    PATIENCE,
    chosen,
    environment,
    names,
    network,
    parameter,
    robots_and_network,
    value,
)
from rrto_bridge.parameters import SERVER
from rrto_bridge.settings import MODES, ON_LOSS

from launch import LaunchDescription

_NAME = 'server'  # the robots ask for it by name, which the default (the machine's) does not tell


def generate_launch_description():
    return LaunchDescription([
        DeclareLaunchArgument('program', default_value='', description='Command line of the '
                              "robots' program, e.g. 'python3 app.py', which runs once for each; "
                              'empty: the server alone.'),
        *robots_and_network(),
        DeclareLaunchArgument('mode', default_value='replay', choices=MODES,
                              description='How the calls of the program travel.'),
        DeclareLaunchArgument('on_loss', default_value='error', choices=ON_LOSS, description='When '
                              'the server is lost: end with an error, or go on on the robot.'),
        *(DeclareLaunchArgument(name, default_value=_NAME if name == 'name' else
                                str(knob.default), description=knob.description)
          for name, knob in SERVER.items()),
        OpaqueFunction(function=_start)])


def _start(context):
    given = partial(value, context)
    here = chosen(context, names(context, 'robots'))
    actions = environment(network(context))
    programs = [_program(name, given) for name in here if name != 'server' and given('program')]
    if 'server' not in here:
        return [*actions, *programs]
    server = Node(package='rrto_bridge', executable='rrto_server', namespace='rrto',
                  output='screen', sigterm_timeout=str(PATIENCE),
                  parameters=[{name: parameter(name, knob, given(name))
                               for name, knob in SERVER.items()}])
    return [*actions, _after(server, programs), server]


def _program(robot, given):
    link = [part for name in LINK for part in (f'--{name.replace("_", "-")}', given(name))]
    return ExecuteProcess(
        cmd=[ExecutableInPackage('rrto_bridge', 'rrto_bridge'), '--server', given('name'),
             '--namespace', robot, '--mode', given('mode'), '--on-loss', given('on_loss'), *link,
             '--', *shlex.split(given('program'))],
        name=robot, output='screen', sigterm_timeout=str(PATIENCE))


def _after(server, programs):
    """Start the programs when the server serves: one that finds no server ends."""
    waiting = list(programs)

    def on_output(event):
        if b'serving as' not in event.text:
            return []
        started = waiting[:]
        waiting.clear()
        return started

    return RegisterEventHandler(OnProcessIO(target_action=server, on_stdout=on_output,
                                            on_stderr=on_output))
