"""Sessions: who may join, leases, one program's faults are not another's."""

import pytest
import torch
from rrto_bridge.client import ClientMachine
from rrto_bridge.context import Context
from rrto_bridge.perform import Performer, Weights
from rrto_bridge.record import Call, Meta, Ref
from rrto_bridge.server import PROTOCOL, Join, Leave, Limits, OpenRequest, SendAck, ServerMachine
from rrto_bridge.stream import Receiver, Sender
from rrto_bridge.tensors import pack, unpack


class Program:
    """A client, its stream, and the server machine at the other end; time is `now`."""

    def __init__(self, server, name, incarnation=1):
        self.server, self.name, self.incarnation = server, name, incarnation
        self.machine = ClientMachine('rpc')
        self.sender, self.receiver = Sender(), Receiver(1 << 30)
        self.error = ''
        self.now = 0.0
        self.refusal, self.actions = server.on_open(
            OpenRequest(PROTOCOL, name, incarnation, '2', 'ops'), self.now)

    def send(self, message):
        self.sender.offer(message)
        for frame in self.sender.poll():
            self.take(self.server.on_frame(self.name, self.incarnation, frame, self.now))

    def take(self, actions):
        for action in actions:
            if isinstance(action, SendAck):
                self.error = self.error or action.error
                self.sender.on_ack(min(action.number, self.sender.next))
            elif not isinstance(action, (Join, Leave)):
                message, _ = self.receiver.take(action.frame)
                if message is not None:
                    self.machine.on_message(message)

    def wait(self, ticket):
        for message in self.machine.outgoing():
            self.send(message)
        while work := self.server.work():
            replies, error = [], ''
            try:
                replies = work.session.performer.perform(work.message)
            except Exception as wrong:
                error = str(wrong)
            self.take(self.server.on_done(work, replies, error))
        return self.machine.result(ticket)

    def upload(self, tensor):
        handle, ticket = self.machine.upload(*pack(tensor))
        self.wait(ticket)
        return handle

    def download(self, handle):
        return unpack(*self.wait(self.machine.download(handle)))


@pytest.fixture
def server():
    weights = Weights(1 << 20)
    return ServerMachine(lambda: Performer(Context(torch.device('cpu'), 1 << 20), weights), '2',
                         'ops', Limits(programs=2, memory=1, lease=5.0))


def test_a_program_computes(server):
    program = Program(server, 'a')
    assert program.actions == [Join('a')]
    handle = program.upload(torch.tensor([1.0, 2.0]))
    first, ticket = program.machine.issue(
        Call('aten.add.Tensor', (Ref(handle), Ref(handle))), (), False)
    assert program.wait(ticket) == Meta((2,), (1,), 'float32')
    assert program.download(first).tolist() == [2.0, 4.0]


def test_programs_do_not_see_each_others_tensors(server):
    first, second = Program(server, 'a'), Program(server, 'b')
    handle = first.upload(torch.ones(3))
    with pytest.raises(RuntimeError, match='no tensor'):
        second.download(handle)
    assert second.upload(torch.zeros(3)) == handle
    assert first.download(handle).tolist() == [1, 1, 1]


def test_memory_is_freed_when_the_lease_is_over(server):
    program = Program(server, 'a')
    program.upload(torch.ones(1000))
    session = server.sessions[0]
    assert session.performer.used == 4000 and server.deadline == 5.0
    assert server.on_time(4.9) == []
    assert server.on_time(5.0) == [Leave('a', 'it was silent for too long')]
    assert session.performer.used == 0 and not server.sessions


def test_a_program_that_says_goodbye_is_forgotten(server):
    Program(server, 'a').upload(torch.ones(10))
    assert server.on_ack('a', 1, 0, 'it ends', 0.0) == [Leave('a', 'it ends')]


def test_a_server_that_ends_tells_its_programs(server):
    first, second = Program(server, 'a'), Program(server, 'b')
    first.upload(torch.ones(10))
    sessions = server.sessions
    actions = server.close()
    assert {a.program for a in actions if isinstance(a, SendAck) and a.error} == {'a', 'b'}
    assert not any(s.performer.used for s in sessions) and not server.sessions
    second.send(b'N')
    assert second.error == 'the server does not know this session'


def test_memory_is_freed_when_execution_ends_after_the_lease(server):
    program = Program(server, 'a')
    handle = program.upload(torch.ones(10))
    program.machine.download(handle)
    for message in program.machine.outgoing():
        program.send(message)
    work = server.work()
    server.on_time(100.0)
    replies = work.session.performer.perform(work.message)
    assert server.on_done(work, replies, '') == []
    assert work.session.performer.used == 0


def test_another_life_of_a_program_replaces_the_former(server):
    Program(server, 'a').upload(torch.ones(10))
    old = server.sessions[0]
    again = Program(server, 'a', incarnation=2)
    assert again.actions == [Leave('a', 'it began again'), Join('a')] and old.performer.used == 0
    assert again.upload(torch.ones(1)) == 1


def test_frames_of_a_former_life_are_answered_with_the_end(server):
    old = Program(server, 'a')
    Program(server, 'a', incarnation=2)
    old.send(b'x')
    assert old.error == 'the server does not know this session'
    assert len(server.sessions) == 1


@pytest.mark.parametrize(('request_', 'reason'), [
    (OpenRequest(PROTOCOL + 1, 'c', 1, '2', 'ops'), 'protocol'),
    (OpenRequest(PROTOCOL, 'c', 1, '1', 'other'), 'PyTorch 1'),
    (OpenRequest(PROTOCOL, 'c/d', 1, '2', 'ops'), 'no name'),
    (OpenRequest(PROTOCOL, 'c', 1, '2', 'ops'), 'limit'),
])
def test_who_does_not_fit_is_told_why(server, request_, reason):
    Program(server, 'a')
    Program(server, 'b')
    refusal, actions = server.on_open(request_, 0.0)
    assert reason in refusal and actions == []


def test_a_malformed_message_ends_its_own_session_only(server):
    good, bad = Program(server, 'a'), Program(server, 'b')
    handle = good.upload(torch.ones(3))
    bad.send(b'\xff\x00')
    work = server.work()
    with pytest.raises(RuntimeError) as caught:
        work.session.performer.perform(work.message)
    bad.take(server.on_done(work, [], str(caught.value)))
    assert 'unknown tag' in bad.error and [s.program for s in server.sessions] == ['a']
    assert good.download(handle).tolist() == [1, 1, 1]


def test_a_flood_of_messages_is_held_back(server):
    program = Program(server, 'a')
    for _ in range(2000):
        program.machine.allocate(1)
        program.send(b'N')
    assert len(server.sessions[0].messages) < 400
