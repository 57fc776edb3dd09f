"""What all three commands have in common."""

from importlib import metadata

import pytest
from lopinfer_node.cli.main import make_parser as lopinfer
from rog_cli.main import make_parser as rog
from rrto_bridge.cli.main import make_parser as rrto


@pytest.mark.parametrize('make_parser', [rog, lopinfer, rrto])
def test_a_command_says_its_version(capsys, make_parser):
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(['--version'])
    command, _, said = capsys.readouterr().out.strip().partition(' ')
    assert ended.value.code == 0 and command == make_parser().prog
    assert said == metadata.version('fleet_env')


@pytest.mark.parametrize(('make_parser', 'words', 'meant'), [
    (rog, ['flete', 'up'], 'fleet'), (rog, ['fleet', 'upp', 'indoor'], 'up'),
    (rog, ['stat'], 'status'), (lopinfer, ['srve'], 'serve'), (rrto, ['rnu'], 'run')])
def test_a_mistyped_verb_is_answered_with_the_nearest_one(capsys, make_parser, words, meant):
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(words)
    assert ended.value.code == 2 and f"did you mean '{meant}'?" in capsys.readouterr().err
