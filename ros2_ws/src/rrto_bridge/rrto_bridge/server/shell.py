"""The server's shell, the part with I/O: runs a `ServerMachine` on a ROS 2 node.

The shell starts and ends the programs' processes through the fork server. Each of these processes
has its own topics, so the shell handles no data of programs and does not load PyTorch. The shell
holds one publisher per program, to report the end of the program's process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from fleet_env.command import how_it_ended
from fleet_link.seal import Answerer, Call, Session
from fleet_link.session import End
from fleet_msgs.msg import FrameAck
from fleet_ros import qos
from fleet_ros.alarm import Alarm
from fleet_ros.exposure import team_key
from fleet_ros.frames import to_ros
from fleet_ros.sealing import seal, serve
from rclpy.node import Node
from rrto_msgs import msg, srv

from ..protocol.discovery import servers, wait_for_servers
from ..protocol.errors import ConfigError
from ..protocol.messages import OpenRequest
from .machine import Action, Begin, Ending, Kill, Leave, ServerMachine, Tell
from .parameters import PROVED, ServerSettings
from .shared_status import SharedStatus

# Maximum time in seconds until DDS has found all programs, to tell them about the server's end.
FAREWELL = 1.0
# Maximum time in seconds until the fork server has ended. It is longer than the time that the fork
# server gives the programs' processes (`fork_server.ORDERLY`), also on a busy machine.
ENDS = 5.0
TOLD = 3          # how often the server tells each program about its own end
START = 300.0     # maximum time in seconds to load PyTorch; long enough for a busy machine
MEMORY = '/dev/shm'
PREFIX = 'rrto_'        # prefix of the name of a server's folder
LOCK = '.rrto_server'   # a file in the server's folder, locked while the server runs
MESSAGE = 1 << 16   # maximum size of a datagram from the fork server, in bytes
LOOK = 1.0        # seconds between checks of the processes
# Seconds between checks whether DDS has found a program; also the first pause between repetitions
# of a program's last message, which then doubles.
AGAIN = 0.02


class ForkServerProcess:
    """The supervisor's connection to the process of the fork server (`fork_server.ForkServer`)."""

    def __init__(self, server: str, folder: Path, settings: ServerSettings) -> None:
        try:
            self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, '-m', 'fleet_env.start', 'rrto_bridge.server.fork_server',
                     str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=sys.stderr)
        except OSError as error:
            raise ConfigError(f'the server cannot start a process: {error}') from error
        self._say(server=server, folder=str(folder), settings=settings.model_dump_json())

    def ready(self) -> dict[str, Any]:
        """Wait until the fork server is ready, and return its answer.

        The answer contains 'device'. Raises ConfigError after `START` seconds, if the fork server
        reports an error, or if it ends.
        """
        self._link.settimeout(START)
        try:
            data = self._link.recv(MESSAGE)
        except TimeoutError as error:
            raise ConfigError(f'PyTorch did not load within {START:g} s') from error
        except OSError:   # the process has ended before it has read its settings
            data = b''
        if not data:
            raise ConfigError(f'PyTorch cannot be loaded: the process that loads it {self._end()}')
        answer: dict[str, Any] = json.loads(data)
        if not answer['ready']:
            raise ConfigError(answer['error'])
        self._link.settimeout(None)
        return answer

    def _end(self) -> str:
        """Describe how the fork server, which has closed its socket, has ended."""
        try:
            code = self._process.wait(ENDS)
        except subprocess.TimeoutExpired:
            return 'does not end'
        return how_it_ended(code) + '; see its output above' * (code > 0)

    def listen(self, ended: Callable[[str, int, str], None], gone: Callable[[], None]) -> None:
        """Start a thread that reports ended processes.

        The thread calls `ended(program, status, reason)` when a program's process ends or cannot
        start; `reason` is '' if it has started. It calls `gone()` when the fork server has ended.
        """
        def read() -> None:
            while data := self._receive():
                event = json.loads(data)
                ended(event['ended'], event['status'], event.get('reason', ''))
            gone()

        self._thread = threading.Thread(target=read, name='processes', daemon=True)
        self._thread.start()

    def _receive(self) -> bytes:
        try:
            return self._link.recv(MESSAGE)
        except OSError:
            return b''

    def begin(self, program: str, incarnation: int, keys: Sequence[bytes]) -> None:
        """Start the process of a program; `keys`: see `worker.Task`."""
        self._say(begin=program, incarnation=incarnation, keys=[key.hex() for key in keys])

    def leave(self) -> None:
        """End each program's process as soon as the program waits for nothing; see `session`."""
        self._say(leave=True)

    def kill(self, program: str) -> None:
        """Kill the process of a program."""
        self._say(kill=program)

    def _say(self, **fields: Any) -> None:
        # OSError: the fork server has ended; the thread of `listen` reports that
        with contextlib.suppress(OSError):
            self._link.send(json.dumps(fields).encode())

    def close(self, seconds: float) -> None:
        """End the fork server, and with it all programs' processes; kill it after ``seconds``."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            # A process that hangs in the kernel does not end even after kill.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(FAREWELL)
        self._link.close()


class _Program:
    """The status file of one program, and the publisher of acknowledgements to this program."""

    def __init__(self, server: Server, program: str, session: Session | None, number: int
                 ) -> None:
        self.session, self.number = session, number   # None: there is no key
        self._last_words = session.last_words() if session else None
        self.path = server.folder / program
        self.status = SharedStatus.make(self.path)
        self.acks = server.node.create_publisher(
            FrameAck, f'/rrto/{server.name}/{program}/up_ack', qos.STREAM)
        self.last: FrameAck | None = None   # the last message to the program
        self.told = 0            # how often `last` was sent
        self.at = -math.inf      # time at which `tell` must be called again
        self.spent = 0.0

    def tell(self, now: float) -> bool:
        """Send `last` if it is due; return whether to call this again, at the time `at`.

        The first message is sent when DDS has found the program, because DDS delivers no message to
        a program that it has not found yet. If a process cannot start, the server notices this
        within milliseconds, often earlier. The message is repeated, because it may be lost, until
        the program has left.
        """
        if self.last is None:
            return False
        if now >= self.at:
            if self.acks.get_subscription_count():
                self.acks.publish(seal(self._last_words, self.last))
                self.at = now + AGAIN * 2 ** self.told
                self.told += 1
            else:
                self.at = now + AGAIN
                return not self.told
        return True


class Server:
    """Admits programs and starts a process for each of them; the caller spins `node`.

    Raises ConfigError if the server cannot start.
    """

    def __init__(self, node: Node, name: str, settings: ServerSettings) -> None:
        self.node, self.name, self.settings = node, name, settings
        key = team_key(settings.security)
        self._answerer = key and Answerer(key.secret_of, secrets.randbits(63))
        if key is not None and key.robot:
            node.get_logger().info(f"serves only {key.robot}, as this is its key, not the fleet's")
        self._weights = settings.kept_weights()
        self.folder, self._lock = _folder()
        try:
            self._fork_server = ForkServerProcess(name, self.folder, settings)
        except ConfigError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise
        try:
            # The fork server loads PyTorch meanwhile. On a busy machine that takes longer, and so
            # does the discovery of another server: look again when it has ended.
            named = name in wait_for_servers(node, wanted=name)
            facts = {} if named else self._fork_server.ready()
            if named or name in servers(node):
                raise ConfigError(f'a server {name!r} exists in this DDS domain: choose another '
                                  'name')
        except ConfigError:
            self._end(0.0)   # there are no programs yet
            raise
        self.device = facts['device']
        self.machine = ServerMachine(settings)
        self._changed = threading.Lock()        # protects `machine` and `_programs`
        self._programs: dict[str, _Program] = {}
        # (time, program) for each program that has left: its last message is repeated until this
        # time, unless the program leaves the ROS graph earlier.
        self._last_words: list[tuple[float, _Program]] = []
        self._messages = 0       # number of executed messages of the programs that have left
        self._closing = False
        self._reported = time.monotonic()
        self._alarm = Alarm(self._on_time, node)
        self._fork_server.listen(self._on_ended, self._on_gone)
        self._status = node.create_publisher(msg.ServerStatus, f'/rrto/{name}/status', qos.STATUS)
        serve(node, srv.Open, f'/rrto/{name}/open', self._on_open, self._answerer,
              self._note_refusal)
        node.create_timer(LOOK, self._report)

    def pause(self, paused: bool) -> None:
        """Refuse new programs if ``paused``; otherwise accept new programs again."""
        with self._changed:
            self.machine.paused = paused

    def leave(self) -> None:
        """Take no new programs, and end the others when they wait for nothing; see `busy`."""
        with self._changed:
            self._act(self.machine.leave(time.monotonic()))
            self._fork_server.leave()

    @property
    def busy(self) -> bool:
        """Whether a program is connected."""
        return bool(self._programs)

    @property
    def error(self) -> str:
        """Why the server must be started again; '' if it need not."""
        return self.machine.broken

    def close(self) -> None:
        """Notify the programs and end their processes; call this before the node is destroyed."""
        with self._changed:
            self._closing = True
            actions = self.machine.close()
            self._act([a for a in actions if isinstance(a, Tell)])
            end = time.monotonic() + FAREWELL
            while (now := time.monotonic()) < end and [
                    p for p in self._programs.values() if p.told < TOLD and p.tell(now)]:
                time.sleep(AGAIN)
            self._act([a for a in actions if isinstance(a, Leave)])
        self._alarm.close()
        self._end()

    def _end(self, seconds: float = ENDS) -> None:
        self._fork_server.close(seconds)
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- events ----------------------------------------------------------------------------------

    def _note_refusal(self, reason: str) -> None:
        self.node.get_logger().warning(reason, throttle_duration_sec=5.0)

    def _on_open(self, request: Any, response: Any, call: Call | None) -> Any:
        if call is not None and call.life != request.incarnation:
            response.reason = 'the session must be that of the process that asks'
            return response
        asked = OpenRequest(request.protocol, request.program, request.incarnation)
        now = time.monotonic()
        actions: list[Action] = []
        with self._changed:
            try:
                response.reason, actions = self.machine.on_open(asked, now)
                if not response.reason and asked.program not in self._programs:
                    number, session = secrets.randbits(63), None
                    if call is not None and self._answerer is not None:
                        session = self._answerer.session(call, number)
                    self._programs[asked.program] = _Program(self, asked.program, session, number)
            except Exception as error:   # an error in one request must not end the server
                response.reason = f'the server cannot serve it: {type(error).__name__}: {error}'
                self.node.get_logger().error(response.reason)
                self.machine.on_ended(asked.program, Ending(0, response.reason), now)
                actions = [a for a in actions if a.program != asked.program]
            self._act(actions)
        if call is not None and asked.program in self._programs:
            response.session = self._programs[asked.program].number
        response.accepted = not response.reason
        response.device = self.device
        response.memory = self.settings.memory << 20
        response.lease = self.settings.lease
        return response

    def _on_time(self) -> None:
        now = time.monotonic()
        with self._changed:
            self._act(self.machine.on_time(now))

    def _on_ended(self, program: str, status: int, reason: str) -> None:
        with self._changed:
            known = self._programs.get(program)
            if known is None:
                return
            shared = known.status
            self._messages += shared.messages
            ending = Ending(status, reason or shared.reason, shared.told, shared.name)
            self._act(self.machine.on_ended(program, ending, time.monotonic()))

    def _on_gone(self) -> None:
        """Start a new fork server, after the old one and all programs' processes have ended.

        New programs wait until the new fork server is ready.
        """
        try:
            with self._changed:
                if self._closing or self.machine.leaving:
                    return
                self.node.get_logger().error('the process that starts the programs\' processes has '
                                             'ended; starting another one')
                self._act(self.machine.close('the processes of the server have ended'))
                self._fork_server.close(ENDS)
                fork_server = ForkServerProcess(self.name, self.folder, self.settings)
                self._fork_server = fork_server
            fork_server.ready()
        except ConfigError as error:
            with self._changed:
                if not self._closing:
                    self.machine.broken = f'the server must be restarted: {error}'
                    self.node.get_logger().fatal(self.machine.broken)
                    self._act(self.machine.close(self.machine.broken))
        else:
            fork_server.listen(self._on_ended, self._on_gone)

    # -- actions ---------------------------------------------------------------------------------

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case Begin(program, incarnation):
                    session = self._programs[program].session
                    self._fork_server.begin(program, incarnation,
                                            session.secrets if session else ())
                    self.node.get_logger().info(f'{program} joins')
                case Kill(program):
                    self._fork_server.kill(program)
                case Leave(program, reason):
                    known = self._programs.pop(program, None)
                    if known is not None:
                        until = time.monotonic() + self.settings.lease
                        self._last_words.append((until, known))
                        known.path.unlink(missing_ok=True)
                    self.node.get_logger().info(f'{program} leaves: {reason}')
                case Tell(program, incarnation, reason) if program in self._programs:
                    self._programs[program].last = to_ros(incarnation, End(reason))
        self._say_last_words(time.monotonic())

    def _say_last_words(self, now: float) -> None:
        """Send last messages to the programs that have left, and destroy publishers without any."""
        kept = []
        for until, program in self._last_words:
            if program.tell(now) and now < until:
                kept.append((until, program))
            else:
                self.node.destroy_publisher(program.acks)
        self._last_words = kept
        self._alarm.set(min([self.machine.deadline, *(program.at for _, program in kept)]))

    def _report(self) -> None:
        message = msg.ServerStatus(server=self.name, device=self.device)
        message.header.stamp = self.node.get_clock().now().to_msg()
        now = time.monotonic()
        with self._changed:
            spent = 0.0
            message.messages = self._messages
            for name, program in self._programs.items():
                status = program.status
                spent += status.spent - program.spent
                program.spent = status.spent
                message.messages += status.messages
                self._act(self.machine.on_progress(name, status.begun, status.busy, status.name,
                                                   now))
            message.busy = min(1.0, spent / max(now - self._reported, 1e-3))
            self._reported = now
            message.programs = list(self._programs)
            message.memory = [program.status.used for program in self._programs.values()]
        message.weights = self._weights.used
        self._status.publish(message)
        if self.node.count_publishers(self._status.topic_name) > 1:   # found late, as on a bad link
            self.node.get_logger().error(f'there are two servers {self.name!r}: end one of them',
                                         throttle_duration_sec=5.0)


def _folder() -> tuple[Path, IO[str]]:
    """Create a folder that only this user can read, in memory if possible.

    Return the folder and its file `LOCK`. This process locks the file until the process
    ends. Raises ConfigError if no folder can be created.
    """
    reasons: list[str] = []
    for place in (MEMORY, ''):
        if found := _folder_in(place, reasons):
            return found
    raise ConfigError(f'the server needs a folder, but can create none in {" or ".join(reasons)}; '
                      'TMPDIR chooses another place')


def _folder_in(place: str, reasons: list[str]) -> tuple[Path, IO[str]] | None:
    """Create a folder and its file `LOCK`; on an error, add the reason to `reasons`, return None.

    `place`: the folder in which to create it; '' stands for the temporary folder.
    """
    folder = None
    try:
        place = place or tempfile.gettempdir()
        _delete_orphans(Path(place))
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        (folder / PROVED).mkdir()
        lock = (folder / 'new').open('w')
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Rename the file only after it is locked: other servers delete a folder whose file
        # `LOCK` is not locked.
        (folder / 'new').rename(folder / LOCK)
    except OSError as error:
        reasons.append(f'{place or "a temporary folder"} ({error.strerror})')
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        return None
    return folder, lock


def _delete_orphans(place: Path) -> None:
    """Delete the folder of each server of this user that was killed with its fork server."""
    for path in place.glob(f'{PREFIX}*/{LOCK}'):
        # OSError: the folder belongs to another user, or its server still runs
        with contextlib.suppress(OSError):
            if path.parent.lstat().st_uid == os.getuid():
                with path.open() as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path.parent, ignore_errors=True)
