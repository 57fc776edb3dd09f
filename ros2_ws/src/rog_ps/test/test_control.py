"""Who may control a run."""

import sys
from types import SimpleNamespace

import pytest
from fleet_link.errors import SealError
from fleet_link.key import new_key
from fleet_link.seal import Caller
from fleet_ros.sealing import octets, serve
from rclpy.serialization import deserialize_message, serialize_message
from rog_core.errors import ConfigError
from rog_core.methods import is_known
from rog_msgs.srv import SaveCheckpoint
from rog_ps.control import Control


def test_only_methods_that_are_there_can_be_asked_for_without_importing_anything():
    assert is_known('diloco:8') and is_known('rsp:4') and is_known('rog_core.methods.rsp:Rsp:4')
    assert not is_known('antigravity:Fly') and 'antigravity' not in sys.modules
    with pytest.raises(ConfigError, match='at most 200 characters, got 100004'):
        is_known('rsp:' + '4' * 100_000)


# -- who may call


class Server:
    """The control services of a node; ``saved`` lists the names of its saved checkpoints."""

    def __init__(self, key=None, control=True):
        self.saved, self.services, self.refused = [], {}, []
        node = SimpleNamespace(
            create_service=lambda kind, name, answer: self.services.update({name: answer}),
            resolve_service_name='/rog/{}'.format)
        made = Control(SimpleNamespace(incarnation=5), key, control, act=None, save=self.save,
                       pin=None, stop=None, set_parameters=None, refused=self.refused.append)
        for kind, name, answer in made.services:
            serve(node, kind, name, answer, made.answerer, self.refused.append)

    def save(self, name):
        if name == 'bad':
            raise ConfigError('this cannot be a name')
        self.saved.append(name)
        return f'/out/{name}'

    def call(self, **fields):
        return self.services['save_checkpoint'](SaveCheckpoint.Request(**fields),
                                                SaveCheckpoint.Response())


class Client:
    """Calls a server with a key, as `rog control` does."""

    def __init__(self, server, key):
        self.server, self.caller = server, Caller(key.control(), '', 3)
        assert self.ask('first') is None, 'this call does not know the process of the server'

    def ask(self, name):
        sealed = self.caller.call(PURPOSE, serialize_message(SaveCheckpoint.Request(name=name)))
        answer = self.server.call(sealed=octets(sealed))
        response = self.caller.answer(PURPOSE, sealed, bytes(answer.sealed))
        return response and deserialize_message(response, SaveCheckpoint.Response)


KEY = new_key()
PURPOSE = '/rog/save_checkpoint'


def test_who_has_the_key_is_obeyed_and_told_what_was_wrong():
    server = Server(KEY)
    client = Client(server, KEY)
    assert client.ask('a').message == '/out/a'
    bad = client.ask('bad')
    assert not bad.success and bad.message == 'this cannot be a name' and server.saved == ['a']
    assert server.refused == ['refused a control call: this cannot be a name']


def test_who_has_no_key_or_another_one_is_refused_and_the_answer_proves_nothing():
    server = Server(KEY)
    answer = server.call(name='a')
    assert not answer.success and 'the server has a key' in answer.message
    assert not len(answer.sealed) and not server.saved
    with pytest.raises(SealError):
        Client(server, new_key())
    assert not server.saved


def test_a_fleet_may_take_no_control_calls_and_says_so():
    server = Server(KEY, control=False)
    answer = Client(server, KEY).ask('a')
    assert not answer.success and 'takes no control calls' in answer.message and not server.saved


def test_without_a_key_everybody_is_answered():
    server = Server()
    assert server.call(name='a').success and server.call(name='a').success
    assert server.saved == ['a', 'a']
