"""A fleet's network on one machine.

Each robot has its own network namespace, which an emulated radio connects to the server.

The server's namespace contains a bridge, which acts as the access point. Each robot's
namespace has a TAP device. For each robot, the bridge has a port, which is also a TAP
device. `fleet_emulation.forwarder` carries frames between the robot's device and the robot's port.
The namespaces have no route to the outside, and ``ip netns`` does not list them. A
namespace exists as long as a process runs in it or a file descriptor refers to it.
Afterwards the kernel removes the namespace and its devices. The processes in the
namespaces end with this process, even if this process is killed.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import select
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from fleet_env.durable import write_text
from fleet_env.settings.base import changed
from fleet_env.settings.fleet import FleetConfig
from fleet_ros.environment import dds_environment
from rog_cli.launching.fork_server import kill
from rog_core.errors import RogError

from .forwarder import BEGIN, end_processes_in
from .radio import Conditions

INTERFACE = 'radio0'  # name of the network interface in every namespace
START_LIMIT = 60.0    # seconds within which the radio must start, even on a busy machine
AIR_FILE, SUMMARY = 'air.jsonl', 'air.json'
_LINES = 1 << 17      # bytes read at the end of AIR_FILE; enough for two lines with 100 robots
SERVER = 'server'

_NEW_NET, _NEW_MOUNTS = 0x40000000, 0x00020000  # CLONE_NEWNET, CLONE_NEWNS
_TUNSETIFF, _TAP = 0x400454CA, 0x1002        # IFF_TAP | IFF_NO_PI
_libc = ctypes.CDLL(None, use_errno=True)


class NetworkError(RogError):
    """The machine or the rights of the user do not allow an emulated network."""


# -- addresses, commands, settings and counters, without I/O ---


def addresses(robots: Sequence[str]) -> dict[str, str]:
    """Return the address of the server and of each robot, all in 10.99.0.0/16."""
    return {SERVER: '10.99.0.1', **{name: f'10.99.{1 + index // 250}.{1 + index % 250}'
                                    for index, name in enumerate(robots)}}


def ports(robots: Sequence[str]) -> dict[str, str]:
    """Return for each robot the name of its bridge port; Linux allows at most 15 characters."""
    return {name: f'to{index}' for index, name in enumerate(robots)}


def commands(name: str, robots: Sequence[str]) -> list[str]:
    """Return the commands for `ip -batch` that set up the namespace ``name``.

    ``name``: ``server`` or a robot. The TAP devices must exist already.
    """
    lines = ['link set lo up']
    if name == SERVER:
        # Without multicast snooping and loop detection, the bridge forwards frames at once.
        lines.append(f'link add {INTERFACE} type bridge stp_state 0 forward_delay 0 '
                     'mcast_snooping 0')
        for port in ports(robots).values():
            lines += [f'link set {port} master {INTERFACE}', f'link set {port} up']
    return [*lines, f'addr add {addresses(robots)[name]}/16 broadcast + dev {INTERFACE}',
            f'link set {INTERFACE} up', f'route add 224.0.0.0/4 dev {INTERFACE}']


def without_shaping(fleet: FleetConfig) -> FleetConfig:
    """Return the fleet's settings for nodes on the emulated network.

    The nodes do not emulate links, because the network does. The nodes use an interface other
    than the loopback, and this normally requires a key. Here no key is needed, because the network
    is isolated.
    """
    return changed(fleet, link=changed(fleet.link, emulate=False), robots=tuple(
        changed(robot, link=changed(robot.link, emulate=False)) for robot in fleet.robots),
        security=changed(fleet.security, open=True))


def summary(last: Mapping[str, Any], fragments: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """Return the traffic of a run: the radio's last counters, and each namespace's IP counters."""
    return {**last, 'ip': {name: dict(values) for name, values in fragments.items()}}


def ip_counters(snmp: str) -> dict[str, int]:
    """Return the IP counters by name; ``snmp``: the text of /proc/net/snmp."""
    names, values = (line.split()[1:] for line in snmp.splitlines() if line.startswith('Ip:'))
    return dict(zip(names, map(int, values), strict=True))


# -- the namespaces, devices and processes ---


class EmulatedNetwork:
    """The network namespaces and the radio of a fleet.

    Entering the context moves the calling thread to the server's namespace.

    :param fleet: the fleet; the settings of its robots' links name the traces.
    :param out: directory of the run. The radio's counters are added to its file ``air.jsonl`` line
        by line, and a summary is written to ``air.json`` at the end.
    :param every: seconds between two lines of counters.
    :raises NetworkError: the user is not root, or the kernel lacks a feature.
    """

    def __init__(self, fleet: FleetConfig, out: Path, every: float = 1.0) -> None:
        self.fleet, self.out, self.every = fleet, out, every
        self.robots = [robot.name for robot in fleet.robots]
        self.began = False  # whether the traces have begun
        self._home = -1
        self._spaces: dict[str, int] = {}
        self._radio: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] = {}

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Move this thread to the namespace ``name`` during the `with` block.

        ``name``: ``server`` or a robot. Threads and processes that this thread starts in the block
        begin in the namespace, and stay there afterwards.
        """
        before = os.open('/proc/thread-self/ns/net', os.O_RDONLY)
        _set_namespace(self._spaces[name])
        try:
            yield
        finally:
            _set_namespace(before)
            os.close(before)

    def change(self, robot: str, conditions: Conditions) -> None:
        """Change the conditions of a robot's link.

        :raises NetworkError: the radio has ended.
        """
        self._tell({'robot': robot, **asdict(conditions)})

    def begin(self) -> None:
        """Start the traces; before that, the links are fast, so that robots can join quickly."""
        self._tell(BEGIN)
        self.began = True

    def counters(self) -> list[dict[str, Any]]:
        """Return the last two lines of the radio's counters, the older line first.

        At the start of a run there are fewer lines.
        """
        with (self.out / AIR_FILE).open('rb') as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _LINES, 0))
            *lines, _ = file.read().split(b'\n')  # the last line may be incomplete
        return [json.loads(line) for line in lines[1:][-2:] if line.startswith(b'{"t"')]

    def _tell(self, order: Any) -> None:
        assert self._radio is not None and self._radio.stdin is not None
        try:
            self._radio.stdin.write(json.dumps(order).encode() + b'\n')
            self._radio.stdin.flush()
        except BrokenPipeError:
            raise NetworkError(f'the emulated radio has ended; see {self.out / AIR_FILE}') from None

    def __enter__(self) -> EmulatedNetwork:
        check_rights()
        self._home = os.open('/proc/thread-self/ns/net', os.O_RDONLY)
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise
        return self

    def _set_up(self) -> None:
        taps: dict[str, list[int]] = {}
        try:
            for name in (SERVER, *self.robots):
                self._spaces[name] = self._new_namespace()
                with self.inside(name):
                    devices = ports(self.robots).values() if name == SERVER else [INTERFACE]
                    taps[name] = [_tap(device) for device in devices]
                    Path('/proc/sys/net/ipv6/conf/all/disable_ipv6').write_text('1')
                    _ip(commands(name, self.robots))
            pairs = [(*taps[name], port) for name, port in
                     zip(self.robots, taps[SERVER], strict=True)]
            self._start_radio([fd for pair in pairs for fd in pair])
        finally:
            for fd in (fd for found in taps.values() for fd in found):
                os.close(fd)
        _set_namespace(self._spaces[SERVER])
        self._set_environment()

    def _new_namespace(self) -> int:
        _checked(_libc.unshare(_NEW_NET), 'a network namespace')
        try:
            return os.open('/proc/thread-self/ns/net', os.O_RDONLY)
        finally:
            _set_namespace(self._home)

    def _start_radio(self, fds: list[int]) -> None:
        done, ready = os.pipe()
        try:
            with (self.out / AIR_FILE).open('ab') as air:
                self._radio = subprocess.Popen(
                    [sys.executable, '-m', 'fleet_emulation.forwarder',
                     str(self.out / 'fleet.yaml'), str(self.every), str(ready),
                     ','.join(map(str, self._inodes())), *map(str, fds)],
                    stdin=subprocess.PIPE, stdout=air,
                    pass_fds=(ready, *fds), start_new_session=True)
        finally:
            os.close(ready)
        with open(done, 'rb') as answer:
            if not select.select([answer], [], [], START_LIMIT)[0] or not answer.read(1):
                raise NetworkError('the emulated radio does not start; see its messages above')

    def _set_environment(self) -> None:
        """Let DDS in this process and its child processes use only the emulated network."""
        self._environment = dict(os.environ)
        # Switch off shared memory, which would bypass the radio.
        os.environ['FASTDDS_BUILTIN_TRANSPORTS'] = 'UDPv4'
        os.environ.update(dds_environment(changed(self.fleet.network, interface=INTERFACE)))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the processes in the namespaces, release the namespaces, write the summary."""
        counters = {name: self._ip_counters(name) for name in self._spaces}
        end_processes_in(self._inodes())
        # Leave the namespace first: at its end, the radio kills all processes in the namespaces.
        if self._home >= 0:
            _set_namespace(self._home)
        if self._radio is not None and self._radio.stdin is not None:
            with suppress(BrokenPipeError):
                self._radio.stdin.close()
            try:
                self._radio.wait(5.0)
            except subprocess.TimeoutExpired:
                kill(self._radio)
            self._radio = None
            self._write_summary(counters)
        for fd in (*self._spaces.values(), self._home):
            if fd >= 0:
                os.close(fd)
        self._spaces, self._home = {}, -1
        if self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
            self._environment = {}

    def _inodes(self) -> set[int]:
        return {os.fstat(fd).st_ino for fd in self._spaces.values()}

    def _ip_counters(self, name: str) -> dict[str, int]:
        with self.inside(name):
            return ip_counters(Path('/proc/thread-self/net/snmp').read_text())

    def _write_summary(self, counters: dict[str, dict[str, int]]) -> None:
        lines = (self.out / AIR_FILE).read_text().splitlines()
        last = json.loads(lines[-1]) if lines else {}
        write_text(self.out / SUMMARY, json.dumps(summary(last, counters), indent=1) + '\n')


def check_rights() -> None:
    """Raise `NetworkError` if this user cannot create an emulated network."""
    if os.geteuid() != 0:
        raise NetworkError('an emulated network needs root: network namespaces and TAP devices. '
                           f'Run it with sudo, for example sudo -E env PATH="$PATH" {sys.argv[0]} '
                           '..., or leave out --emulate: links are then emulated above UDP')
    if not os.path.exists('/dev/net/tun'):
        raise NetworkError('this machine has no /dev/net/tun; run `modprobe tun`, or give the '
                           'container the device: docker run --device /dev/net/tun')


def own_mounts() -> None:
    """Give this process its own mount namespace.

    Only this process and its children see the file systems that it mounts later.
    """
    _checked(_libc.unshare(_NEW_MOUNTS), 'a mount namespace')
    subprocess.run(['mount', '--make-rprivate', '/'], check=True, timeout=30.0)


def _set_namespace(fd: int) -> None:
    _checked(_libc.setns(fd, _NEW_NET), 'entering a network namespace')


def _checked(result: int, what: str) -> None:
    number = ctypes.get_errno()
    if result == 0:
        return
    if number == errno.EPERM:
        raise NetworkError(f'{what}: not permitted, although this is root; in a container it needs '
                           'docker run --privileged, or --cap-add SYS_ADMIN --cap-add NET_ADMIN '
                           '--security-opt apparmor=unconfined')
    raise NetworkError(f'{what}: {os.strerror(number)}')


def _tap(name: str) -> int:
    """Return the file descriptor of a new TAP device in this namespace.

    The device vanishes when the last copy of the descriptor is closed.
    """
    fd = os.open('/dev/net/tun', os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack('16sH22x', name.encode(), _TAP))
    except OSError as error:
        os.close(fd)
        raise NetworkError(f'no TAP device: {error.strerror}; is the module tun loaded?') from error
    return fd


def _ip(lines: list[str]) -> None:
    try:
        done = subprocess.run(['ip', '-batch', '-'], input='\n'.join(lines) + '\n', text=True,
                              capture_output=True, timeout=30.0)
    except FileNotFoundError:
        raise NetworkError('the program ip is not installed; run apt install iproute2') from None
    if done.returncode:
        raise NetworkError(f'ip: {done.stderr.strip()}; the commands were {"; ".join(lines)}')
