"""Where the traffic of a fleet goes: the one place that turns its settings into variables of DDS.

The same for rclpy and for `embedded/`, and whatever the user's environment says: setup.bash of
ROS 2 exports a discovery range of its own, which must not carry a fleet off this machine.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from xml.sax.saxutils import quoteattr

from fleet_env.errors import FleetFileError
from fleet_env.fleet import ReachConfig

LOOPBACK = 'lo'
_CYCLONE = 'rmw_cyclonedds_cpp'
# What docs/network.md explains, each with a measurement or a source.
_ON_THE_AIR = ('<AllowMulticast>spdp</AllowMulticast><MaxMessageSize>1400B</MaxMessageSize>'
               '<MaxRexmitMessageSize>1400B</MaxRexmitMessageSize>')
_ANNOUNCED = '<SPDPInterval>5s</SPDPInterval>'
_LEASE = '<LeaseDuration>150s</LeaseDuration>'
_HEARTBEATS = '<HeartbeatInterval min="5ms" minsched="200ms" max="8s">200ms</HeartbeatInterval>'
_LAST_WORDS = '<WriterLingerDuration>200ms</WriterLingerDuration>'
_BUFFERS = '<SocketReceiveBufferSize min="default" max="10MB"/>'


def is_loopback(network: ReachConfig) -> bool:
    """Whether all traffic of a fleet with these settings stays on this machine."""
    return network.interface == LOOPBACK


def domain_of(network: ReachConfig) -> int:
    """The DDS domain: that of the settings, else ROS_DOMAIN_ID, else 0."""
    if network.domain_id >= 0:
        return network.domain_id
    text = os.environ.get('ROS_DOMAIN_ID', '').strip()
    return int(text) if text.isdigit() else 0


def cyclone_profile(network: ReachConfig) -> str:
    """Return the configuration of Cyclone DDS, for CYCLONEDDS_URI or, in a file, for anybody."""
    interface = f'<Interfaces><NetworkInterface name={quoteattr(network.interface)}'
    peers = ''.join(f'<Peer address={quoteattr(peer)}/>' for peer in network.peer_list)
    if is_loopback(network):
        general = f'{interface} multicast="false"/></Interfaces><AllowMulticast>false' \
                  '</AllowMulticast>'
        discovery, heartbeats = f'<Discovery>{_ANNOUNCED}</Discovery>', ''
    else:
        general = f'{interface}/></Interfaces>{_ON_THE_AIR}'
        heartbeats = _HEARTBEATS
        discovery = f'<Discovery>{_ANNOUNCED}{_LEASE}' + f'<Peers>{peers}</Peers>' * bool(peers) \
            + '</Discovery>'
    return (f'<CycloneDDS><Domain><General>{general}</General>{discovery}'
            f'<Internal>{heartbeats}{_LAST_WORDS}{_BUFFERS}</Internal></Domain></CycloneDDS>')


def dds_environment(network: ReachConfig) -> dict[str, str]:
    """Return the variables of a process in this fleet; they replace what the user has set.

    :raises FleetFileError: when this machine has no such interface.
    """
    known = [name for _, name in socket.if_nameindex()]
    if network.interface not in known:
        raise FleetFileError(f"network.interface is '{network.interface}', which this machine does "
                             f'not have; it has {", ".join(known)}')
    return {
        'ROS_DOMAIN_ID': str(domain_of(network)),
        'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST' if is_loopback(network) else 'SUBNET',
        'ROS_LOCALHOST_ONLY': '',  # where it is 1 it wins over the range
        'ROS_STATIC_PEERS': '',    # the profile has them
        'CYCLONEDDS_URI': cyclone_profile(network)}


def where_traffic_goes(network: ReachConfig, environ: Mapping[str, str] | None = None) -> str:
    """Return the sentence about it that every start prints."""
    environ = os.environ if environ is None else environ
    domain = f'DDS domain {domain_of(network)}'
    domain += f', namespace {network.namespace}' * bool(network.namespace)
    if is_loopback(network):
        text = f'traffic stays on this machine ({LOOPBACK}, {domain})'
    else:
        peers = f', peers {", ".join(network.peer_list)}' * bool(network.peer_list)
        text = f'traffic LEAVES this machine on {network.interface} ({domain}{peers})'
    rmw = environ.get('RMW_IMPLEMENTATION', '')
    if environ.get('AMENT_PREFIX_PATH') and rmw != _CYCLONE and not is_loopback(network):
        text += (f'; RMW_IMPLEMENTATION is {rmw or "not set"}: only {_CYCLONE} keeps to the '
                 'interface')
    return text
