"""The pages of reference name what exists, and everything in the one of the API is described."""

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

PAGES = Path(__file__).parent.parent / 'docs'
TEXT = (PAGES / 'reference/api.rst').read_text()
NAMED = re.findall(r'^\.\. auto(?:class|function|exception):: (\S+)\n((?: +:.*\n)*)', TEXT, re.M)


@pytest.mark.parametrize(('name', 'options'), NAMED)
def test_what_the_reference_shows_is_described(name, options):
    module, _, last = name.rpartition('.')
    found = getattr(import_module(module), last)
    assert inspect.getdoc(found)
    if not inspect.isclass(found) or ':members:' not in options:
        return
    listed = re.search(r':members: *(.*)', options)[1]
    members = [part.strip() for part in listed.split(',')] if listed else [
        name for name, value in vars(found).items() if not name.startswith('_')
        and (callable(value) or isinstance(value, property))]
    assert members and all(inspect.getdoc(getattr(found, member)) for member in members)


def test_the_reference_has_the_public_names():
    from lopinfer_node import __all__ as shared

    names = {name.rpartition('.')[2] for name, _ in NAMED}
    assert {*shared, 'Task', 'connect', 'RogOptimizer', 'Method', 'Codec', 'Report', 'LinkTrace',
            'load_fleet', 'read_run', 'read_summary'} <= names


def test_the_page_of_codecs_names_each_with_its_number():
    from rog_core.codecs import codec_names, get_codec

    page = (PAGES / 'howto/codec.md').read_text()
    named = dict(re.findall(r'^\| `([\w:]+)`[^|]*\| (\d+) \|', page, re.M))
    assert named == {re.sub(':.*', ':P', name): str(get_codec(name).number)
                     for name in codec_names()}
