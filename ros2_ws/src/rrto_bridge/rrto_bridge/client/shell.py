"""The program's side of the link: a ClientMachine on the topics of a ROS 2 node.

The node belongs only to this link. It has its own context and its own spinning thread,
so the program can also use rclpy.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import secrets
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import rclpy
from fleet_compute.inlets import Inlets
from fleet_env.emulated.shaped import ShapedLink
from fleet_env.settings.fleet import AccessConfig
from fleet_link.seal import Caller
from fleet_link.seal import Session as Seals
from fleet_link.session import AGAIN, LAST_WORDS, SILENT, End, Session
from fleet_ros import qos
from fleet_ros.alarm import Alarm
from fleet_ros.channel import Channel
from fleet_ros.ending import limited_leaving
from fleet_ros.environment import ros_home
from fleet_ros.exposure import team_key
from fleet_ros.frames import packet_of, topics
from fleet_ros.middleware import other_middleware
from fleet_ros.process import explained, is_users
from fleet_ros.sealing import ServiceClient
from fleet_ros.services import bound_parameters
from fleet_ros.spinning import Spinning
from rclpy.context import Context
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions
from rrto_msgs import msg, srv

from ..protocol.discovery import LIMIT, find_server, servers, usable
from ..protocol.errors import ConfigError, LinkError
from ..protocol.messages import ENDED, PROTOCOL
from ..protocol.names import MAX_NAME, graph_name
from ..protocol.record import Meta
from ..protocol.tensors import encoded
from .machine import ClientMachine
from .port import Port
from .settings import START_LIMIT, STARTING

SWITCH = 0.0005       # seconds after which a busy Python thread yields to the node's thread
LINGER = 0.0005  # minimum time in seconds between two messages while the program waits for no reply
TURN = 30.0  # time in seconds within which the server must have started a process for the program
# Maximum number of requests to open a session. The program waits at most 2 * `LIMIT` seconds for
# the answers to all of them together.
ASKED = 6
# seconds to wait after the server has ended: the same Ctrl+C may also end this program
GRACE = 0.5
# A program that can go on without the server waits so many seconds for a word of it; after `PROBE`
# seconds it asks for one.
LATE, PROBE = 2.0, 0.4
PATIENT = 2.0  # seconds of waiting for the server after which a line says so
LOOK = 0.25           # seconds between searches for a server, after the server was lost
HERE = 0.002    # seconds between attempts to go on without the server, between calls of the program
LATER = 2.0     # seconds until the next attempt, after a server that was found did not take over
MESSAGE = 1 << 32     # maximum size of a reply, in bytes
ENDS = 'the program ends'


# The links to close at the end of the program. One that is lost may be making another one then: its
# threads, left alone, would abort the process.
_links: list[Link] = []


def _close_links() -> None:
    while _links:
        _links.pop().close(exits=True)


class _NotServedError(ConfigError):
    pass


@dataclass
class LinkOptions:
    """Options of a `Link`.

    `server`: name of the server, '' for any server; `namespace`: namespace of the program's node;
    `link`: the emulated link; `access`: the key.
    """

    mode: str
    server: str = ''
    namespace: str = ''
    link: ShapedLink = field(default_factory=ShapedLink)
    access: AccessConfig = field(default_factory=AccessConfig)


class Link(Port):
    """A Port over DDS. Raises ConfigError if no server is found or the server refuses.

    Raises LinkError if the server ends, or the program's process on the server ends or cannot
    start, before the link is ready.

    Every wait ends: with a reply, with an error of the node's thread, or with an error
    because the server has been silent for the time of the lease.
    """

    # longest time in seconds between two calls of `_on_timer`; shows whether this process was
    # suspended
    _stood = 0.0
    _looked = math.inf     # time at which the node last called `_on_timer`
    _told = ''             # why the server has ended the session; '' if it has not

    def __init__(self, options: LinkOptions) -> None:
        super().__init__(ClientMachine('async' if options.mode == 'replay' else options.mode))
        self.mode = options.mode
        self._wanted = graph_name(options.server) if options.server else ''
        self.lost = ''                       # reason why the link has ended; '' while it has not
        self.engine: Any = None              # the engine whose counters the status message contains
        self._waited = False                 # whether `_let_signals_come` has waited
        self.program = program_name()
        # the server says how long it may be silent, see `_open`
        self.session = Session(MESSAGE, math.inf, True, time.monotonic())
        self.stream = self.session.stream
        self._inlets = Inlets(lambda: self.stream.sender.link.rate)
        self._incarnation = secrets.randbits(63)
        self._link = options.link
        self._key = team_key(options.access)
        self._unproved = ''                  # why an answer or a message of the server was ignored
        self._inbox: deque[bytes] = deque()
        # An item is added when a message has arrived or the link is lost. The item wakes `receive`.
        self._arrived: SimpleQueue[None] = SimpleQueue()
        self._changed = threading.RLock()      # protects `session` and `_channel`
        self._answered = threading.Event()   # whether the server has said that the session is over
        self._flushed = self._looked = time.monotonic()
        self._context = Context()
        self._channel: Channel | None = None
        self._made = ExitStack()             # releases what this link has made, the newest first
        try:
            self._join(options.namespace)
        except BaseException:   # such as a Ctrl+C that arrives during a wait
            self._made.close()
            raise

    def _join(self, namespace: str) -> None:
        """Create the node, and open a session on a server."""
        # HOME is missing, for example, in a child of `env -i`. ROS 2 needs a folder for its log.
        if 'HOME' not in os.environ:
            os.environ['ROS_HOME'] = str(ros_home())
        release = self._made.callback
        release(self._context.try_shutdown)
        try:
            rclpy.init(args=[], context=self._context,
                       signal_handler_options=SignalHandlerOptions.NO)
            self.node = Node(f'rrto_bridge_{self.program}', namespace=namespace,
                             context=self._context)
        except Exception as error:
            if not is_users(error, ()):
                raise
            raise ConfigError(explained(error, ())) from error
        release(self.node.destroy_node)
        bound_parameters(self.node)
        release(self._stop_receiving)
        release(Spinning(self.node).close)
        self._alarm = Alarm(self._ending_waits(self._on_alarm))
        release(self._alarm.close)
        self.server = self._find()
        tried = {self.server}
        while True:
            self._create_topics()
            try:
                self.lease = self.session.lease = self._open()
                self.session.begin(time.monotonic())
                break
            except _NotServedError:   # it may be dead, full or ending, or have another key
                others = [] if self._wanted else self._others(tried)
                if not others:
                    raise
                self._stop_receiving()
                self.server = others[0]
                tried.add(self.server)
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH))
        self._status = self.node.create_publisher(msg.BridgeStatus, 'rrto/status', qos.STATUS)
        self.node.create_timer(min(1.0, self.lease / 4), self._ending_waits(self._on_timer))
        _links.append(self)
        atexit.register(_close_links)
        os.register_at_fork(after_in_child=self._forked)

    def _others(self, tried: set[str]) -> list[str]:
        """Return servers that were not tried; wait for one as long as for the first."""
        end = time.monotonic() + LIMIT
        while not (found := [name for name in usable(self.node) if name not in tried]) \
                and time.monotonic() < end:
            time.sleep(0.02)
        return found

    def _create_topics(self) -> None:
        base = f'/rrto/{self.server}/{self.program}/'
        node = self.node
        self._channel = Channel(node, topics(False, self._incarnation), base,
                                self._ending_waits(self._on_message),
                                self._note_unproved, self._link, self._key is not None)
        self._channel.listen(apart=True)

    def _note_unproved(self, error: Exception | str) -> None:
        self._unproved = str(error)

    def _open(self) -> float:
        caller, secret = None, b''
        if self._key is not None:
            secret = (self._key if self._key.robot else self._key.of(self.program)).secret
            caller = Caller(secret, self._key.robot or self.program, self._incarnation)
        client = ServiceClient(self.node, srv.Open, f'/rrto/{self.server}/open', caller,
                               self._note_unproved)
        if not self._is_there(client):
            if strange := other_middleware(self.node, f'/rrto/{self.server}/open'):
                raise ConfigError(strange)
            raise ConfigError(f'there is no server {self.server!r} in DDS domain '
                              f'{self._context.get_domain_id()}; start one with `rrto serve`')
        request = srv.Open.Request(protocol=PROTOCOL, program=self.program,
                                   incarnation=self._incarnation)
        answers: SimpleQueue[Any] = SimpleQueue()
        # Ask several times: an answer is lost if the server's DDS has not yet found this node.
        for _ in range(ASKED):
            future = client.call_async(request)
            future.add_done_callback(lambda done: answers.put(done.result()))
            try:
                response = answers.get(timeout=2 * LIMIT / ASKED)
                break
            except Empty:
                continue
        else:
            client.close()
            raise _NotServedError(f'server {self.server!r} does not answer'
                                   + f'; {self._unproved}' * bool(self._unproved))
        client.close()
        if not response.accepted:
            raise _NotServedError(f'server {self.server!r} refuses: {response.reason}')
        assert self._channel is not None
        if caller is not None:
            seals = Seals(secret, self._incarnation, response.session)
            self._channel.keep(seals.to_server, seals.to_robot, self._incarnation)
        limit = time.monotonic() + TURN
        while not self._channel.is_heard or self.node.count_publishers(
                f'/rrto/{self.server}/{self.program}/down') < 1:
            if self.lost:
                raise LinkError(f'server {self.server!r} is lost: {self.lost}')
            if time.monotonic() > limit:
                raise ConfigError(f'the topics of server {self.server!r} were not found within '
                                  f'{TURN:g} s')
            time.sleep(0.005)
        return float(response.lease)

    def _is_there(self, client: ServiceClient) -> bool:
        """Wait at most `LIMIT` seconds for the server; soon say so, as the program stands still."""
        if client.wait_for_service(PATIENT):
            return True
        print(f'rrto: waiting for the server {self.server!r}', file=sys.stderr, flush=True)
        return client.wait_for_service(LIMIT - PATIENT)

    def _find(self) -> str:
        """Return the name of the server to use.

        If a server was started for this program, wait for it. If the process of that server has
        ended (for example, because another server was found), use any server.
        """
        started = os.environ.get(STARTING)
        if started and self._wanted and not self._comes_up(int(started)):
            self._wanted = ''
        return self._wanted or find_server(self.node)

    def _comes_up(self, pid: int) -> bool:
        """Wait for the server with process id `pid`; return False if its process has ended."""
        try:
            process = os.pidfd_open(pid)
        except OSError:
            return False
        end = time.monotonic() + START_LIMIT
        try:
            while self._wanted not in servers(self.node) and time.monotonic() < end:
                if select.select([process], [], [], 0.02)[0]:
                    return False
        finally:
            os.close(process)
        return True

    def close(self, exits: bool = False) -> None:
        """Tell the server that this program ends, and release the node's resources.

        ``exits``: whether the process exits, and is ended if Fast DDS waits for ever.
        """
        if not self._context.ok():
            return
        self.ending = True
        with self._changed:
            lost = self.lost
            self._fail(ENDS)
        end = time.monotonic() + LAST_WORDS
        while not lost and not self._answered.is_set() and time.monotonic() < end \
                and self._channel is not None and self._channel.is_heard:
            with self._changed:
                self.session.end('it ends', time.monotonic())
                self._transmit()
            self._answered.wait(AGAIN)
        with limited_leaving() if exits else nullcontext():
            self._made.close()

    def _stop_receiving(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def _forked(self) -> None:
        """Detach a forked child, so that its exit does not end the parent's session.

        The child exits without cleanup: some libraries would wait for ROS threads, which a forked
        child does not have.
        """
        atexit.unregister(_close_links)
        libc = ctypes.CDLL(None)
        libc.on_exit(libc._exit, None)

    # -- Port ------------------------------------------------------------------------------------

    def receive(self) -> bytes:
        """Return the server's next message."""
        began = time.monotonic()
        while not self._inbox:
            if self.lost:
                self._end_daemon()
                self._let_signals_come()
                raise LinkError(self.why())
            self.idle = True
            try:
                self._arrived.get(timeout=min(PROBE, self.lease / 4))
            except Empty:
                # Check for silence here as well, because a wait must not rely on the node's
                # thread.
                self._look_at_silence()
                if self._goes_on:
                    self._ask_whether_it_lives(began)
            finally:
                self.idle = False
        return self._inbox.popleft()

    @property
    def _goes_on(self) -> bool:
        """Whether the program continues on this machine if the server is lost."""
        return self.engine is not None and self.engine.journal is not None

    def _ask_whether_it_lives(self, began: float) -> None:
        """Let the program continue here if the server does not even acknowledge a ping.

        ``began``: when the program began to wait, by the monotonic clock.
        """
        now = time.monotonic()
        silent = now - max(began, self.session.heard)
        if silent > max(LATE, 4 * self.stream.sender.link.timeout):
            self._fail(f'nothing was heard of it for {silent:.1f} s')
        elif silent > PROBE:
            with self._changed:
                self.session.ping(now)
                self._poll()

    def _end_daemon(self) -> None:
        """End this thread silently if it is a daemon thread and the program has ended."""
        if self.lost == ENDS and threading.current_thread() is not threading.main_thread():
            raise SystemExit

    def _let_signals_come(self) -> None:
        """Wait briefly for a Ctrl+C if the server has ended.

        One Ctrl+C can end both the server and this program. If the Ctrl+C reaches this program
        during the wait, the program ends with KeyboardInterrupt instead of an error about the
        server. A program that continues without the server gets no error, so it does not wait.
        """
        if self.lost == ENDED and not self._waited and not self._goes_on:
            self._waited = self.idle = True
            try:
                time.sleep(GRACE)
            finally:
                self.idle = False

    def post(self) -> None:
        """Send pending messages.

        Also send queued calls, but at most once in `LINGER` seconds.
        """
        now = time.monotonic()
        if now - self._flushed > LINGER:
            self.machine.flush()
        self.transmit()

    def watch(self, back: Callable[[], bool]) -> None:
        """Call `back` repeatedly while a server is visible, until `back` returns True.

        Use this method after the server is lost. The node's thread calls `back`.
        """
        rest = 0.0      # time before which there is no other attempt

        def look() -> bool:
            nonlocal rest
            if time.monotonic() < rest:
                return False
            names = usable(self.node, self._wanted)
            found = (self._wanted in names if self._wanted else bool(names)) and back()
            if names and not found:
                rest = time.monotonic() + LATER
            return found

        self._repeat(LOOK, look)

    def _repeat(self, seconds: float, call: Callable[[], bool]) -> None:
        """Let the node's thread call this until it returns True."""
        def again() -> None:
            if call():
                timer.cancel()

        timer = self.node.create_timer(seconds, self._ending_waits(again))

    def encoded(self, meta: Meta, data: memoryview) -> Any:
        """Encode a tensor for this link."""
        return encoded(meta, data, self._inlets)

    def transmit(self) -> None:
        """Send the messages of `machine`.

        If the link is lost, drop these messages; `receive` reports the loss.
        """
        messages = self.machine.outgoing()
        if not messages:
            return
        with self._changed:
            if self.lost:
                self._end_daemon()
                return
            self._flushed = time.monotonic()
            for message in messages:
                self.stream.sender.offer(message)
            self._poll()

    # -- frames ----------------------------------------------------------------------------------

    def _poll(self) -> None:
        """Send what is due, unless the link is lost."""
        self._look_at_silence()
        if not self.lost:
            self._transmit()

    def _transmit(self) -> None:
        if self._channel is not None:
            now = time.monotonic()
            self._channel.transmit(self.session.poll(now), now)
            self._alarm.set(min(self.session.deadline, self._channel.deadline))

    def _on_message(self, message: Any) -> None:
        if message.incarnation != self._incarnation:
            return
        packet = packet_of(message)
        with self._changed:
            if self.lost and not isinstance(packet, End):
                return
            for complete in self.session.take(packet, time.monotonic()):
                self._inbox.append(complete)
                self._arrived.put(None)
            if self.session.answered:
                self._answered.set()
                if not self.lost and self.session.ended != SILENT:
                    self._told = self.session.ended
            if self.session.ended:
                self._fail(self.session.ended)
                self._transmit()    # the answer
            self._poll()

    # -- time ------------------------------------------------------------------------------------

    def _on_alarm(self) -> None:
        with self._changed:
            if self._channel is not None:
                self._channel.release(time.monotonic())
                self._channel.flush()
            self._poll()

    def _on_timer(self) -> None:
        now = time.monotonic()
        self._stood, self._looked = max(self._stood, now - self._looked), now
        with self._changed:
            self._poll()
        self._report()

    def _look_at_silence(self) -> None:
        silent = time.monotonic() - self.session.heard
        if silent >= self.session.lease:
            self._fail(f'nothing was heard of it for {silent:.1f} s')

    def why(self) -> str:
        """Return the error text for a link that has ended."""
        stood = max(self._stood, time.monotonic() - self._looked)
        if self.lost not in (ENDS, self._told) and stood > self.lease:
            return (f'this program was suspended for {stood:.1f} s (SIGSTOP, debugger, sleep?), '
                    f'longer than the lease of server {self.server!r}, {self.lease:g} s: raise its '
                    'parameter lease')
        return f'server {self.server!r} is lost: {self.lost}'

    def _report(self) -> None:
        engine, machine = self.engine, self.machine
        message = msg.BridgeStatus(
            server=self.server, mode=self.mode, state='lost' if self.lost else 'connected',
            reason=self.lost, calls=machine.calls, round_trips=machine.round_trips,
            bytes_up=self.stream.sender.bytes, bytes_down=self.stream.receiver.bytes)
        if engine is not None:
            message.inferences, message.sequences = engine.inferences, engine.sequences
            message.round_trips_last = engine.last
        message.header.stamp = self.node.get_clock().now().to_msg()
        message.header.frame_id = self.program
        self._status.publish(message)

    def _fail(self, reason: str) -> None:
        first, self.lost = not self.lost, self.lost or reason
        self._arrived.put(None)
        if first and self.on_lost is not None and not self.ending:
            self._repeat(HERE, self.on_lost)

    def _ending_waits(self, callback: Callable[..., None]) -> Callable[..., None]:
        """Wrap a callback of the node: if it raises an error, the link and all waits end."""
        def call(*arguments: Any) -> None:
            try:
                callback(*arguments)
            except Exception as error:
                self._fail(f'an error in this program\'s node: {type(error).__name__}: {error}')
        return call


def program_name() -> str:
    """Return a name for the ROS graph that no other link has.

    The name is unique even if processes in different containers have equal process ids.
    """
    name = Path(sys.argv[0] or 'python').stem if sys.argv else 'python'
    place = graph_name(f'{socket.gethostname()}_{name}')[:MAX_NAME - 20]
    return graph_name(f'{place}_{os.getpid()}_{secrets.token_hex(2)}')
