"""Run a policy; `ros2 launch rog_bringup policy.launch.py -s` lists the arguments."""

from fleet_env.settings.base import Text, from_flat
from fleet_policy.parameters import PolicySettings
from launch.actions import DeclareLaunchArgument
from launch_ros.actions import Node
from launch_ros.substitutions import ExecutableInPackage
from lopinfer_node.parameters import ServerSettings
from rog_bringup.arguments import (
    chosen,
    described,
    environment,
    given_parameters,
    names,
    network,
    typed,
    value,
)
from rog_bringup.ending import TIMES, Ending
from rog_bringup.pair_launch import Pair

_PAIR = Pair('lopinfer_node', 'lopinfer_server', 'policy', ServerSettings, PolicySettings)
_RRTO = 'server'   # name of RRTO's server


def generate_launch_description():
    return described([
        *_PAIR.declared(),
        DeclareLaunchArgument('mock', default_value='', description='true: each robot is a mock, '
                              'with made-up images and joints that do what is said')], _start)


def _start(context):
    here = chosen(context, names(context, 'robots'))
    reach = network(context)
    texts = _PAIR.given(context, 'robot')
    texts.setdefault('server', Text(f'{reach.namespace}/lopinfer'))
    # Check the settings before anything starts: a wrong setting raises an error here.
    settings = from_flat(PolicySettings, texts)
    if not settings.policy and set(here) - {'server'}:
        raise RuntimeError('policy must be package.module:Class, got nothing: give policy:=...')
    robots = [name for name in here if name != 'server']
    nodes = [_robot(f'{reach.namespace}/{name}', settings, texts) for name in robots]
    mocks = [_mock(f'{reach.namespace}/{name}', settings) for name in robots] \
        if value(context, 'mock') == 'true' else []
    server = _server(reach, settings, _PAIR.given(context, 'server')) if 'server' in here else None
    ending = Ending(server, [*nodes, *mocks], run=False, needed=nodes)
    return [*environment(reach), *ending.actions(),
            *([server] if server else []), *mocks, *nodes]


def _server(reach, settings, texts):
    """Return the server that the setting `inference` requires; None if the robots compute alone."""
    if settings.inference == 'lopinfer':
        return Node(package='lopinfer_node', executable='lopinfer_server', output='screen',
                    namespace=f'{reach.namespace}/lopinfer', **TIMES,
                    parameters=given_parameters(ServerSettings, texts))
    if settings.inference == 'rrto':
        return Node(package='rrto_bridge', executable='rrto_server', output='screen',
                    namespace=f'{reach.namespace}/rrto', parameters=[{'name': _RRTO}], **TIMES)
    return None


def _robot(namespace, settings, texts):
    inside = [ExecutableInPackage('rrto_bridge', 'rrto_bridge'),
              f" --server {_RRTO} --namespace {namespace.strip('/')} --on-loss local -- "]
    return Node(package='fleet_policy', executable='policy', namespace=namespace, output='screen',
                prefix=inside if settings.inference == 'rrto' else None,
                parameters=given_parameters(PolicySettings, texts), **TIMES)


def _mock(namespace, settings):
    return Node(package='fleet_policy', executable='mock_robot', namespace=namespace,
                output='screen', **TIMES,
                parameters=typed({'policy': settings.policy, 'contract': settings.contract}))
