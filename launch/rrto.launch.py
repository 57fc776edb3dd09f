"""Start RRTO; `ros2 launch rog_bringup rrto.launch.py -s` lists the arguments."""

import re
import shlex

from fleet_env.settings.base import arguments, from_flat
from launch.actions import (
    DeclareLaunchArgument,
    ExecuteProcess,
    RegisterEventHandler,
)
from launch.event_handlers import OnProcessIO
from launch_ros.actions import Node
from launch_ros.substitutions import ExecutableInPackage
from rog_bringup.arguments import (
    chosen,
    declared,
    described,
    environment,
    given,
    given_parameters,
    names,
    network,
    robots_and_network,
    value,
)
from rog_bringup.ending import TIMES, Ending
from rrto_bridge.client.settings import Settings
from rrto_bridge.server.parameters import ServerSettings

# The programs need the server's name. By default a server is named after its machine, which is
# unknown here. Therefore give the server a fixed name.
_NAME = 'server'
_SERVER = arguments(ServerSettings)
_PROGRAM = {name: text for name, text in arguments(Settings).items()
            if name not in ('server', 'namespace')}


def generate_launch_description():
    return described([
        DeclareLaunchArgument('program', default_value='', description='command line of the '
                              "robots' program, e.g. 'python3 app.py', which runs once for each; "
                              'empty: the server alone'),
        *robots_and_network(),
        DeclareLaunchArgument('name', default_value=_NAME, description=_SERVER['name']),
        *declared({name: text for name, text in {**_SERVER, **_PROGRAM}.items()
                   if name != 'name'})], _start)


def _start(context):
    here = chosen(context, names(context, 'robots'))
    reach = network(context)
    options = given(context, _PROGRAM)
    from_flat(Settings, options)  # raise an error for invalid options before anything starts
    programs = [_program(f'{reach.namespace}/{name}'.strip('/'), context, options) for name in here
                if name != 'server' and value(context, 'program')]
    server = None
    if 'server' in here:
        server = Node(package='rrto_bridge', executable='rrto_server', output='screen',
                      namespace=f'{reach.namespace}/rrto', **TIMES,
                      parameters=given_parameters(ServerSettings, given(context, _SERVER)))
    actions = [*environment(reach), *Ending(server, programs, run=False).actions()]
    return [*actions, *([_after(server, programs), server] if server else programs)]


def _program(robot, context, options):
    given_options = [part for name, text in options.items()
                     for part in ('--' + re.sub('[._]', '-', name), text)]
    return ExecuteProcess(
        cmd=[ExecutableInPackage('rrto_bridge', 'rrto_bridge'), '--server', value(context, 'name'),
             '--namespace', robot, *given_options, '--',
             *shlex.split(value(context, 'program'))],
        name=robot.replace('/', '_'), output='screen', **TIMES)


def _after(server, programs):
    """Return a handler that starts the programs when the server prints that it is ready."""
    waiting = list(programs)

    def on_output(event):
        if b'serving as' not in event.text:
            return []
        started = waiting[:]
        waiting.clear()
        return started

    return RegisterEventHandler(OnProcessIO(target_action=server, on_stdout=on_output,
                                            on_stderr=on_output))
