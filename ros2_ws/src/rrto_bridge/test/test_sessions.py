"""Sessions: who may join, what happens when a program's process ends, and each session's stream."""

import math
import signal

import pytest
import torch
from fleet_compute.weights import Weights
from fleet_link.session import SILENT, End
from fleet_link.stream import FRAME, MOST_BYTES, WINDOW, Ack, Frame, Receiver, Sender
from rrto_bridge.client.machine import ClientMachine
from rrto_bridge.execution.context import Context
from rrto_bridge.execution.perform import Performer
from rrto_bridge.protocol.errors import RemoteError
from rrto_bridge.protocol.messages import ENDED, PROTOCOL, OpenRequest
from rrto_bridge.protocol.names import graph_name, is_graph_name
from rrto_bridge.protocol.record import Call, Meta, Ref
from rrto_bridge.protocol.tensors import pack, unpack
from rrto_bridge.server.machine import (
    AT_ONCE,
    Begin,
    Ending,
    Kill,
    Leave,
    Limits,
    ServerMachine,
    Tell,
)
from rrto_bridge.server.session import QUEUE, QUEUED, ProgramSession


def session(**limits):
    return ProgramSession(Limits(**limits), 0.0)


class Program:
    """A client, its stream, and its session at the server; `now` is the time in seconds."""

    def __init__(self, limit=1 << 20):
        self.session = session(memory=1, lease=5.0)
        self.performer = Performer(Context(torch.device('cpu'), limit), Weights())
        self.machine = ClientMachine('rpc')
        self.sender, self.receiver = Sender(), Receiver(1 << 30)
        self.error = ''
        self.now = 0.0

    def send(self, message):
        self.sender.offer(message)
        self.talk()

    def talk(self):
        """Carry packets both ways until nothing is due."""
        while True:
            self.now += 1e-4
            for frame in self.sender.poll(self.now):
                self.session.receive(frame, self.now)
            packets = self.session.poll(self.now)
            for packet in packets:
                self.take(packet)
            due = self.session.deadline <= self.now   # as after a ping
            if not packets and (due or not self.sender.link.quiet):
                self.now = max(self.now, min(self.session.deadline, self.sender.deadline))
            elif not packets:
                return

    def take(self, packet):
        if isinstance(packet, End):
            self.error = self.error or packet.reason
            self.session.receive(packet, self.now)      # the answer
        elif isinstance(packet, Frame):
            for message in self.receiver.take(packet, self.now):
                self.machine.on_message(message)
            self.session.receive(self.receiver.ack(self.now), self.now)
        else:
            self.sender.on_ack(packet, self.now)

    def execute(self):
        while (message := self.session.work()) is not None:
            self.executed(message)

    def executed(self, message):
        try:
            for reply in self.performer.perform(message):
                self.session.reply(reply)
                self.talk()
        except RemoteError as wrong:
            self.session.fail(str(wrong), self.now)
        self.session.done(self.now)
        self.talk()

    def wait(self, ticket):
        for message in self.machine.outgoing():
            self.send(message)
        self.execute()
        return self.machine.result(ticket)

    def upload(self, tensor):
        handle, ticket = self.machine.upload(*pack(tensor))
        self.wait(ticket)
        return handle

    def download(self, handle):
        return unpack(*self.wait(self.machine.download(handle)))


# -- sessions --------------------------------------------------------------------------------------

def test_a_program_computes():
    program = Program()
    handle = program.upload(torch.tensor([1.0, 2.0]))
    first, ticket = program.machine.issue(
        Call('aten.add.Tensor', (Ref(handle), Ref(handle))), (), False)
    assert program.wait(ticket) == Meta((2,), (1,), 'float32')
    assert program.download(first).tolist() == [2.0, 4.0]


def test_a_server_that_leaves_completes_what_the_program_has_begun():
    program = Program()
    handle = program.upload(torch.ones(2))
    ticket = program.machine.download(handle)
    for message in program.machine.outgoing():
        program.send(message)
    message = program.session.work()
    program.session.leave(program.now)
    assert not program.session.poll(program.now) and not program.session.ended
    program.executed(message)
    assert unpack(*program.machine.result(ticket)).tolist() == [1.0, 1.0]
    assert program.session.ended == program.error == ENDED and not program.session.fault


def test_a_server_that_leaves_does_not_wait_for_a_long_operator():
    program = Program()
    for message in program.machine.download(program.upload(torch.ones(2))) and \
            program.machine.outgoing():
        program.send(message)
    assert program.session.work() is not None
    program.session.leave(program.now)
    assert program.session.poll(program.now) == []
    assert program.session.poll(program.session.deadline) == [End(ENDED)]


def test_large_messages_and_replies_come_through():
    program = Program(limit=1 << 30)
    # Each message and each reply needs several frames.
    values = torch.arange(200_000, dtype=torch.float32)
    handles = [program.upload(values + k) for k in range(3)]
    assert all(torch.equal(program.download(h), values + k) for k, h in enumerate(handles))


def test_a_silent_program_is_forgotten_after_the_lease():
    made = session(lease=5.0)
    made.receive(Frame(0, 0, False, b''), 1.0)
    answer, = made.poll(made.deadline)
    assert answer.packet == 0 and answer.number == 0
    assert made.deadline == 6.0 and made.poll(5.9) == []
    assert made.poll(6.0) == [End(SILENT)] and made.ended == SILENT and not made.fault


def test_a_program_that_says_goodbye_is_forgotten():
    made = session()
    made.receive(End('it ends'), 0.0)
    assert made.poll(0.0) == [End('it ends')] and made.over and not made.fault
    made.reply(b'late')
    made.receive(Frame(0, 0, True, b'x'), 0.1)
    assert made.work() is None and made.poll(0.2) == []


def test_a_malformed_message_ends_the_session_and_says_why():
    program = Program()
    program.send(b'\xff\x00')
    program.execute()
    assert 'unknown tag' in program.error and program.session.ended == program.error
    assert program.session.fault


def test_a_flood_of_messages_is_held_back():
    program = Program()
    for _ in range(2000):
        program.send(b'N')
    assert program.sender.next <= QUEUE + 1 + WINDOW and not program.session.ended
    done = 0
    while program.session.work() is not None:
        done += 1
        program.session.done(program.now)
        program.talk()
    assert done == 2000


def test_a_program_that_missed_the_new_limit_is_told_it_again():
    program = Program()
    for _ in range(2000):
        program.send(b'N')
    sent = program.sender.next
    while program.session.work() is not None:
        program.session.done(program.now)
        program.session.poll(program.now)   # these acknowledgements are lost
    program.now = program.sender.deadline
    program.talk()
    assert program.sender.next > sent


def test_large_messages_are_held_back_by_their_bytes():
    program = Program()
    for _ in range(64):
        program.send(bytes(1 << 20))
    assert program.sender.waiting > 40 << 20 and not program.session.ended


@pytest.mark.parametrize('frames', [
    [Frame(k, k, True, b'N') for k in range(2000)],
    [Frame(k, k, True, bytes(FRAME)) for k in range(2000)],
    [Frame(k, k, k % 8 == 7, bytes(FRAME)) for k in range(2000)],
    [Frame(k, k + 1, True, bytes(FRAME)) for k in range(2000)]],
    ids=['many', 'large', 'longer', 'gap'])
def test_who_sends_beyond_the_limit_is_dropped(frames):
    made = session(memory=1)
    taken = 0
    for frame in frames:
        if made.ended:
            break
        made.receive(frame, 0.0)
        made.poll(0.0)
        taken += len(frame.data)
    assert made.fault and taken < (1 << 20) + QUEUED + (WINDOW + 2) * FRAME


@pytest.mark.parametrize(('packet', 'why'), [
    (Frame(0, 0, False, bytes(FRAME + 1)), 'a frame must have'),
    (Frame(1, WINDOW, True, b'N'), 'it sent frame 256'),
    (Ack(0, 0, 0.0, 0.0, 0, 0), 'acknowledged packet')])
def test_what_no_client_sends_ends_the_session(packet, why):
    made = session(memory=1)
    made.receive(packet, 0.0)
    end, = made.poll(0.0)
    assert why in end.reason and made.fault


def test_a_lost_reply_is_sent_again():
    made = session()
    made.reply(b'reply')
    first, = made.poll(0.0)
    again, = made.poll(made.deadline)
    assert again.packet == first.packet + 1
    assert (again.number, again.data) == (first.number, b'reply')


def test_who_does_not_take_its_replies_is_not_executed_further():
    """The server stops executing messages of a client that does not acknowledge its replies.

    Otherwise the waiting replies could fill the server's memory.
    """
    made = session()
    receiver = Receiver(1 << 30)
    for number in range(20):
        made.receive(Frame(number, number, True, b'N'), 0.0)
    executed, packets = 0, []
    while made.work() is not None:
        executed += 1
        made.reply(bytes(2 << 20))
        packets += made.poll(0.0)
    assert executed < 8
    now = 0.0
    while packets and made.work() is None:
        now += 1e-3
        if isinstance(packet := packets.pop(0), Frame):
            receiver.take(packet, now)
        made.receive(receiver.ack(now), now)
        packets += made.poll(now)
    assert packets and receiver.bytes < MOST_BYTES


# -- the supervisor --------------------------------------------------------------------------------

def request(program, incarnation=1, protocol=PROTOCOL):
    return OpenRequest(protocol, program, incarnation)


@pytest.fixture
def server():
    return ServerMachine(Limits(programs=2, memory=1, lease=5.0, operator=3.0))


def test_a_program_gets_a_process(server):
    assert server.on_open(request('a', 7), 0.0) == ('', [Begin('a', 7)])
    # The program repeats the request, because the answer may have been lost.
    assert server.on_open(request('a', 7), 0.0) == ('', [])
    assert server.programs == ['a']


@pytest.mark.parametrize(('asked', 'reason'), [
    (request('c', protocol=PROTOCOL + 1), 'install the same rrto on both'),
    (request('c/d'), 'single underscores'), (request('1x'), 'single underscores'),
    (request(''), 'single underscores'),
    (request('a__b'), 'single underscores'), (request('a' * 101), 'single underscores'),
    (request('é'), 'single underscores'),
    (request('a', 2), "'a' is connected"), (request('c'), 'limit')])
def test_who_does_not_fit_is_told_why(server, asked, reason):
    server.on_open(request('a'), 0.0)
    server.on_open(request('b'), 0.0)
    refusal, actions = server.on_open(asked, 0.0)
    assert reason in refusal and actions == [] and server.programs == ['a', 'b']


def test_a_peer_that_comes_again_and_again_does_not_keep_the_server_starting_processes():
    server = ServerMachine(Limits(programs=8))

    def come(now):
        return [a for k in range(8) for a in server.on_open(request(f'p{k}', now), now)[1]]

    # The first four programs start at once, so that a fleet of four need not wait.
    assert come(0) == [Begin(f'p{k}', 0) for k in range(4)]
    assert [server.on_time(now) for now in (0.5, 1.0, 1.5, 3.0, 9.0)] == [
        [], [Begin('p4', 0)], [], [Begin('p5', 0), Begin('p6', 0)], [Begin('p7', 0)]]
    assert server.deadline == math.inf
    for k in range(8):
        server.on_ended(f'p{k}', Ending(0, 'it ends', told=True), 9.0)
    began = 0
    for k in range(100):    # a peer connects again every 0.1 s, each time under a new name
        now = 20 + k / 10
        actions = [*server.on_open(request(f'q{k}', 0), now)[1], *server.on_time(now)]
        began += len(actions)
        for begin in actions:
            server.on_ended(begin.program, Ending(2, 'no message', told=True), now)
    assert began == 3    # each failed start delays the next start as much as four starts


def test_a_process_that_dies_is_a_clear_error_of_its_program_alone(server):
    server.on_open(request('a'), 0.0)
    server.on_open(request('b'), 0.0)
    error = 'its process on the server was ended by SIGSEGV in aten.x.default'
    assert server.on_ended('a', Ending(-11, name='aten.x.default'), 0.0) == [
        Tell('a', 1, error), Leave('a', error)]
    assert server.programs == ['b']
    assert server.on_ended('a', Ending(-11), 0.0) == []


def test_a_process_that_ends_in_order_has_told_its_program(server):
    server.on_open(request('a'), 0.0)
    assert server.on_ended('a', Ending(0, 'it ends', told=True), 0.0) == [Leave('a', 'it ends')]


def test_a_reason_that_the_process_could_not_tell_is_told_by_the_server(server):
    server.on_open(request('a', 7), 0.0)
    error = 'the server cannot start a process for the program: no process is left'
    assert server.on_ended('a', Ending(1, error), 0.0) == [
        Tell('a', 7, error), Leave('a', error)]
    assert server.programs == []


def test_a_process_that_cannot_start_delays_the_next_start():
    server = ServerMachine()
    for k in range(4):
        assert server.on_open(request(f'p{k}'), 0.0)[1] == [Begin(f'p{k}', 1)]
    server.on_ended('p0', Ending(1, 'no process is left'), 0.0)
    assert server.on_open(request('p4'), 0.0) == ('', [])
    assert server.on_time(4.9) == [] and server.on_time(5.0) == [Begin('p4', 1)]


@pytest.mark.parametrize(('ending', 'late'), [
    (Ending(-signal.SIGALRM, 'it ends', told=True), 1.0),   # it hung while it left the ROS graph
    (Ending(-signal.SIGALRM), 5.0), (Ending(-signal.SIGSEGV, 'it ends', told=True), 5.0),
    (Ending(2, 'no message', told=True), 5.0)])
def test_only_a_process_that_hung_after_its_work_does_not_delay_the_next_start(ending, late):
    server = ServerMachine()
    for k in range(4):
        server.on_open(request(f'p{k}'), 0.0)
    server.on_ended('p0', ending, 0.0)
    server.on_open(request('p4'), 0.0)
    assert server.deadline == late


def test_a_program_that_left_before_its_turn_gets_no_process():
    server = ServerMachine()
    for k in range(6):
        server.on_open(request(f'p{k}'), 0.0)
    server.on_ended('p4', Ending(0, 'it is refused after all'), 0.0)
    assert server.on_time(9.0) == [Begin('p5', 1)] and server.deadline == math.inf


def test_an_operator_that_does_not_end_is_ended_with_its_process(server):
    server.on_open(request('a'), 0.0)
    assert server.on_progress('a', 5, True, 'aten.x', 0.0) == []
    # The process now executes another operator.
    assert server.on_progress('a', 6, True, 'aten.x', 3.0) == []
    assert server.on_progress('a', 6, False, 'aten.x', 6.5) == []  # the process is idle
    assert server.on_progress('a', 7, True, 'aten.y', 7.0) == []
    assert server.on_progress('a', 7, True, 'aten.y', 10.0) == []
    assert server.on_progress('a', 7, True, 'aten.y', 10.1) == [Kill('a')]
    assert server.on_progress('a', 7, True, 'aten.y', 11.0) == []
    told, left = server.on_ended('a', Ending(-9, name='aten.y'), 0.0)
    assert told.reason == left.reason and told.reason.startswith('aten.y took longer than 3 s')


def test_a_server_that_ends_tells_its_programs(server):
    server.on_open(request('a'), 0.0)
    server.on_open(request('b', 2), 0.0)
    actions = server.close()
    assert actions == [a for name, life in (('a', 1), ('b', 2)) for a in (
        Tell(name, life, 'the server has ended'), Leave(name, 'the server has ended'))]
    assert server.programs == []


def test_a_server_that_leaves_refuses_programs_and_tells_those_that_wait():
    server = ServerMachine()
    names = [f'p{k}' for k in range(AT_ONCE + 1)]
    for name in names:
        server.on_open(request(name), 0.0)
    assert server.leave(0.0) == [Tell(names[-1], 1, ENDED), Leave(names[-1], ENDED)]
    assert server.programs == names[:-1]
    assert server.on_open(request('late'), 0.0) == ('the server ends', [])
    assert server.on_time(100.0) == []


def test_a_server_that_can_start_no_process_says_so(server):
    server.broken = 'it has to be started again'
    assert server.on_open(request('a'), 0.0) == (server.broken, []) and server.programs == []


def test_names_on_the_graph_are_valid_and_stay_what_they_are():
    for text, name in [('3f2a-1', 'n3f2a_1'), ('laptop', 'laptop'), ('a__b', 'a_b'), ('', 'n'),
                       ('_x_', 'x'), ('robot.local', 'robot_local'), ('é1', 'n1'), ('...', 'n')]:
        assert graph_name(text) == name == graph_name(name) and is_graph_name(name)
    assert is_graph_name(graph_name('a' * 300)) and is_graph_name(graph_name('1' * 300))
    assert is_graph_name(graph_name('a' * 99 + '-b'))


def test_a_paused_server_refuses_new_programs_and_keeps_those_that_are_connected():
    server = ServerMachine()

    def opens(program):
        return server.on_open(OpenRequest(PROTOCOL, program, 1), 0.0)
    assert opens('a') == ('', [Begin('a', 1)])
    server.paused = True
    reason, actions = opens('b')
    assert 'paused' in reason and not actions
    assert opens('a') == ('', []) and server.programs == ['a']
    server.paused = False
    assert opens('b') == ('', [Begin('b', 1)])
