"""The DDS environment of a fleet, the same for rclpy and for `embedded/`."""

from __future__ import annotations

import os
import socket

from fleet_env.errors import FleetFileError
from fleet_env.fleet import NetworkConfig


def dds_environment(network: NetworkConfig) -> dict[str, str]:
    """Return the variables to set: domain, and the interface that DDS is confined to.

    What the user's own environment says wins. `lo` keeps everything on this machine. Raises
    `FleetFileError` when there is no such interface.
    """
    name = network.interface
    known = [interface for _, interface in socket.if_nameindex()]
    if name not in known:
        raise FleetFileError(f"network.interface is '{name}', which this machine does not have; "
                             f"it has {', '.join(known)}")
    wanted = {'ROS_DOMAIN_ID': str(network.domain_id)}
    if name == 'lo':
        wanted['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    elif 'CYCLONEDDS_URI' not in os.environ:
        wanted['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'SUBNET'
        wanted['CYCLONEDDS_URI'] = ('<CycloneDDS><Domain><General><Interfaces><NetworkInterface '
                                    f'name="{name}"/></Interfaces></General></Domain></CycloneDDS>')
    return {key: value for key, value in wanted.items() if not os.environ.get(key)}
