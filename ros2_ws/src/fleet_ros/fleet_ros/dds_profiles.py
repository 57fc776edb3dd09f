"""The profiles of Cyclone DDS and Fast DDS for a fleet; docs/results/network.md has the reasons."""

from __future__ import annotations

import fcntl
import socket
import struct
from xml.sax.saxutils import escape, quoteattr

from fleet_env.errors import FleetFileError
from fleet_env.settings.fleet import ReachConfig

from .ending import WRITER

LOOPBACK = 'lo'
# Maximum size of a datagram in bytes. IP would divide a larger datagram into fragments, and
# the loss of one fragment would lose the whole datagram.
DATAGRAM = 1400
RECEIVE_BUFFER = 10_000_000  # size in bytes; the kernel limits it to net.core.rmem_max
ANNOUNCED = 5    # seconds between two discovery announcements of a process with Cyclone DDS
# Seconds between two discovery announcements of a process with Fast DDS. An announcement has
# more than 500 bytes and goes to every other process, so it is rare off `lo`, where a link may be
# slow. But a robot that starts has to hear the server's, as it tells only those that it hears of
# itself; so a robot's own are rarer. At its start each process announces itself `FIRST` times at
# intervals of one second. The key of this table, of the leases and of `INDICES` says whether the
# fleet uses the interface `lo`.
ANNOUNCED_FAST = {True: 1, False: 4}
ANNOUNCED_ROBOT = 10
FIRST = 10
# Seconds of silence after which processes forget a process. Until then, the first message after an
# outage arrives; later, the processes have to find each other again. With Fast DDS that takes
# longer than with Cyclone DDS: 44 s at 5 Mbit/s, more than 3 minutes at 0.1. So it remembers
# longer: twice the longest outage after which robots should go on at once.
LEASE = {True: 20, False: 150}
LEASE_FAST = {True: 20, False: 1200}
HEARTBEAT = 0.2  # seconds between a reliable writer's requests for missing acknowledgements
MULTICAST = '239.255.0.1'  # multicast group of DDS discovery
_SIOCGIFADDR = 0x8915  # number of the Linux ioctl that returns the IPv4 address of an interface
# Highest DDS participant index that is tried; a machine may have one process more. Key: whether the
# fleet uses `lo`. Off `lo` each peer is asked on the ports of all these indices, so they are few.
INDICES = {True: 119, False: 32}


def is_loopback(network: ReachConfig) -> bool:
    """Return whether all traffic of a fleet with these settings stays on this machine."""
    return network.interface == LOOPBACK


def highest_index(network: ReachConfig, asked: bool = True) -> int:
    """Return the highest DDS participant index that is tried.

    ``asked`` says whether processes announce themselves to the ports of all indices.

    The ports of a participant are 7410 + 250 * domain + 2 * index and the next one (RTPS, 9.6.1).
    In the highest domain, the index 119 would have a port above 65535, with which Fast DDS ends
    the process.
    """
    first = 7411 + 250 * max(0, network.domain_id)
    return min(INDICES[is_loopback(network) or not asked], (65535 - first) // 2)


def cyclone_profile(network: ReachConfig) -> str:
    """Return the configuration of Cyclone DDS, for CYCLONEDDS_URI or for a file."""
    here = is_loopback(network)
    peers = ['127.0.0.1'] if here else network.peer_list
    # Cyclone DDS 0.10 announces itself to the address of every process that it has ever discovered.
    # By default each process has a port of its own choice, so these addresses would become more
    # and more. With an index, a process takes the port of one that has ended.
    discovery = (f'<SPDPInterval>{ANNOUNCED}s</SPDPInterval>'
                 f'<LeaseDuration>{LEASE[here]}s</LeaseDuration>'
                 '<ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>'
                 f'{highest_index(network, bool(peers))}</MaxAutoParticipantIndex>'
                 + ('<Peers>' + ''.join(f'<Peer address={quoteattr(peer)}/>' for peer in peers)
                    + '</Peers>') * bool(peers))
    multicast = ' multicast="false"' * here
    size = '' if here else (f'<MaxMessageSize>{DATAGRAM}B</MaxMessageSize>'
                            f'<MaxRexmitMessageSize>{DATAGRAM}B</MaxRexmitMessageSize>')
    heartbeat = f'{HEARTBEAT * 1000:.0f}ms'
    heartbeats = '' if here else (f'<HeartbeatInterval min="5ms" minsched="{heartbeat}" max="8s">'
                                  f'{heartbeat}</HeartbeatInterval>')
    return (
        '<CycloneDDS><Domain><General><Interfaces>'
        f'<NetworkInterface name={quoteattr(network.interface)}{multicast}/></Interfaces>'
        f'<AllowMulticast>{"false" if here else "spdp"}</AllowMulticast>{size}</General>'
        f'<Discovery>{discovery}</Discovery><Internal>{heartbeats}'
        f'<WriterLingerDuration>{WRITER * 1000:.0f}ms</WriterLingerDuration>'
        f'<SocketReceiveBufferSize min="default" max="{RECEIVE_BUFFER}B"/>'
        '</Internal></Domain></CycloneDDS>')


def fastdds_profile(network: ReachConfig, version: int = 2, robot: bool = False) -> str:
    """Return the XML profile of Fast DDS; ``version``: 2 (Jazzy) or 3 (Kilted).

    With ``robot``, a process announces itself to its own machine, to the peers, and to
    processes whose announcements it receives, but not by multicast. The processes of the server's
    machine and the tools do announce themselves by multicast. So robots on different machines
    discover the server and the tools, but not one another.

    :raises FleetFileError: the name of a peer cannot be resolved. With such a name, Fast
        DDS would drop the whole profile, and the fleet would use every interface.
    """
    here = is_loopback(network)
    peers = ['127.0.0.1'] if here else [resolved(peer) for peer in network.peer_list]
    own = address_of(network.interface) if robot and not here else ''
    if own or (peers and not here):
        # A list of peers replaces Fast DDS's default, the multicast group. So add this group
        # again. For a robot, add the robot's own address instead.
        peers.append(own or MULTICAST)
    locators = ''.join(f'<locator><udpv4><address>{peer}</address></udpv4></locator>'
                       for peer in peers)
    announced = ANNOUNCED_ROBOT if robot and not here else ANNOUNCED_FAST[here]
    period = 'heartbeatPeriod' if version == 2 else 'heartbeat_period'
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<dds xmlns="http://www.eprosima.com/XMLSchemas/fastRTPS_Profiles"><profiles>'
        '<transport_descriptors><transport_descriptor><transport_id>fleet</transport_id>'
        '<type>UDPv4</type>'
        f'<receiveBufferSize>{RECEIVE_BUFFER}</receiveBufferSize>'
        + f'<maxMessageSize>{DATAGRAM}</maxMessageSize>' * (not here)
        + f'<maxInitialPeersRange>{highest_index(network) + 1}</maxInitialPeersRange>'
        f'<interfaceWhiteList><interface>{escape(network.interface)}</interface>'
        '</interfaceWhiteList><non_blocking_send>true</non_blocking_send>'
        '</transport_descriptor></transport_descriptors>'
        '<participant profile_name="fleet" is_default_profile="true"><rtps>'
        '<userTransports><transport_id>fleet</transport_id></userTransports>'
        '<useBuiltinTransports>false</useBuiltinTransports><builtin><discovery_config>'
        f'<leaseDuration><sec>{LEASE_FAST[here]}</sec></leaseDuration>'
        f'<leaseAnnouncement><sec>{announced}</sec></leaseAnnouncement>'
        + (f'<initialAnnouncements><count>{FIRST}</count><period><sec>1</sec></period>'
           '</initialAnnouncements>') * (not here)
        + '</discovery_config>'
        # With this unicast locator, Fast DDS does not listen to multicast.
        + ('<metatrafficUnicastLocatorList><locator><udpv4/></locator>'
           '</metatrafficUnicastLocatorList>') * here
        + f'<initialPeersList>{locators}</initialPeersList>' * bool(locators)
        + '</builtin></rtps></participant>'
        '<data_writer profile_name="fleet_writer" is_default_profile="true"><times>'
        f'<{period}><nanosec>{HEARTBEAT * 1e9:.0f}</nanosec></{period}></times></data_writer>'
        '</profiles></dds>\n')


def address_of(interface: str) -> str:
    """Return the IPv4 address of an interface of this machine; '' if it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answer = fcntl.ioctl(any_socket, _SIOCGIFADDR,
                                 struct.pack('256s', interface.encode()[:15]))
        except OSError:
            return ''
    return socket.inet_ntoa(answer[20:24])


def resolved(peer: str, setting: str = 'network.peers') -> str:
    """Return the IPv4 address of a machine; ``setting``: which names it.

    :raises FleetFileError: this machine cannot resolve the name.
    """
    try:
        return str(socket.getaddrinfo(peer, None, socket.AF_INET)[0][4][0])
    except (OSError, UnicodeError) as error:
        raise FleetFileError(f"{setting} names '{peer}', which this machine cannot resolve: "
                             f'{error}; give its IPv4 address') from None
