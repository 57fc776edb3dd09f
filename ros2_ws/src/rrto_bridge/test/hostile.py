"""`python hostile.py SERVER SEED COUNT [FLOODS]`: a peer that sends what no program would send.

The peer sends allowed operators with random arguments, well-formed messages with random
contents, and messages in which one byte is random. Sometimes it sends a flood: many frames without
waiting for acknowledgements. The probability of a flood is proportional to FLOODS. When the peer's
process on the server dies or ends the session, the peer connects again under another
name. At its end, the peer prints a line of JSON: the numbers of operators, messages and
sessions, and the errors with which sessions ended.
"""

import collections
import contextlib
import json
import random
import re
import sys
import threading
import time

import rclpy
import torch
from fleet_link.errors import PeerError
from fleet_link.session import End
from fleet_link.stream import Frame, Receiver, Sender
from fleet_msgs import msg
from fleet_ros import qos
from fleet_ros.frames import packet_of, to_ros
from fleet_ros.spinning import Spinning
from rclpy.node import Node
from rrto_bridge.protocol.errors import Refused
from rrto_bridge.protocol.messages import PROTOCOL, OpenRequest
from rrto_bridge.protocol.operators import resolve
from rrto_bridge.protocol.record import Meta, Ref, Special
from rrto_bridge.protocol.tensors import DEVICE, contiguous, pack
from rrto_bridge.protocol.wire import decode, encode
from rrto_msgs import srv

PATIENCE = 60.0    # maximum time in seconds of each wait
# Number of random float32 tensors. They have only four different shapes, so that one operator
# often accepts several of them as its arguments.
FIT = 20
INTEGERS = (0, 1, -1, 2, 3, 7, -2, 64, 1000, -1000, 2**31 - 1, -2**31, 2**31, 2**62, -2**63)
FLOATS = (0.0, 1.0, -1.0, 0.5, 1e-5, 1e30, float('inf'), float('-inf'), float('nan'))
DTYPES = ('float32', 'float64', 'float16', 'bfloat16', 'int64', 'int32', 'uint8', 'bool',
          'complex64')
STRINGS = ('mean', 'sum', 'none', 'trunc', 'floor', 'ij', 'reflect', 'constant', 'tanh', '', 'x')
SHAPES = ((), (1,), (0,), (3,), (64,), (2, 3), (3, 3), (4, 6, 8), (1, 3, 8, 8), (2, 0, 3),
          (2, 4, 3, 3), (5, 2, 4, 4, 4), (8, 8), (1, 1))


def operators():
    """Return every operator that the server allows."""
    found = []
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name.removeprefix('aten::')
        if schema.name.startswith('aten::'):
            try:
                found.append(resolve(f'aten.{name}.{schema.overload_name or "default"}'))
            except Refused:
                continue
    return found


class Fuzzer:
    """Draws random messages."""

    def __init__(self, seed):
        self.chance = random.Random(seed)
        torch.manual_seed(seed)
        self.operators = operators()
        self.handles = list(range(1, 41))   # handles of the tensors that are uploaded first
        self.next = 1000
        self.number = 0

    def uploads(self):
        """Yield uploads of 40 tensors.

        The first `FIT` tensors are float32, and each has one of four shapes. The others have
        random types and shapes.
        """
        for handle in self.handles[:40]:
            dtype = torch.float32 if handle <= FIT else getattr(torch, self.chance.choice(DTYPES))
            shape = (1, 8, 8, 8)[-1 - handle % 4:] if handle <= FIT else self.chance.choice(SHAPES)
            tensor = (torch.randn(shape) * self.chance.choice((1, 10, 1e6))).to(dtype)
            yield ('htod', handle, *pack(tensor))

    def items(self, count):
        """Draw calls of operators; later calls use the results of some earlier calls."""
        return tuple(self.call() for _ in range(count))

    def call(self):
        operator = self.chance.choice(self.operators)
        arguments, keywords = [], []
        self.fitting = self.chance.random() < 0.6
        self.rank = self.chance.randrange(4)
        for argument in operator._schema.arguments:
            usual = self.fitting and argument.has_default_value() and self.chance.random() < 0.8
            if usual and not argument.kwarg_only and type(argument.default_value) in (
                    int, float, bool, str, type(None)):
                arguments.append(argument.default_value)
            elif argument.kwarg_only:
                if usual:
                    continue
                if argument.default_value is None and 'Optional' in str(argument.type) \
                        and self.chance.random() < 0.8:
                    continue
                keywords.append((argument.name, self.value(str(argument.type), argument.name)))
            else:
                arguments.append(self.value(str(argument.type), argument.name))
        first, self.next = self.next, self.next + 10
        self.handles = [*self.handles[-80:], first]
        return str(operator), tuple(arguments), tuple(keywords), first

    def value(self, kind, name):
        chance = self.chance
        if optional := re.fullmatch(r'Optional\[(.*)\]', kind):
            return None if chance.random() < 0.5 else self.value(optional[1], name)
        if several := re.fullmatch(r'List\[(.*)\]', kind):
            count = chance.choice((0, 1, 2, 2, 3))
            return tuple(self.value(several[1], name) for _ in range(count))
        if kind == 'Tensor' and self.fitting:
            return Ref(chance.choice(range(4 + self.rank, FIT + 1, 4)))
        if kind == 'Tensor':
            return Ref(chance.choice(self.handles))
        if kind == 'Device':
            return DEVICE
        if kind == 'int' and name in ('dtype', 'layout', 'memory_format', 'out_dtype'):
            return {'dtype': Special('dtype', chance.choice(DTYPES)), 'layout': None,
                    'memory_format': Special('memory_format', 'contiguous_format')}.get(name)
        return {'int': lambda: chance.choice(INTEGERS if chance.random() < 0.4 else range(-2, 5)),
                'bool': lambda: chance.random() < 0.5, 'float': lambda: chance.choice(FLOATS),
                'number': lambda: chance.choice((*FLOATS, *INTEGERS)),
                'str': lambda: chance.choice(STRINGS)}.get(kind, lambda: None)()

    def message(self, count):
        """Return the bytes of a message, and the number of operators in it."""
        self.number += 1
        kind = self.chance.random()
        if kind < 0.9:
            return encode((self.number, True, self.items(count))), count
        if kind < 0.97:
            return encode((self.number, True, (self.strange(), self.strange()))), 0
        data = bytearray(encode((self.number, True, self.items(1))))
        data[self.chance.randrange(len(data))] = self.chance.randrange(256)
        return bytes(data), 0

    def strange(self):
        """Draw an item of a message whose form is valid, but whose content makes no sense."""
        chance = self.chance
        handle = chance.choice((0, 1, -1, 2**62, chance.choice(self.handles)))
        meta = chance.choice((contiguous((2**20, 2**20), 'float32'), contiguous((3,), 'float32'),
                              Meta((4,), (0,), 'float64')))
        return chance.choice((
            ('htod', handle, meta, bytes(12)), ('dtoh', handle), ('free', (handle,) * 3),
            ('find', handle, meta, 'f' * 64), ('keep', handle, meta, bytes(12), '0' * 64),
            ('query', 'free'), ('seed', chance.choice(INTEGERS)), ('forget', 5),
            ('form', 'aten.digamma.default', ('Tensor', '=') * chance.choice((0, 1, 9))),
            ('form', 'rrto.seed.default', ()),
            ('aten.as_strided.default', (Ref(1), (64, 64), (2**40, 1), chance.choice(INTEGERS)), (),
             5), ('aten.zeros.default', ((2**33,),), (), 6),
            ('aten.div.Tensor_mode', (Ref(handle), Ref(1)), (('rounding_mode', 'trunc'),), 7)))


class Session:
    """The peer's session on a server; like a program's session, it has its own topics."""

    def __init__(self, node, server, program):
        self.node, self.program = node, program
        self.incarnation = random.SystemRandom().getrandbits(63)
        self.sender, self.receiver = Sender(), Receiver(1 << 32)
        self.changed = threading.Condition()
        self.replies, self.error = 0, ''
        base = f'/rrto/{server}/{program}/'
        self.up = node.create_publisher(msg.Frame, base + 'up', qos.STREAM)
        self.acks = node.create_publisher(msg.FrameAck, base + 'down_ack', qos.STREAM)
        self.ends = [node.create_subscription(msg.Frame, base + 'down', self.on_frame, qos.STREAM),
                     node.create_subscription(msg.FrameAck, base + 'up_ack', self.on_ack,
                                              qos.STREAM)]
        client = node.create_client(srv.Open, f'/rrto/{server}/open')
        assert client.wait_for_service(PATIENCE)
        end = time.monotonic() + PATIENCE
        # Ask again: the process of the previous session may still be ending.
        while not (response := self.open(client)).accepted:
            assert time.monotonic() < end, response
            time.sleep(0.05)
        node.destroy_client(client)
        while not (self.up.get_subscription_count() and self.acks.get_subscription_count()
                   and node.count_publishers(base + 'down')):
            assert time.monotonic() < end, 'no topics'
            time.sleep(0.005)

    def open(self, client):
        """Request a session."""
        asked = OpenRequest(PROTOCOL, self.program, self.incarnation)
        answered = threading.Event()
        end = time.monotonic() + PATIENCE
        # Ask again: an answer is lost if the server has not discovered the client yet.
        while not answered.is_set():
            assert time.monotonic() < end, 'the server does not answer'
            future = client.call_async(srv.Open.Request(
                **{name: getattr(asked, name) for name in asked.__slots__}))
            future.add_done_callback(lambda _: answered.set())
            answered.wait(1.0)
        return future.result() or self.open(client)

    def on_frame(self, message):
        with self.changed:
            try:
                complete = self.receiver.take(packet_of(message), time.monotonic())
            except PeerError as error:
                self.error = self.error or str(error)
                return
            self.replies += sum(len(decode(data)) == 3 for data in complete)
            ack = self.receiver.ack(time.monotonic())
            self.acks.publish(to_ros(self.incarnation, ack))
            self.changed.notify_all()

    def on_ack(self, message):
        with self.changed:
            self.error = self.error or message.error
            # A flood is acknowledged, too, although the sender knows nothing of it.
            with contextlib.suppress(PeerError):
                if not message.error:
                    self.sender.on_ack(packet_of(message), time.monotonic())
            self.transmit()
            self.changed.notify_all()

    def transmit(self):
        for frame in self.sender.poll(time.monotonic()):
            self.up.publish(to_ros(self.incarnation, frame))

    def send(self, message):
        """Send a message and wait for the reply; return '', or the reason why no reply came."""
        with self.changed:
            before, self.asked = self.replies, time.monotonic()
            self.sender.offer(message)
            while not self.error and self.replies == before:
                self.transmit()
                now = time.monotonic()
                if now > self.asked + 1.0:   # no reply for a second: does the server still run?
                    self.asked = now
                    self.up.publish(to_ros(self.incarnation, self.sender.ping(now)))
                self.changed.wait(min(1.0, max(0.0, self.sender.deadline - now)))
            return self.error

    def flood(self, count):
        """Send `count` frames that no client would send, without waiting for acknowledgements."""
        for number in range(count):
            frame = Frame(self.sender.link.sent + number, self.sender.next + number,
                          number % 3 == 0, bytes(number * 100 % 61440))
            self.up.publish(to_ros(self.incarnation, frame))

    def close(self):
        """Tell the server that the session ends, and remove the topics."""
        self.acks.publish(to_ros(self.incarnation, End('it ends')))
        for publisher in (self.up, self.acks):
            self.node.destroy_publisher(publisher)
        for end in self.ends:
            self.node.destroy_subscription(end)


def main(server, seed, count, floods=1):
    rclpy.init(args=[])
    node = Node(f'hostile_{seed}')
    spinning = Spinning(node)
    fuzzer = Fuzzer(seed)
    ended = collections.Counter()
    calls = messages = sessions = 0
    while calls < count:
        sessions += 1
        session = Session(node, server, f'hostile_{seed}_{sessions}')
        error = session.send(encode((0, True, tuple(fuzzer.uploads()))))
        while not error and calls < count:
            if fuzzer.chance.random() < 0.002 * floods:
                session.flood(500)
            data, asked = fuzzer.message(8)
            calls, messages = calls + asked, messages + 1
            error = session.send(data)
        if error:
            ended[re.sub(r'(tag|string) .*', r'\1', re.sub(r'[\d.]+ ?', 'N ', error))[:90]] += 1
        session.close()
    print(json.dumps({'calls': calls, 'messages': messages, 'sessions': sessions,
                      'ended': dict(ended.most_common())}), flush=True)
    spinning.close()
    node.destroy_node()
    rclpy.try_shutdown()


if __name__ == '__main__':
    main(sys.argv[1], *map(int, sys.argv[2:]))
