"""ros2 launch rog_bringup rrto.launch.py: a server and programs that use it; --show-args: knobs."""

import shlex

from fleet_env.fleet import NetworkConfig
from fleet_ros.environment import dds_environment
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    OpaqueFunction,
    RegisterEventHandler,
    SetEnvironmentVariable,
)
from launch.event_handlers import OnProcessIO
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import ExecutableInPackage
from rrto_bridge.parameters import SERVER
from rrto_bridge.settings import MODES, ON_LOSS

from launch import LaunchDescription

_PATIENCE = '15'  # s that a process has to end by itself on Ctrl+C
_NAME = 'server'  # the robots ask for it by name, which the default (the machine's) does not tell


def generate_launch_description():
    return LaunchDescription([
        DeclareLaunchArgument('program', default_value='', description='Command line of the '
                              "robots' program, e.g. 'python3 app.py'; empty: the server alone."),
        DeclareLaunchArgument('robots', default_value='robot1', description='Names of the robots, '
                              'separated by commas; the program runs once for each.'),
        DeclareLaunchArgument('only', default_value='', description='Start only these, separated '
                              'by commas: server, or names of robots; empty: all.'),
        DeclareLaunchArgument('mode', default_value='replay', choices=MODES,
                              description='How the calls of the program travel.'),
        DeclareLaunchArgument('on_loss', default_value='error', choices=ON_LOSS, description='When '
                              'the server is lost: end with an error, or go on on the robot.'),
        DeclareLaunchArgument('interface', default_value='lo', description='Network interface of '
                              'DDS; lo keeps everything on this machine.'),
        DeclareLaunchArgument('domain_id', default_value='0', description='ROS domain.'),
        *(DeclareLaunchArgument(name, default_value=_NAME if name == 'name' else
                                str(knob.default), description=knob.description)
          for name, knob in SERVER.items()),
        OpaqueFunction(function=_start)])


def _start(context):
    def value(name):
        return LaunchConfiguration(name).perform(context).strip()

    def names(argument):
        return [name.strip() for name in value(argument).split(',') if name.strip()]

    only, robots = names('only'), names('robots')
    if unknown := set(only) - {'server', *robots}:
        raise RuntimeError(f"only:={value('only')} names {', '.join(sorted(unknown))}; there are "
                           f"server, {', '.join(robots)}")
    network = NetworkConfig(int(value('domain_id')), value('interface'))
    environment = [SetEnvironmentVariable(*item) for item in dds_environment(network).items()]
    programs = [_program(robot, value) for robot in robots
                if value('program') and (not only or robot in only)]
    if only and 'server' not in only:
        return [*environment, *programs]
    server = Node(package='rrto_bridge', executable='rrto_server', namespace='rrto',
                  output='screen', sigterm_timeout=_PATIENCE,
                  parameters=[{name: ParameterValue(LaunchConfiguration(name),
                                                    value_type=type(knob.default))
                               for name, knob in SERVER.items()}])
    return [*environment, _after(server, programs), server]


def _program(robot, value):
    link = [part for name in SERVER if name.startswith('link_')
            for part in (f'--{name.replace("_", "-")}', value(name))]
    return ExecuteProcess(
        cmd=[ExecutableInPackage('rrto_bridge', 'rrto_bridge'), '--server', value('name'),
             '--namespace', robot, '--mode', value('mode'), '--on-loss', value('on_loss'), *link,
             '--', *shlex.split(value('program'))],
        name=robot, output='screen', sigterm_timeout=_PATIENCE)


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
