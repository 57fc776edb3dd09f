"""`rog doctor`: find what prevents a fleet from running on this machine and network."""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import os
import platform
import shutil
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from fleet_env.command import version
from fleet_env.settings.fleet import FleetConfig, ReachConfig
from fleet_env.settings.fleet_file import load_fleet
from fleet_env.vision import other_build
from fleet_ros.dds_profiles import is_loopback
from fleet_ros.environment import FASTDDS_FILES, dds_environment, domain_of, where_traffic_goes
from fleet_ros.network_options import add_network_options, chosen_network
from rog_bringup import FLEETS
from rog_ros.servers import is_there

from .option_types import seconds

# NOTE: nothing is wrong now, but the user should change something before robots on other machines
# join.
GOOD, NOTE, WARN, BAD = 'ok', 'note', 'warning', 'problem'
COLORS = {GOOD: 'green', NOTE: 'cyan', WARN: 'yellow', BAD: 'red'}

BUFFER = 10_000_000   # bytes of the receive buffer that docs/howto/network.md requests
CLOCK = 0.5           # largest allowed difference, in seconds, between the clocks of two machines
ROOM = 1_000_000_000  # free space on the disk, in bytes, that a run and its checkpoints may need
_UP, _MULTICAST = 0x1, 0x1000
_SIOCGIFFLAGS = 0x8913
# The first `_SETTLED` statuses of a process may be old, so their time stamps are not compared
# with the clock.
_SETTLED = 1


@dataclass(frozen=True)
class Finding:
    """The result of one check; ``change``: what the user should change, '' if nothing."""

    what: str
    level: str
    found: str
    change: str = ''


@dataclass
class Heard:
    """The statuses of one process.

    ``late``: for each status, the seconds from its time stamp to its arrival.
    """

    role: str
    host: str
    version: str
    late: list[float] = field(default_factory=list)

    @property
    def offset(self) -> float | None:
        """Return by how many seconds the process's clock is behind the clock of this machine.

        The value includes the delay of a status. Returns None if too few statuses have arrived.
        """
        late = self.late[_SETTLED:]
        return min(late, key=abs) if late else None


def add_to(verbs: argparse._SubParsersAction) -> None:
    """Declare the verb and its options."""
    parser = verbs.add_parser('doctor', help='check for problems of a fleet: network, clocks, '
                              'versions, a second server, GPU, torchvision')
    parser.add_argument('fleet', nargs='?', metavar='FLEET', help='a built-in fleet or the path of '
                        'a fleet file; the options below change its network')
    parser.add_argument('--timeout', type=seconds, default=3.0, metavar='S',
                        help='seconds to listen to the fleet; 0: not at all (default: 3)')
    parser.add_argument('--json', action='store_true', help='print the findings as JSON')
    add_network_options(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    fleet = load_fleet(options.fleet, [FLEETS]) if options.fleet else None
    network = chosen_network(options, fleet.network if fleet else None)
    listens = f', and listens for {options.timeout:g} s' * (options.timeout > 0)
    print(f'rog: looks at this machine{listens}: about {options.timeout + 2:g} s', file=sys.stderr,
          flush=True)
    findings = []
    for finding in examine(network, fleet, options.timeout):
        findings.append(finding)
        if not options.json:
            _show(finding)
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    return int(any(finding.level == BAD for finding in findings))


def _show(finding: Finding) -> None:
    from rich.console import Console
    from rich.markup import escape
    console = Console(soft_wrap=True, highlight=False)
    console.print(f'[{COLORS[finding.level]}]{finding.level:8}[/] {finding.what}: '
                  + escape(finding.found))
    if finding.change:
        console.print(escape(f'         -> {finding.change}'))


def examine(network: ReachConfig, fleet: FleetConfig | None, seconds: float) -> Iterator[Finding]:
    """Yield the findings of all checks; ``seconds``: time to listen to the fleet."""
    known = [name for _, name in socket.if_nameindex()]
    there = network.interface in known
    yield Finding('traffic', GOOD, where_traffic_goes(network))
    yield interface(network.interface, _flags(network.interface) if there else None, known)
    if there and not is_loopback(network):
        yield multicast(network, _flags(network.interface), _multicast_comes_back(network))
    yield buffers(_number('/proc/sys/net/core/rmem_max'), is_loopback(network))
    yield domain(network, os.environ)
    if there and seconds > 0:
        os.environ.update(dds_environment(network))
        yield from judged(listen(network, seconds), fleet, version())
    yield gpu(fleet)
    yield torchvision()
    if Path('/etc/nv_tegra_release').exists():
        yield jetson()
    free = shutil.disk_usage('.').free
    yield Finding('disk', GOOD if free >= ROOM else WARN, f'{free / 1e9:.1f} GB free here',
                  '' if free >= ROOM else 'free some space, or choose --out on another disk')


def interface(name: str, flags: int | None, known: list[str]) -> Finding:
    """Check that an interface exists and is up.

    ``flags``: kernel flags of the interface; None if there is no such interface.
    """
    if flags is None:
        return Finding('interface', BAD, f'{name} is not here; there are {", ".join(known)}',
                       'set network.interface to one of them')
    if not flags & _UP:
        return Finding('interface', BAD, f'{name} is down', f'ip link set {name} up')
    return Finding('interface', GOOD, f'{name} is up')


def multicast(network: ReachConfig, flags: int, works: bool) -> Finding:
    """Check multicast discovery; ``works``: whether a test packet has returned to this machine."""
    if network.peer_list:
        return Finding('multicast', GOOD, f'not needed: peers {", ".join(network.peer_list)}')
    if network.discovery_server:
        return Finding('multicast', GOOD, f'not needed: discovery server '
                       f'{network.discovery_server}, which must run')
    if flags & _MULTICAST and works:
        return Finding('multicast', GOOD, f'{network.interface} carries it here; whether the '
                       'access point does shows when robots are heard')
    return Finding('multicast', BAD, f'{network.interface} does not carry it',
                   f'ip link set {network.interface} multicast on, or list the machines in '
                   'network.peers')


def buffers(rmem_max: int | None, loopback: bool) -> Finding:
    """Check that the kernel gives DDS a receive buffer as large as DDS requests."""
    if rmem_max is None or rmem_max >= BUFFER:
        return Finding('socket buffers', GOOD, f'net.core.rmem_max is {rmem_max} B')
    if loopback:
        return Finding('socket buffers', NOTE, f'net.core.rmem_max is {rmem_max} B; bursts of rows '
                       'from other machines may overflow it', 'before robots on other machines '
                       f'join: sudo sysctl -w net.core.rmem_max={BUFFER}')
    return Finding('socket buffers', WARN,
                   f'net.core.rmem_max is {rmem_max} B; bursts of rows may overflow it',
                   f'sudo sysctl -w net.core.rmem_max={BUFFER}, and the same in /etc/sysctl.d')


def domain(network: ReachConfig, environ: Any) -> Finding:
    """Check the fleet's DDS domain, and the variables for DDS in ``environ``."""
    number = domain_of(network)
    if number > 101:
        return Finding('domain', WARN, f'the UDP ports of domain {number} may be in use: Linux '
                       'hands them out', 'choose a network.domain_id from 0 to 101')
    theirs = {name: environ[name] for name in (
        'ROS_DOMAIN_ID', 'CYCLONEDDS_URI', *FASTDDS_FILES, 'ROS_DISCOVERY_SERVER',
        'ROS_AUTOMATIC_DISCOVERY_RANGE', 'ROS_STATIC_PEERS') if environ.get(name)}
    if str(number) != environ.get('ROS_DOMAIN_ID', str(number)):
        return Finding('domain', WARN, f'the fleet is in domain {number}, this shell in '
                       f'{environ["ROS_DOMAIN_ID"]}', 'for ros2 commands: eval "$(rog fleet env '
                       'FLEET)"')
    kept = f'; the fleet does not use {", ".join(sorted(theirs))} of this shell' * bool(
        set(theirs) - {'ROS_DOMAIN_ID'})
    return Finding('domain', GOOD, f'{number}{kept}')


def judged(heard: list[Heard], fleet: FleetConfig | None, mine: str) -> Iterator[Finding]:
    """Check the processes whose statuses were received; ``mine``: version of this installation."""
    servers = [process for process in heard if process.role == 'server']
    names = ' and '.join(server.host for server in servers)
    if len(servers) > 1:
        yield Finding('server', BAD, f'{len(servers)} parameter servers share a namespace: {names}',
                      'stop one, or give its fleet its own network.namespace or network.domain_id')
    else:
        yield Finding('server', GOOD, names or 'none runs; a new fleet will be alone here')
    robots = {process.role for process in heard} - {'server'}
    if heard and fleet and (missing := [name for name in fleet.capacities if name not in robots]):
        yield Finding('robots', WARN, f'not heard: {", ".join(missing)}',
                      'check that they run, and use the same network')
    for process in heard:
        at = f'{process.role} on {process.host}'
        if process.version != mine:
            yield Finding('version', BAD, f'{at} has {process.version}, this machine {mine}',
                          'install the same version on all machines')
        if process.offset is not None and abs(process.offset) > CLOCK:
            way = 'behind' if process.offset > 0 else 'ahead of'
            yield Finding('clock', WARN, f'{at} is {abs(process.offset):.1f} s {way} ours',
                          'sudo timedatectl set-ntp true, on both machines')
    if heard and all(p.version == mine for p in heard):
        yield Finding('version', GOOD, f'{mine} on all {len(heard)} processes')
    if not heard:
        yield Finding('version', GOOD, f'{mine}, Python {platform.python_version()}')


def listen(network: ReachConfig, seconds: float) -> list[Heard]:
    """Receive the fleet's statuses for ``seconds`` seconds; return one entry per process."""
    import rclpy
    from fleet_ros.spinning import Executor
    from rclpy.signals import SignalHandlerOptions
    from rog_msgs.msg import FleetStatus, TrainingStatus
    from rog_ros import qos
    from rog_ros.parameters import SERVER

    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node(f'rog_doctor_{os.getpid()}')
    heard: dict[tuple[str, int], Heard] = {}
    asked: set[str] = set()

    def note(role: str, message: Any) -> None:
        if not is_there(message):
            return
        process = heard.setdefault((role, message.incarnation),
                                   Heard(role, message.host, message.version))
        stamp = message.header.stamp
        process.late.append(time.time() - stamp.sec - 1e-9 * stamp.nanosec)

    def on_fleet(message: Any) -> None:
        note('server', message)
        for robot in {r.robot for r in message.robots} - asked:
            asked.add(robot)
            node.create_subscription(
                TrainingStatus, f'{network.namespace}/{robot}/training_status',
                partial(note, robot), qos.STATUS)

    node.create_subscription(FleetStatus, f'{network.namespace}/{SERVER}/fleet_status', on_fleet,
                             qos.STATUS)
    executor = Executor()
    executor.add_node(node)
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        executor.spin_once(timeout_sec=left)
    executor.remove_node(node)
    node.destroy_node()
    rclpy.try_shutdown()
    return list(heard.values())


def gpu(fleet: FleetConfig | None) -> Finding:
    """Check that this machine has a GPU if the fleet's settings need one."""
    import torch
    wanted = fleet.training.device if fleet and fleet.training.device.startswith('cuda') else ''
    if torch.cuda.is_available():
        return Finding('GPU', GOOD, f'{torch.cuda.get_device_name(0)}, torch {torch.__version__}')
    return Finding('GPU', BAD if wanted else GOOD, f'none that torch {torch.__version__} can use',
                   f'the fleet wants {wanted}: install the driver and a build of torch '
                   'for it, or set the device to cpu' if wanted else '')


def torchvision() -> Finding:
    """Check that the installed torchvision is made for the installed build of PyTorch."""
    try:
        version = metadata.version('torchvision')
        importlib.import_module('torchvision')
    except metadata.PackageNotFoundError:
        return Finding('torchvision', GOOD, 'not installed; only tasks that import it need it')
    except Exception as error:  # torchvision's C++ library cannot be loaded
        said, _, change = other_build(error).partition('; ')
        return Finding('torchvision', WARN, f'{said or f"{version} cannot be imported"}: {error}',
                       change or 'install the one that belongs to this PyTorch')
    return Finding('torchvision', GOOD, version)


def jetson(find: Callable[[str], Any] | None = None) -> Finding:
    """Check that the package for energy measurements is installed on this Jetson."""
    from importlib.util import find_spec
    if (find or find_spec)('jtop'):
        return Finding('jetson-stats', GOOD, 'installed: energy is measured')
    return Finding('jetson-stats', WARN, 'not installed: energy is estimated from power per state',
                   'sudo pip install jetson-stats, then log in again')


def _flags(name: str) -> int:
    # Ask the kernel through a socket, because containers may have no /sys.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack('16sH14x', name.encode(), 0)
        answer = fcntl.ioctl(any_socket, _SIOCGIFFLAGS, request)
    return int(struct.unpack('16sH14x', answer)[1])


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None


def _multicast_comes_back(network: ReachConfig) -> bool:
    """Return whether this machine receives its own multicast packet on the interface.

    The packet has a time to live of 0, so no other machine receives it.
    """
    group, index = '239.255.0.1', socket.if_nametoindex(network.interface)
    request = struct.pack('4s4si', socket.inet_aton(group), bytes(4), index)
    word = os.urandom(16)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.bind(('', 0))
            one.settimeout(0.5)
            one.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, request)
            one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, request)
            one.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 0)
            one.sendto(word, (group, one.getsockname()[1]))
            return one.recv(64) == word
    except OSError:
        return False
