"""`rrto bench`: what cannot be measured is refused in one line."""

from importlib.util import find_spec

import pytest
from rrto_bridge import measure
from rrto_bridge.cli.main import main


def test_a_trace_that_is_not_there_is_named_before_anything_is_measured(capsys):
    with pytest.raises(SystemExit, match='rrto: nowhere.txt: cannot be read'):
        main(['bench', '--traces', 'nowhere.txt'])
    assert capsys.readouterr().out == ''


@pytest.mark.skipif(find_spec('torchvision') is None, reason='torchvision is not installed')
def test_a_model_that_is_not_there_is_named():
    with pytest.raises(SystemExit, match="there is no model 'nope'; give small"):
        measure.load('nope')
