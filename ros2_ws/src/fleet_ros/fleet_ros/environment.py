"""Turns the network settings of a fleet into environment variables for DDS.

The fleet then behaves the same with Fast DDS and Cyclone DDS, whatever the user's environment
contains. For example, setup.bash of ROS 2 exports a discovery range with which the traffic of a
fleet would leave this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import tempfile
from pathlib import Path

from fleet_env.errors import FleetFileError
from fleet_env.settings.base import changed
from fleet_env.settings.fleet import ReachConfig

from .dds_profiles import LOOPBACK, cyclone_profile, fastdds_profile, is_loopback, resolved

LAST_DOMAIN = 232  # highest DDS domain; a higher domain would need port numbers above 65535
# The environment variables that contain the path of the profile of Fast DDS. Version 2 of
# Fast DDS reads the first variable. Version 3 reads both variables, but each process prints
# a warning if the first one is set.
FASTDDS_FILES = ('FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE')


def domain_of(network: ReachConfig) -> int:
    """Return the DDS domain: from the settings, or else ROS_DOMAIN_ID, or else 0.

    :raises FleetFileError: ROS_DOMAIN_ID is not the number of a DDS domain. With such a value,
        Fast DDS would end the process.
    """
    if network.domain_id >= 0:
        return network.domain_id
    text = os.environ.get('ROS_DOMAIN_ID', '').strip() or '0'
    if not (text.isascii() and text.isdigit() and int(text) <= LAST_DOMAIN):
        raise FleetFileError(f"ROS_DOMAIN_ID must be a whole number from 0 to {LAST_DOMAIN}, got "
                             f"'{text}'")
    return int(text)


def dds_environment(network: ReachConfig, robot: bool = False) -> dict[str, str]:
    """Return the environment variables for a process of this fleet.

    They replace the variables of the same names in the user's environment.

    :param robot: whether the process is a robot's worker, which need not discover other
        robots.
    :raises FleetFileError: this machine lacks the interface in the settings, cannot resolve a
        peer, or cannot write the profile of Fast DDS; or ROS_DOMAIN_ID is not a domain; or
        see `refuse_false_security`.
    """
    refuse_false_security()
    network = changed(network, domain_id=domain_of(network))
    known = [name for _, name in socket.if_nameindex()]
    if network.interface not in known:
        raise FleetFileError(f"network.interface is '{network.interface}', which this machine does "
                             f'not have; it has {", ".join(known)}')
    profile = str(_kept(fastdds_profile(network, fastdds_version(), robot)))
    return {
        'ROS_DOMAIN_ID': str(network.domain_id),
        # The profiles define the whole discovery. Any other range would change it: with LOCALHOST,
        # Fast DDS opens sockets on every interface.
        'ROS_AUTOMATIC_DISCOVERY_RANGE': 'SYSTEM_DEFAULT',
        'ROS_LOCALHOST_ONLY': '',  # the value 1 would override ROS_AUTOMATIC_DISCOVERY_RANGE
        'ROS_STATIC_PEERS': '',
        'CYCLONEDDS_URI': cyclone_profile(network),
        **dict.fromkeys(FASTDDS_FILES, ''), fastdds_file(): profile,
        # without this, Fast DDS would also apply a profile in the working folder
        'SKIP_DEFAULT_XML_FILE': '1',
        'ROS_DISCOVERY_SERVER': _discovery_servers(network),
        # A robot hears of those alone with whom it has topics in common, tools of everything.
        'ROS_SUPER_CLIENT': '' if robot or not network.discovery_server else 'TRUE',
        'RMW_FASTRTPS_USE_QOS_FROM_XML': '',
        'RMW_FASTRTPS_PUBLICATION_MODE': '',
        **_zenoh(network)}


def refuse_false_security() -> None:
    """Refuse SROS 2 with a Fast DDS that was built without it, as PyPI's is.

    ROS 2 itself would only say so in a log, and start nodes without enclave unprotected, unless
    ROS_SECURITY_STRATEGY is Enforce.

    :raises FleetFileError: ROS_SECURITY_ENABLE is true and this Fast DDS cannot obey it.
    """
    if os.environ.get('ROS_SECURITY_ENABLE') != 'true':
        return
    if not (middleware := os.environ.get('RMW_IMPLEMENTATION')):
        from rclpy.utilities import get_rmw_implementation_identifier
        middleware = get_rmw_implementation_identifier()
    libraries = (Path(prefix) / 'lib' / 'librmw_fastrtps_shared_cpp.so' for prefix in _prefixes())
    library = next(filter(Path.exists, libraries), None)
    if 'fastrtps' in middleware and library and _WITHOUT_SECURITY in library.read_bytes():
        raise FleetFileError(
            'ROS_SECURITY_ENABLE is true, but this Fast DDS was built without security '
            f'({library}), so SROS 2 would protect nothing. Unset ROS_SECURITY_ENABLE and use a '
            'key (security.key), which protects what the suite sends; or use a ROS 2 from apt or '
            "RoboStack instead of PyPI's")


# Part of the error message that the middleware contains only if it was built without security.
_WITHOUT_SECURITY = b"doesn't have the security libraries"


def _prefixes() -> list[str]:
    """Return the folders in which this ROS 2 may be installed."""
    return [sys.prefix, *filter(None, os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep))]


def share_of(package: str) -> Path:
    """Return the folder of a ROS 2 package with its messages; no setup file need be sourced.

    :raises FleetFileError: the package is not installed.
    """
    places = [Path(prefix) / 'share' / package for prefix in _prefixes()]
    found = next(filter(Path.is_dir, places), None)
    if found is None:
        raise FleetFileError(f'the ROS 2 package {package} must be in one of '
                             f'{", ".join(map(str, places))}: source the setup.bash of its '
                             'workspace')
    return found


def ros_home() -> Path:
    """Return the folder of ROS 2: ROS_HOME or, by default, .ros in the home directory.

    The home directory is found even if HOME is not set.
    """
    return Path(os.environ.get('ROS_HOME') or Path.home() / '.ros')


def fastdds_version() -> int:
    """Return the major version of Fast DDS of this ROS 2: 2 up to Jazzy, 3 since Kilted."""
    return 3 if any((Path(prefix) / 'share' / 'fastdds').is_dir() for prefix in _prefixes()) else 2


def fastdds_file() -> str:
    """Return the name of the environment variable for the path of the Fast DDS profile.

    The name depends on the version of Fast DDS in this ROS 2.
    """
    return FASTDDS_FILES[fastdds_version() - 2]


def _discovery_servers(network: ReachConfig) -> str:
    """Return the value of ROS_DISCOVERY_SERVER.

    :raises FleetFileError: Cyclone DDS is used, or this machine cannot resolve a server's name.
    """
    if network.discovery_server and 'cyclone' in os.environ.get('RMW_IMPLEMENTATION', ''):
        raise FleetFileError('network.discovery_server is for Fast DDS, and RMW_IMPLEMENTATION is '
                             f'{os.environ["RMW_IMPLEMENTATION"]}, which has none: list the '
                             'machines in network.peers')
    return ';'.join(f'{resolved(host, "network.discovery_server")}:{port}'
                    for host, port in network.discovery_servers())


ROUTER_PORT = 7447  # of a router of rmw_zenoh, unless another is given
_OVERRIDE = 'ZENOH_CONFIG_OVERRIDE'
# With these variables a node of rmw_zenoh meets nobody, and does not wait for a router.
ZENOH_ALONE = {
    _OVERRIDE: 'mode="peer";connect/endpoints=[];listen/endpoints=[];'
               'scouting/multicast/enabled=false;scouting/gossip/enabled=false',
    'ZENOH_ROUTER_CHECK_ATTEMPTS': '-1'}
_CLIENT, _CONNECT = 'mode="client"', 'connect/endpoints='


def _zenoh(network: ReachConfig) -> dict[str, str]:
    """Return the variables of rmw_zenoh, if it is used.

    Zenoh 1.8 logs an error of its administration at the end of every process: without it, unless
    the user has chosen what Zenoh logs.
    """
    if 'zenoh' not in os.environ.get('RMW_IMPLEMENTATION', ''):
        return {}
    return {'RUST_LOG': os.environ.get('RUST_LOG') or 'error,zenoh::api::admin=off',
            **_routers(network)}


def _routers(network: ReachConfig) -> dict[str, str]:
    """Return what lets rmw_zenoh connect to the routers of the settings alone.

    A node is a client of the routers. rmw_zenoh's default, a peer, listens on its own machine's
    loopback interface, so peers on two machines without a router of their own never connect. The
    rest of the user's configuration of Zenoh, for example its certificates, stays.

    :raises FleetFileError: this machine cannot resolve a router's name, or no router answers. Then
        rclpy.init would fail, with an error that names neither.
    """
    if not network.discovery_server:
        return {}
    theirs = [part for part in os.environ.get(_OVERRIDE, '').split(';')
              if part not in ('', _CLIENT) and not part.startswith(_CONNECT)]
    addresses = [(resolved(host, 'network.discovery_server'), port)
                 for host, port in network.discovery_servers(ROUTER_PORT)]
    if not any(_answers(*address) for address in addresses):
        raise FleetFileError(f'no router of rmw_zenoh answers at {network.discovery_server} '
                             f'(network.discovery_server; port {ROUTER_PORT} unless given): start '
                             'it first, with ros2 run rmw_zenoh_cpp rmw_zenohd')
    routers = [f'tcp/{host}:{port}#iface={network.interface}' for host, port in addresses]
    return {_OVERRIDE: ';'.join([_CLIENT, *theirs, _CONNECT + json.dumps(routers)])}


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), _ANSWERS).close()
    except OSError:
        return False
    return True


_ANSWERS = 3.0  # seconds in which a router accepts a connection


def _kept(profile: str) -> Path:
    """Write a profile to a file below `ros_home`, named by the profile's hash; return its path."""
    path = ros_home() / 'fleet' / f'fastdds-{hashlib.sha256(profile.encode()).hexdigest()[:16]}.xml'
    try:
        if path.exists() and path.read_text(encoding='utf-8') == profile:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile('w', encoding='utf-8', dir=path.parent,
                                         delete=False) as file:
            file.write(profile)
        os.replace(file.name, path)
    except OSError as error:
        raise FleetFileError(f'{path.parent} must be writable, since Fast DDS reads its profile '
                             f'from there: {error.strerror}; set ROS_HOME to another folder') \
            from None
    return path


def where_traffic_goes(network: ReachConfig) -> str:
    """Return a sentence that says which network the traffic uses, for the start of a command."""
    domain = f'DDS domain {domain_of(network)}'
    domain += f', namespace {network.namespace}' * bool(network.namespace)
    domain += f', discovery server {network.discovery_server}' * bool(network.discovery_server)
    if is_loopback(network):
        return f'traffic stays on this machine ({LOOPBACK}, {domain})'
    peers = f', peers {", ".join(network.peer_list)}' * bool(network.peer_list)
    return f'traffic LEAVES this machine on {network.interface} ({domain}{peers})'
