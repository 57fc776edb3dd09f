"""ROG's protocol and mathematics of training, without ROS, sockets, threads or a clock.

There are two state machines: `Worker` on every robot, and `Server` on the parameter
server. They receive events and the present time, and return actions. A shell (a ROS 2 node, the
simulator, a test) carries out the actions and delivers the messages. `protocol` defines what both
sides use: messages, tables of states, steps and settings. `model` divides a model into rows,
`codecs` encodes rows, and `transfer` sends and receives rows. `methods` contains the
synchronisation methods.

Each public name is loaded when it is first used. So a command that needs only an error class starts
without loading numba.
"""

from importlib import import_module
from typing import Any

_OF = {
    'worker.accumulator': ['Accumulator'],
    'protocol.config': ['ServerConfig', 'SgdConfig', 'TransferConfig'],
    'errors': ['ConfigError', 'GradientError', 'LocalProtocolError', 'PartitionMismatchError',
               'RemoteProtocolError', 'RogError', 'StaleMessageError'],
    'methods': ['Method', 'Team', 'create'],
    'model.partition': ['RowPartition', 'partition_of'],
    'server.server': ['Server'],
    'worker.worker': ['Worker'],
}
__all__ = sorted(name for names in _OF.values() for name in names)


def __getattr__(name: str) -> Any:
    for module, names in _OF.items():
        if name in names:
            return getattr(import_module(f'.{module}', __name__), name)
    raise AttributeError(f'module {__name__} has no attribute {name}')
