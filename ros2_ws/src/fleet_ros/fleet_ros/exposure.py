"""Requires a key, or the user's consent, if the DDS of a fleet can reach other machines."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from xml.etree import ElementTree

import rclpy
from fleet_env.errors import SettingError
from fleet_env.settings.fleet import AccessConfig, ReachConfig
from fleet_link.key import Key, read_key
from rclpy.context import Context
from rclpy.node import Node
from rclpy.utilities import get_rmw_implementation_identifier

from .environment import FASTDDS_FILES, ZENOH_ALONE, dds_environment, fastdds_version


def leaves_machine(environment: Mapping[str, str]) -> bool:
    """Return whether DDS can reach other machines, or be reached from them.

    The result is False only if the environment variables confine DDS to this machine.
    """
    rmw = environment.get('RMW_IMPLEMENTATION') or get_rmw_implementation_identifier()
    reach = environment.get('ROS_AUTOMATIC_DISCOVERY_RANGE', '').strip().upper()
    local_only = environment.get('ROS_LOCALHOST_ONLY', '').strip() == '1'
    if 'fastrtps' in rmw:
        # With LOCALHOST, Fast DDS announces itself only to this machine, but listens on all
        # interfaces.
        return reach != 'OFF' and (local_only or reach != 'SYSTEM_DEFAULT' or not all(
            map(_is_loopback, _fastdds_interfaces(environment) or ['any'])))
    if 'zenoh' in rmw:
        return not ZENOH_ALONE.items() <= environment.items()
    if 'cyclonedds' not in rmw:
        return True
    return not (local_only or reach in ('LOCALHOST', 'OFF')
                or _cyclone_stays(environment.get('CYCLONEDDS_URI', '')))


def _cyclone_stays(configuration: str) -> bool:
    """Return whether a configuration of Cyclone DDS, as text, confines every domain to loopback."""
    try:
        root = ElementTree.fromstring(configuration)
    except ElementTree.ParseError:   # also the name of a file, which is not read
        return False
    for element in root.iter():
        element.tag = element.tag.rpartition('}')[2]
    interfaces = list(root.iter('NetworkInterface'))
    domains = [domain.get('Id', domain.get('id', 'any')) for domain in root.iter('Domain')]
    return bool(interfaces) and all(domain == 'any' for domain in domains) and all(
        _is_loopback(each.get('name', each.get('address', '')))
        and each.get('autodetermine', 'false') == 'false' for each in interfaces)


def _fastdds_interfaces(environment: Mapping[str, str]) -> list[str]:
    """Return the interfaces to which the profiles confine Fast DDS; an empty list means all."""
    found: list[str] = []
    for name in FASTDDS_FILES[:fastdds_version() - 1]:
        if not environment.get(name):
            continue
        try:
            root = ElementTree.parse(environment[name]).getroot()
        except (OSError, ElementTree.ParseError):
            return []
        for element in root.iter():
            element.tag = element.tag.rpartition('}')[2]
        lists = list(root.iter('interfaceWhiteList'))
        if root.findtext('.//useBuiltinTransports') != 'false' or not lists or len(lists) != len(
                list(root.iter('transport_descriptor'))):
            return []
        found += [(entry.text or '').strip() for each in lists for entry in each]
    return found


def _is_loopback(interface: str) -> bool:
    try:
        return ipaddress.ip_address(interface).is_loopback
    except ValueError:
        return interface == 'lo'


def team_key(access: AccessConfig) -> Key | None:
    """Return the key that these settings or the environment name; None: no key.

    :raises SettingError: see `require_key`.
    :raises KeyFileError: the file is not a key.
    """
    path = key_file(access.key)
    require_key(path, access.open)
    return read_key(path) if path else None


FLEET_KEY = 'FLEET_KEY'  # environment variable that names a key file


def key_file(given: str) -> str:
    """Return the key file that the user has given, or that of the environment; '' means none."""
    return given or os.environ.get(FLEET_KEY, '')


def require_key(key: str, is_open: bool, environment: Mapping[str, str] = os.environ) -> None:
    """Raise an error if a process without key and without consent could reach other machines.

    :param key: name of the key file; '': none, unless the environment names one.
    :param is_open: the setting ``security.open``, the user's consent.
    :raises SettingError: the fleet has no key and no consent, but could reach other machines.
    """
    if not (key or environment.get(FLEET_KEY)) and not is_open and leaves_machine(environment):
        raise SettingError(
            'this would leave this machine without a key: whoever is on the network could join.\n'
            'To stay on this machine: interface lo, or in this shell eval "$(rog fleet env '
            'indoor)".\n'
            'To leave it: rog key FILE makes a key for all (--key, security.key or FLEET_KEY); '
            'security.open: true (--open) trusts everybody')


def look_before(name: str, namespace: str, arguments: Sequence[str] | None = None) -> None:
    """Call `require_key` with the parameters of a node before the node joins the network.

    Only a node can read parameters, so a temporary node reads them. The temporary node is confined
    to this machine and to another DDS domain. It runs in a separate process, because Fast DDS reads
    its profile only once per process.

    :param name, namespace: name and namespace of the real node.
    :param arguments: arguments of the process; default: sys.argv.
    :raises SettingError: see `require_key`.
    """
    if not leaves_machine(os.environ) or os.environ.get('ROS_SECURITY_ENABLE', '') == 'true':
        # with SROS 2 the temporary node is not allowed to join another domain; later the real node
        # calls `require_key` itself
        return
    given = sys.argv if arguments is None else arguments
    if (found := _aside(name, namespace, given)) is not None:
        require_key(*found)


def _declared(name: str, namespace: str, arguments: Sequence[str]) -> tuple[str, bool]:
    context = Context()
    with reaching(ReachConfig()):
        os.environ.update(ZENOH_ALONE)
        context.init(list(arguments), domain_id=_ASIDE)
        try:
            node = Node(name, namespace=namespace, context=context, enable_rosout=False,
                        start_parameter_services=False)
            key = node.declare_parameter('security.key', '').value
            is_open = node.declare_parameter('security.open', False).value
            node.destroy_node()
        finally:
            context.try_shutdown()
    return str(key), bool(is_open)


def _aside(name: str, namespace: str, arguments: Sequence[str]) -> Any:
    """Call `_declared` in another process; return its result, or None if it fails.

    The process is not forked, because a process that is forked while threads of DDS run may hang.
    """
    try:
        done = subprocess.run([sys.executable, '-m', __name__, name, namespace, *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=_LIMIT)
    except subprocess.TimeoutExpired:
        return None
    # Zenoh logs to stdout, too
    found = [line for line in done.stdout.splitlines() if line.startswith(_FOUND)]
    return json.loads(found[0].removeprefix(_FOUND)) if found else None


_FOUND = b'declared: '  # begins the line with the parameters


_LIMIT = 60.0  # maximum time in seconds for reading the parameters
# DDS domain of the temporary node: the highest domain whose ports are below Linux's range of
# ephemeral ports.
_ASIDE = 101


@contextmanager
def reaching(network: ReachConfig) -> Iterator[None]:
    """Apply these network settings to each DDS domain that is joined in this context.

    :raises SettingError: this process uses Fast DDS and already has other network settings.
        Fast DDS reads its profile only once per process.
    """
    former, wanted = dict(os.environ), dds_environment(network)
    if rclpy.ok() and 'fastrtps' in get_rmw_implementation_identifier() \
            and any(former.get(name, '') != wanted[name] for name in FASTDDS_FILES):
        raise SettingError(
            'interface and peers must be those of the fleet that this process is in, got '
            f'interface {network.interface} and peers {network.peers or "none"}: a process has '
            'one network with Fast DDS. Give both fleets the same interface and peers, and '
            'domains or namespaces of their own; or use Cyclone DDS (docs/howto/network.md)')
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(former)


if __name__ == '__main__':
    print(_FOUND.decode() + json.dumps(_declared(sys.argv[1], sys.argv[2], sys.argv[3:])))
