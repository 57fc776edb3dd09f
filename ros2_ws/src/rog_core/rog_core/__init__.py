"""ROG's protocol and mathematics of training. No ROS, no sockets, no threads, no clock.

The two state machines, `WorkerMachine` on every robot and `ServerMachine` on the parameter server,
take events and the present time and return actions. A shell (a ROS 2 node, the simulator, a test)
carries the actions out and delivers the messages. `states` has the tables of states, `methods` the
synchronisation methods, `steps` the kinds of gradient that a worker can compute, `transfer` the
transmission of rows, `codecs` their encodings.

Each public name is loaded when it is first used, so a command that needs only an error class starts
without numba.
"""

from importlib import import_module
from typing import Any

_OF = {
    'accumulator': ['Accumulator'],
    'config': ['ServerConfig', 'SgdConfig', 'TransferConfig'],
    'errors': ['ConfigError', 'GradientError', 'LocalProtocolError', 'PartitionMismatchError',
               'RemoteProtocolError', 'RogError', 'StaleMessageError'],
    'methods': ['Method', 'Team', 'create'],
    'partition': ['RowPartition', 'partition_of'],
    'server': ['ServerMachine'],
    'worker': ['WorkerMachine'],
}
__all__ = sorted(name for names in _OF.values() for name in names)


def __getattr__(name: str) -> Any:
    for module, names in _OF.items():
        if name in names:
            return getattr(import_module(f'.{module}', __name__), name)
    raise AttributeError(f'module {__name__} has no attribute {name}')
