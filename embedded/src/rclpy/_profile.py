"""How DDS is configured: the environment variables of ROS 2, and our careful defaults.

Without any variable DDS stays on this machine (ROS 2's own default is the whole subnet). A fleet on
a network sets ROS_AUTOMATIC_DISCOVERY_RANGE=SUBNET or its own CYCLONEDDS_URI.
"""

from __future__ import annotations

import os
from xml.sax.saxutils import quoteattr

RANGES = ("LOCALHOST", "SUBNET", "OFF", "SYSTEM_DEFAULT")
MAX_DOMAIN_ID = 232  # beyond, the ports of the DDS standard exceed 65535

# For messages of several MB; without `min` the kernel's limit is accepted silently.
_BUFFERS = '<Internal><SocketReceiveBufferSize min="default" max="8MiB"/></Internal>'
_LOOPBACK = '<Interfaces><NetworkInterface address="127.0.0.1" multicast="false"/></Interfaces>'
# By default 30 s: a process that DDS forgot, because it was stopped for 10 s, is met again so late.
_ANNOUNCED = "<SPDPInterval>5s</SPDPInterval>"
_UNICAST = "<AllowMulticast>false</AllowMulticast>"


class ConfigurationError(RuntimeError):
    """The environment asks for something that cannot be; the message says what to change."""


def check_distribution() -> str:
    """Return the ROS distribution whose wire format is spoken.

    Humble's discovery messages carry ids of 24 bytes: speaking Jazzy's 16 to them would crash the
    nodes of others, so this is refused and never guessed.
    """
    name = os.environ.get("ROS_DISTRO", "") or "jazzy"
    if name in ("ardent", "bouncy", "crystal", "dashing", "eloquent", "foxy", "galactic", "humble"):
        raise ConfigurationError(
            f"ROS_DISTRO={name}: its wire format differs from Jazzy's, which this rclpy speaks. "
            "Source that ROS 2 installation to use its own rclpy, or set ROS_DISTRO=jazzy when no "
            f"{name} node is in the same domain."
        )
    if os.environ.get("ROS_SECURITY_ENABLE", "").strip().lower() == "true":
        raise ConfigurationError(
            "ROS_SECURITY_ENABLE=true: this rclpy has no SROS 2 and would talk unprotected. Source "
            "a ROS 2 installation, whose DDS has it, or unset the variable"
        )
    return name


def domain_id() -> int:
    """Return ROS_DOMAIN_ID, 0 when it is not set."""
    text = os.environ.get("ROS_DOMAIN_ID", "").strip()
    try:
        value = int(text) if text else 0
    except ValueError:
        value = -1
    if not 0 <= value <= MAX_DOMAIN_ID:
        raise ConfigurationError(
            f"ROS_DOMAIN_ID={text!r}: must be a number from 0 to {MAX_DOMAIN_ID}"
        )
    return value


def discovery_range() -> str:
    """Return how far discovery reaches, one of RANGES."""
    text = os.environ.get("ROS_AUTOMATIC_DISCOVERY_RANGE", "").strip().upper()
    if os.environ.get("ROS_LOCALHOST_ONLY", "").strip() == "1":
        return "LOCALHOST"
    if not text:
        return "SYSTEM_DEFAULT" if os.environ.get("CYCLONEDDS_URI") else "LOCALHOST"
    if text not in RANGES:
        raise ConfigurationError(
            f"ROS_AUTOMATIC_DISCOVERY_RANGE={text}: must be one of {', '.join(RANGES)}"
        )
    return text


def cyclone_config() -> str:
    """Return the configuration for dds_create_domain: ours, then the user's CYCLONEDDS_URI."""
    reach = discovery_range()
    user = os.environ.get("CYCLONEDDS_URI", "")
    peers = [p for p in os.environ.get("ROS_STATIC_PEERS", "").split(";") if p.strip()]
    if reach == "LOCALHOST":
        peers.insert(0, "127.0.0.1")  # a name needs /etc/hosts, which a bare system lacks
    general = _UNICAST if reach in ("LOCALHOST", "OFF") else ""
    if reach == "LOCALHOST" and not user:
        general += _LOOPBACK  # the user's file may name interfaces, and none may be named twice
    # The limits are those of rmw_cyclonedds_cpp, so that both find each other.
    discovery = (
        "<ParticipantIndex>auto</ParticipantIndex><MaxAutoParticipantIndex>32"
        "</MaxAutoParticipantIndex>"
    )
    if reach == "OFF":
        discovery = (
            f"<ParticipantIndex>none</ParticipantIndex><Tag>ros_discovery_off_{os.getpid()}</Tag>"
        )
        peers = []
    if peers:
        listed = "".join(f"<Peer address={quoteattr(p.strip())}/>" for p in peers)
        discovery += f"<Peers>{listed}</Peers>"
    parts = [_BUFFERS, f"<Discovery>{_ANNOUNCED}</Discovery>"]
    if reach != "SYSTEM_DEFAULT":
        parts.append(f"<General>{general}</General>" if general else "")
        parts.append(f"<Discovery>{discovery}</Discovery>")
    own = f"<CycloneDDS><Domain>{''.join(parts)}</Domain></CycloneDDS>"
    return f"{own},{user}" if user else own
