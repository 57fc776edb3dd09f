"""Methods and codecs that installed packages register are found by their short names."""

from importlib.metadata import EntryPoint

import numpy as np
import pytest
from rog_core import plugins
from rog_core.codecs import RAW, codec_names, codec_on_wire, get_codec
from rog_core.codecs.raw import Raw
from rog_core.errors import ConfigError
from rog_core.method_check import check_named
from rog_core.methods import Team, create, is_known, usages
from rog_core.methods.ssp import Ssp


class Lag(Ssp):
    name = 'lag'


class Plain(Raw):
    name, number = 'plain', 77


class Twin(Raw):
    name, number = 'twin', 0


class Short(Plain):
    def _look(self, lengths, ids, data):
        return 0, 0, float(np.square(data[:data.size // 4 * 4].view('<f4')).sum())


class Lossy(Plain):
    def _add_on_host(self, partition, values, ids, data, factor):
        super()._add_on_host(partition, values, ids, data, factor * np.float32(0.9))


class Loud(Plain):
    def _look(self, lengths, ids, data):
        rule, at, energy = super()._look(lengths, ids, data)
        return rule, at, 2 * energy


class Strong(Plain):
    def scaled(self, partition, ids, data, factor):
        return data


class Wide(Plain):
    def sizes(self, lengths):
        return 8 * lengths


class Unfinished(Plain):
    def _add_on_host(self, partition, values, ids, data, factor):
        raise NotImplementedError('to do')


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    def entries(group, **values):
        return {name: EntryPoint(name, value, group) for name, value in values.items()}
    methods = entries('rog.methods', lag='test_plugins:Lag', gone='a_package_that_nobody_has:Gone')
    codecs = entries('rog.codecs', plain='test_plugins:Plain', twin='test_plugins:Twin',
                     other='test_plugins:Plain')
    monkeypatch.setattr(plugins, 'methods', lambda: methods)
    monkeypatch.setattr(plugins, 'codecs', lambda: codecs)


def test_a_registered_method_is_named_as_one_of_the_core_is():
    check_named('lag:4', Team())
    method = create(' lag:4+svrg ')
    assert isinstance(method, Lag) and method.bound == 5
    assert str(method) == method.asked == 'lag:4+svrg'
    assert is_known('lag:4') and 'lag' in usages()


def test_a_registered_method_that_cannot_be_imported_is_refused():
    with pytest.raises(ConfigError, match='a_package_that_nobody_has'):
        check_named('gone:4', Team())
    with pytest.raises(ConfigError, match='must be imported before'):
        create('gone:4')


def test_a_registered_codec_is_used_by_a_fleet_that_has_it_alone():
    codec = get_codec('plain')
    assert isinstance(codec, Plain) and codec is get_codec('plain') and 'plain' in codec_names()
    assert codec_on_wire(77, codec) is codec
    with pytest.raises(Exception, match='codec 77'):
        codec_on_wire(77, RAW)


def test_a_codec_is_named_as_it_is_asked_for():
    assert get_codec('other').name == 'other'
    assert get_codec('test_plugins:Plain').name == 'test_plugins:Plain'


@pytest.mark.parametrize(('name', 'why'), [
    ('twin', 'number that is free, got .* with 0'), ('test_plugins:Lag', 'cannot be loaded'),
    ('a_package_that_nobody_has:Codec', 'No module'), ('test_plugins:Gone', 'Gone'),
    ('test_plugins:ConfigError', 'must be a subclass'), ('zip', 'is unknown'),
    ('test_plugins:Short', 'a byte too short'), ('test_plugins:Lossy', 'what it decodes'),
    ('test_plugins:Loud', 'sum of the squares'), ('test_plugins:Strong', 'halve'),
    ('test_plugins:Wide', 'fails with random values: RemoteProtocolError'),
    ('test_plugins:Unfinished', 'fails with random values: NotImplementedError: to do')])
def test_a_codec_that_cannot_be_used_is_refused(name, why):
    with pytest.raises(ConfigError, match=why):
        get_codec(name)
