"""ROG's protocol and mathematics of training. No ROS, no sockets, no threads, no clock.

The state machines `WorkerMachine` and `ServerMachine` take events and the present time and return
actions; shells (ROS 2 nodes, simulators, tests) carry them out. `states` has their tables,
`methods` the synchronisation methods, `steps` what a worker can be told to compute, `transfer` how
rows travel, `codecs` how they are written.
"""

from .accumulator import Accumulator
from .config import ServerConfig, SgdConfig, TransferConfig
from .errors import (
    ConfigError,
    GradientError,
    LocalProtocolError,
    PartitionMismatchError,
    RemoteProtocolError,
    RogError,
    StaleMessageError,
)
from .methods import Method, Team, create
from .partition import RowPartition, partition_of
from .server import ServerMachine
from .worker import WorkerMachine

__all__ = [
    'Accumulator', 'ConfigError', 'GradientError', 'LocalProtocolError', 'Method',
    'PartitionMismatchError', 'RemoteProtocolError', 'RogError', 'RowPartition', 'ServerConfig',
    'ServerMachine', 'SgdConfig', 'StaleMessageError', 'Team', 'TransferConfig', 'WorkerMachine',
    'create', 'partition_of',
]
