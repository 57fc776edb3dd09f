"""Tests of what the commands `rog`, `fleet`, `lopinfer` and `rrto` have in common."""

import argparse
import re
import resource
import subprocess
import sys
from importlib import metadata

import pytest
from fleet_policy.main import main as policy
from fleet_policy.mock_robot import main as mock_robot
from fleet_testing import LIMIT
from lopinfer_node import nodes as lopinfer_nodes
from lopinfer_node.cli import main as lopinfer_main
from lopinfer_node.cli.main import make_parser as lopinfer
from rog_cli import fleet_main
from rog_cli import main as rog_main
from rog_cli.fleet_main import make_parser as fleet
from rog_cli.main import make_parser as rog
from rog_ps.main import main as parameter_server
from rog_worker.main import main as worker
from rrto_bridge.cli import main as rrto_main
from rrto_bridge.cli.main import make_parser as rrto
from rrto_bridge.server.main import server_main as rrto_server


@pytest.mark.parametrize('main, parameter', [
    (worker, 'task'), (parameter_server, 'minutes'), (lopinfer_nodes.server_main, 'device'),
    (lopinfer_nodes.client_main, 'model'), (rrto_server, 'name'), (policy, 'policy'),
    (mock_robot, 'contract')])
def test_a_node_names_its_parameters(capsys, main, parameter):
    assert main(['--help']) == 0
    assert f'\n  {parameter}: ' in capsys.readouterr().out


@pytest.mark.parametrize('make_parser', [rog, fleet, lopinfer, rrto])
def test_a_command_says_its_version(capsys, make_parser):
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(['--version'])
    command, _, said = capsys.readouterr().out.strip().partition(' ')
    assert ended.value.code == 0 and command == make_parser().prog
    assert said == metadata.version('fleet_env')


def arguments(parser):
    """Yield each command with the arguments of each of its verbs."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield from arguments(verb)
        else:
            yield parser.prog, action


@pytest.mark.parametrize('make_parser', [rog, fleet, lopinfer, rrto])
def test_each_argument_of_a_command_is_described(make_parser):
    assert not [(command, action.dest) for command, action in arguments(make_parser())
                if not action.help]


@pytest.mark.parametrize(('make_parser', 'words', 'meant'), [
    (rog, ['flete', 'up'], 'fleet'), (rog, ['fleet', 'upp', 'indoor'], 'up'),
    (rog, ['stat'], 'status'), (fleet, ['srve'], 'serve'),
    (lopinfer, ['srve'], 'serve'), (rrto, ['rnu'], 'run')])
def test_a_mistyped_verb_is_answered_with_the_nearest_one(capsys, make_parser, words, meant):
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(words)
    assert ended.value.code == 2 and f"did you mean '{meant}'?" in capsys.readouterr().err


@pytest.mark.parametrize(('command', 'module'), [
    ('rog', rog_main), ('fleet', fleet_main), ('lopinfer', lopinfer_main), ('rrto', rrto_main)])
def test_a_command_without_file_descriptors_says_how_many_it_needs(
        capsys, monkeypatch, command, module):
    monkeypatch.setattr(resource, 'getrlimit', lambda kind: (14, 1024))
    assert module.main(['no verb']) == 2
    assert capsys.readouterr().err == \
        f'{command}: at least 15 file descriptors are needed (ulimit -n), got 14\n'


AT_ONCE = """
import subprocess, sys
from {module} import main
sys.modules['torch'] = None
def refused(*_, **__):
    raise ImportError
subprocess.Popen.__init__ = refused
try:
    main({arguments})
except ImportError:
    pass
"""


@pytest.mark.parametrize(('module', 'arguments', 'says'), [
    ('rog_cli.main', ['sim', 'indoor'], 'indoor, .* loading the task'),
    ('rog_cli.main', ['compare', 'indoor'], 'indoor: 27 runs of 1 min .* is tried out'),
    ('rog_cli.main', ['fleet', 'up', 'indoor'], 'indoor, .*, 1 min: loading the task'),
    ('lopinfer_node.cli.main', ['demo'], 'takes about'),
    ('lopinfer_node.cli.main', ['bench'], 'takes about'),
    ('lopinfer_node.cli.main', ['profile', 'resnet18'], 'resnet18: .* takes seconds'),
    ('rrto_bridge.cli.main', ['demo'], 'takes about'),
    ('rrto_bridge.cli.main', ['bench'], 'takes about')])
def test_what_takes_long_says_so_before_it_loads_pytorch_or_starts_a_process(
        tmp_path, module, arguments, says):
    program = AT_ONCE.format(module=module, arguments=arguments)
    said = subprocess.run([sys.executable, '-c', program], cwd=tmp_path, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=LIMIT, check=False)
    assert re.search(says, said.stdout)
