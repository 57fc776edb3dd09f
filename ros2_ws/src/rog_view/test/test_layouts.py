"""The layouts for Foxglove and PlotJuggler name only existing topics and fields."""

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from rog_msgs import msg

LAYOUTS = Path(__file__).parents[1] / 'layouts'
TOPICS = {r'/rog/fleet_status': msg.FleetStatus, r'/robot\d+/training_status': msg.TrainingStatus}


def foxglove():
    """Return the topic paths in the Foxglove panels: all strings that begin with a slash."""
    def strings(value):
        if isinstance(value, dict | list):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from strings(inner)
        elif isinstance(value, str) and value.startswith('/'):
            yield value

    return sorted(strings(json.loads((LAYOUTS / 'foxglove.json').read_text())['configById']))


def plotjuggler():
    root = ElementTree.parse(LAYOUTS / 'plotjuggler.xml').getroot()
    return [curve.get('name') for curve in root.iter('curve')]


def split(path, separator):
    """Return the topic and the remaining part of a path."""
    topic = next((m[0] for t in TOPICS if (m := re.match(t, path))), path)
    rest = path[len(topic):]
    assert rest[:1] in ('', separator), f'{path} does not begin with a topic of ours'
    return topic, [part for part in rest.split(separator) if part]


def check(path, separator):
    if path == '/diagnostics':
        return
    topic, fields = split(path, separator)
    kind = next((kind for t, kind in TOPICS.items() if re.fullmatch(t, topic)), None)
    assert kind, f'{topic} is no topic of ours'
    for field in fields:
        name, is_list = field.removesuffix('[:]'), field.endswith('[:]')
        types = kind.get_fields_and_field_types()
        assert name in types, f'{path}: {kind.__name__} has no field {name}'
        assert is_list == types[name].startswith('sequence<')
        inner = types[name].removeprefix('sequence<').rstrip('>')
        kind = getattr(msg, inner.rpartition('/')[2], None)


@pytest.mark.parametrize('path', sorted({*foxglove()}))
def test_foxglove_shows_what_there_is(path):
    check(path, '.')


@pytest.mark.parametrize('path', plotjuggler())
def test_plotjuggler_shows_what_there_is(path):
    check(path, '/')
    topic, fields = split(path, '/')
    kind = next(kind for t, kind in TOPICS.items() if re.fullmatch(t, topic))
    assert kind.get_fields_and_field_types()[fields[-1]] in ('double', 'uint32', 'uint64')


def test_a_field_that_is_gone_would_be_found():
    for path, separator in (('/robot1/training_status.bandwith', '.'), ('/rog/status.mta', '.'),
                            ('/rog/fleet_status/robots[:]/nope', '/')):
        with pytest.raises(AssertionError):
            check(path, separator)


def test_every_panel_of_the_foxglove_layout_has_a_place_and_every_place_a_panel():
    layout = json.loads((LAYOUTS / 'foxglove.json').read_text())

    def panels(node):
        return [node] if isinstance(node, str) else panels(node['first']) + panels(node['second'])

    assert sorted(panels(layout['layout'])) == sorted(layout['configById'])
