"""ROG's protocol and mathematics of training. No ROS, no sockets, no threads, no clock.

The state machines `WorkerMachine` and `ServerMachine` take events and the present time and return
actions; shells (ROS 2 nodes, simulators, tests) carry them out.
"""

from .accumulator import Accumulator
from .arrays import device_of
from .errors import (
    ConfigError,
    GradientError,
    LocalProtocolError,
    PartitionMismatchError,
    RemoteProtocolError,
    RogError,
    StaleMessageError,
)
from .partition import RowPartition, partition_of
from .server import ServerMachine, ServerState
from .sync import SyncMethod, minimum_transmission, parse_sync
from .worker import WorkerMachine

__all__ = [
    'Accumulator', 'ConfigError', 'GradientError', 'LocalProtocolError', 'PartitionMismatchError',
    'RemoteProtocolError', 'RogError', 'RowPartition', 'ServerMachine', 'ServerState',
    'StaleMessageError', 'SyncMethod', 'WorkerMachine', 'device_of', 'minimum_transmission',
    'parse_sync', 'partition_of',
]
