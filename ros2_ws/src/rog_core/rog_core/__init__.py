"""ROG's protocol and mathematics of training. No ROS, no sockets, no threads, no clock.

The two state machines, `WorkerMachine` on every robot and `ServerMachine` on the parameter server,
take events and the present time and return actions. A shell (a ROS 2 node, the simulator, a test)
carries the actions out and delivers the messages. `states` has the tables of states, `methods` the
synchronisation methods, `steps` the kinds of gradient that a worker can compute, `transfer` the
transmission of rows, `codecs` their encodings.
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
