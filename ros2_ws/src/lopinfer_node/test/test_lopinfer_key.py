"""With a key, a stranger who hears and sends everything reads, changes and gets nothing.

The stranger is a node that subscribes to all topics of the pair, and offers and calls its services.
"""

import os
from contextlib import contextmanager

import pytest
import rclpy
import torch
from fleet_env.settings.fleet import AccessConfig
from fleet_link.errors import KeyFileError
from fleet_link.key import new_key, write_key
from fleet_msgs.msg import Frame
from fleet_ros.qos import STREAM
from fleet_ros.sealing import octets
from fleet_ros.spinning import Spinning
from fleet_testing import LIMIT, eventually, free_domain
from lopinfer_msgs import msg, srv
from lopinfer_node import qos
from lopinfer_node.api import offload
from lopinfer_node.ros import client_shell
from lopinfer_node.ros.client_shell import ClientOptions
from lopinfer_node.ros.convert import to_ros
from lopinfer_node.ros.upload import ModelStream
from lopinfer_node.runtime.choice import PlanChoice
from lopinfer_node.runtime.client import OPENING, CallOpen
from lopinfer_node.runtime.wire import Piece
from rclpy.context import Context
from rclpy.node import Node
from rclpy.serialization import deserialize_message, serialize_message
from runtime_models import Small
from test_nodes import SHAPE, halves, same, server_here, tried_once  # noqa: F401

TOPICS = {'up': msg.Piece, 'down': msg.Piece, 'up_ack': msg.Ack, 'down_ack': msg.Ack}


@pytest.fixture(autouse=True)
def domain(monkeypatch):
    """Set a DDS domain that only this test uses."""
    monkeypatch.setenv('ROS_DOMAIN_ID', str(free_domain()))


@pytest.fixture(scope='module')
def keys(tmp_path_factory):
    """Return the settings with each key."""
    folder, key = tmp_path_factory.mktemp('keys'), new_key()
    for name, one in (('fleet', key), ('other', new_key()), ('robot1', key.of('robot1')),
                      ('robot2', key.of('robot2'))):
        write_key(folder / f'{name}.key', one)
    return {name: AccessConfig(key=str(folder / f'{name}.key'))
            for name in ('fleet', 'other', 'robot1', 'robot2')}


def shared_by(access, model, x, robot='robot1'):
    return offload(model, example=x, robot=robot, options=ClientOptions(halves, access=access))


class Stranger:
    """Hears all topics between robot1 and the server; can say anything there and call services."""

    def __init__(self):
        self.context = Context()
        rclpy.init(context=self.context)
        self.node = Node('stranger', context=self.context)
        self.heard = {name: [] for name in TOPICS}
        self.publishers = {}
        for name, kind in TOPICS.items():
            topic = f'/robot1/lopinfer/{name}'
            self.node.create_subscription(kind, topic, self.heard[name].append, qos.PIECE)
            self.publishers[name] = self.node.create_publisher(kind, topic, qos.PIECE)
        self.frames = []        # of the model
        self.hears_frames = self.node.create_subscription(
            Frame, '/robot1/lopinfer/model/up', self.frames.append, STREAM).get_publisher_count
        self.clients = {name: self.node.create_client(kind, f'/lopinfer/{name}') for name, kind in (
            ('open', srv.Open), ('set_plans', srv.SetPlans))}
        self.spinning = Spinning(self.node)

    def close(self):
        self.spinning.close()
        self.node.destroy_node()
        self.context.try_shutdown()

    def call(self, name, request):
        client = self.clients[name]
        assert client.wait_for_service(LIMIT)
        future = client.call_async(request)
        eventually(future.done)
        return future.result()

    def everything(self):
        """Return all bytes that were heard."""
        return b''.join(serialize_message(m) for messages in (*self.heard.values(), self.frames)
                        for m in messages)


@contextmanager
def stranger_here():
    stranger = Stranger()
    try:
        yield stranger
    finally:
        stranger.close()


def copy(message):
    return deserialize_message(serialize_message(message), type(message))


def changed(name, message):
    """Yield false versions of a message."""
    for field in ('packet', 'incarnation', *(('request', 'transfer', 'bin') if name in (
            'up', 'down') else ('mask', 'status'))):
        other = copy(message)
        setattr(other, field, getattr(message, field) ^ 1)
        yield other
    other = copy(message)
    field = 'data' if name in ('up', 'down') else 'tag'
    setattr(other, field, octets(bytes(len(getattr(message, field)))))
    yield other
    other = copy(message)
    setattr(other, field, [])
    yield other


def false_results(message):
    """Return pieces with zeros that would be right without a key."""
    piece = Piece(message.incarnation, message.plan, message.packet + 1000, message.request,
                  message.transfer, message.part, message.parts, message.bin, 0.0,
                  bytes(max(0, len(message.data) - 16)), size=message.size)
    return to_ros(piece.sealed())


def test_a_stranger_reads_and_changes_nothing_and_the_honest_robot_is_served(
        keys, tmp_path, monkeypatch):
    model, inputs = Small().eval(), [torch.rand(SHAPE) for _ in range(8)]
    with torch.no_grad():
        wanted = [model(x) for x in inputs]

    def stream(*arguments):
        made = ModelStream(*arguments)
        eventually(stranger.hears_frames)    # before the first frame
        return made
    monkeypatch.setattr(client_shell, 'ModelStream', stream)
    with stranger_here() as stranger, server_here(tmp_path, access=keys['fleet']) as server, \
            shared_by(keys['robot1'], model, inputs[0]) as shared:
        assert shared.wait(LIMIT), shared.reason  # the model was sent, sealed
        for x, want in zip(inputs[:3], wanted, strict=False):
            same(shared(x), want)
        assert shared.report.offloaded == 3
        eventually(lambda: all(stranger.heard.values()) and stranger.frames)
        everything = stranger.everything()
        values = torch.cat([x.flatten() for x in (*inputs[:3], *model.parameters())])
        values = values.detach().numpy()
        pairs = values[:len(values) // 2 * 2].reshape(-1, 2)[::50]
        assert not any(pair.tobytes() in everything for pair in pairs)
        before = sum(server.machine.dropped.values())
        old = [(name, message) for name, messages in stranger.heard.items()
               for message in messages[-20:]]
        for name, message in old:
            for other in (message, *changed(name, message)):
                stranger.publishers[name].publish(other)
        for x, want in zip(inputs, wanted, strict=True):
            for message in stranger.heard['down'][-5:]:
                stranger.publishers['down'].publish(false_results(message))
            same(shared(x), want)
        eventually(lambda: server.machine.dropped['unproved'] > before)
        eventually(lambda: shared._client.present.machine.dropped['unproved'] > 0)
        assert shared.shared and server.machine.clients == ['robot1']
        # calls that are not sealed, and sealed ones that somebody else or nobody has made
        for name, request in (('open', srv.Open.Request(protocol=3, client='robot1')),
                              ('set_plans', srv.SetPlans.Request(client='robot1'))):
            answer = stranger.call(name, request)
            assert 'the server has a key' in answer.reason and not len(answer.sealed)
            request.sealed = bytes(90)
            answer = stranger.call(name, request)
            assert not answer.reason and not len(answer.sealed)
        same(shared(inputs[0]), wanted[0])


def test_an_updated_model_is_sealed_and_shared_too(keys, tmp_path):
    model, x = Small().eval(), torch.rand(SHAPE)
    with server_here(tmp_path, access=keys['fleet']), \
            shared_by(keys['robot1'], model, x) as shared:
        assert shared.wait(LIMIT), shared.reason
        for sign in (-3.0, 2.0):
            with torch.no_grad():
                model.head.weight.mul_(sign)
            shared.update()
            before = shared.report.offloaded
            eventually(lambda n=before: same(shared(x), model(x)) or shared.report.offloaded > n)


def test_what_was_heard_of_a_session_is_of_no_use_in_the_next(keys, tmp_path):
    model, x = Small().eval(), torch.rand(SHAPE)
    with stranger_here() as stranger:
        asked = []

        def listen(request, response):
            asked.append(copy(request))
            return response
        service = stranger.node.create_service(srv.Open, '/lopinfer/open', listen)
        with shared_by(keys['robot1'], model, x) as shared:
            eventually(lambda: len(asked) > 1)
            stranger.node.destroy_service(service)
            with server_here(tmp_path, access=keys['fleet']):
                assert shared.wait(LIMIT), shared.reason
                same(shared(x), model(x))
                eventually(lambda: all(stranger.heard.values()))
        with server_here(tmp_path, access=keys['fleet']) as server:
            for request in asked:
                answer = stranger.call('open', request)
                assert not answer.incarnation and not server.machine.clients
            with shared_by(keys['robot1'], model, x) as shared:
                assert shared.wait(LIMIT), shared.reason
                client = shared._client.present.machine
                old = [(name, message) for name, messages in stranger.heard.items()
                       for message in messages]

                def again():
                    for name, message in old:
                        message.incarnation = client.incarnation
                        stranger.publishers[name].publish(message)
                eventually(lambda: server.machine.dropped['unproved'] and client.dropped[
                    'unproved'], step=again)
                same(shared(x), model(x))


@pytest.mark.parametrize(('robot', 'server', 'why'), [
    (None, 'fleet', 'the server has a key: make one for this robot'),
    ('other', 'fleet', 'not connected yet'), ('robot1', None, 'not connected yet')])
def test_who_lacks_the_right_key_runs_alone_and_is_told_why(keys, robot, server, why, tmp_path,
                                                            capfd):
    model, x = Small().eval(), torch.rand(SHAPE)
    with server_here(tmp_path, access=keys.get(server, AccessConfig())) as there, \
            shared_by(keys.get(robot, AccessConfig()), model, x) as shared:
        said = ''

        def told():
            nonlocal said
            said += ''.join(capfd.readouterr())
            return 'it is not sealed' in said
        eventually(told)
        eventually(lambda: why in shared.reason)
        same(shared(x), model(x))
        assert not there.machine.clients and shared.report.offloaded == 0


def test_a_key_opens_only_what_is_meant_for_its_robot(keys, tmp_path):
    model, x = Small().eval(), torch.rand(SHAPE)
    with pytest.raises(KeyFileError, match="the key of 'robot2', not of 'robot1'"), \
            shared_by(keys['robot2'], model, x):
        pass
    with pytest.raises(KeyFileError, match="needs the fleet's own"), \
            server_here(tmp_path, access=keys['robot1']):
        pass
    with offload(model, example=x, options=ClientOptions(halves, access=keys['robot2'])) as shared:
        assert shared._client.present.robot == 'robot2', 'the robot of the key'


def test_several_servers_of_a_team_take_the_key_of_one_robot(keys, tmp_path):
    model, x = Small().eval(), torch.rand(SHAPE)
    options = ClientOptions(halves, '/s1,/s2', access=keys['robot1'])
    with server_here(tmp_path / '1', '/s1', access=keys['fleet']) as first, \
            server_here(tmp_path / '2', '/s2', access=keys['fleet']) as second, \
            offload(model, '/s1,/s2', x, 'robot1', options) as shared:
        for server in (first, second):
            eventually(lambda server=server: server.machine.clients)
        assert shared.wait(LIMIT)
        eventually(lambda: same(shared(x), model(x)) or shared.report.offloaded > 3)
        assert {*first.machine.clients, *second.machine.clients} == {'robot1', 'robot1/server2'}
        assert not first.machine.dropped['unproved'] and not second.machine.dropped['unproved']


def test_off_this_machine_nothing_starts_without_a_key_or_consent(tmp_path, monkeypatch, keys):
    for name in list(os.environ):
        if name.startswith(('FASTRTPS', 'FASTDDS', 'CYCLONEDDS', 'ROS_AUTOMATIC')):
            monkeypatch.delenv(name)
    monkeypatch.setattr('fleet_ros.exposure.leaves_machine', lambda environment: True)
    model, x = Small().eval(), torch.rand(SHAPE)
    with monkeypatch.context() as untraced:     # refused before the trace, which takes seconds
        untraced.setattr('lopinfer_node.api._Given', None)
        with pytest.raises(ValueError, match='would leave this machine without a key'), \
                offload(model, example=x):
            pass
    monkeypatch.setenv('FLEET_KEY', keys['robot1'].key)
    monkeypatch.setattr(rclpy, 'init', lambda **options: (_ for _ in ()).throw(StopIteration))
    with pytest.raises((StopIteration, RuntimeError)), offload(model, example=x):
        pass


def test_a_robot_that_opens_its_model_again_goes_on_in_its_session(keys, tmp_path, monkeypatch):
    """After an outage a robot opens its model again, and the server may not have noticed anything.

    What both sides say goes on to be numbered, so nothing looks repeated.
    """
    monkeypatch.setattr(PlanChoice, 'patience', lambda *_: LIMIT)
    model, x = Small().eval(), torch.rand(SHAPE)
    with server_here(tmp_path, access=keys['fleet']) as server, \
            shared_by(keys['robot1'], model, x) as shared:
        assert shared.wait(LIMIT), shared.reason
        machine = shared._client.present.machine

        def opens(now):
            machine._enter(OPENING, 'a test')
            machine._again = now
            # The server answers each call, and the client takes the first answer.
            return [*machine.on_time(now), CallOpen(), CallOpen()]
        for _ in range(3):
            same(shared(x), model(x))
            shared._client.present._step(opens)
            assert shared.wait(LIMIT), shared.reason
        before = shared.report.offloaded
        for _ in range(5):
            same(shared(x), model(x))
        assert shared.report.offloaded == before + 5
        assert not server.machine.dropped['unproved'] and not machine.dropped['unproved']


def test_a_forked_child_does_not_speak_in_its_parents_session(keys, tmp_path):
    model, x = Small().eval(), torch.rand(SHAPE)
    with server_here(tmp_path, access=keys['fleet']), shared_by(keys['robot1'], model, x) as shared:
        assert shared.wait(LIMIT), shared.reason
        child = os.fork()
        if not child:
            os._exit(0 if not shared.shared and 'forked' in shared.reason else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        same(shared(x), model(x))
        assert shared.shared


def test_a_server_with_a_key_is_driven_by_nobody(keys, tmp_path):
    from fleet_ros.managed import ManagedNode
    from lopinfer_node.ros.server_node import ServerNode
    from rclpy.parameter import Parameter
    context = Context()
    rclpy.init(context=context)
    try:
        for key, offered in (('', True), (keys['fleet'].key, False)):
            node = ServerNode(context=context, parameter_overrides=[
                Parameter('directory', value=str(tmp_path)), Parameter('security.key', value=key)])
            assert isinstance(node, ManagedNode)
            assert any('change_state' in service.srv_name for service in node.services) == offered
            node.held.close()
            node.destroy_node()
    finally:
        context.try_shutdown()
