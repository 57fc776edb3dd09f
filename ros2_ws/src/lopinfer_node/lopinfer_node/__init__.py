"""LOPInfer: robot and server share one inference at the granularity of local operations.

`offload`, `offloaded` and `picture` are the interface. They are imported only when a program uses
them, because planning and profiles need no ROS.
"""

from typing import Any

__all__ = ['offload', 'offloaded', 'picture']


def __getattr__(name: str) -> Any:
    if name in __all__:
        from . import api
        return getattr(api, name)
    raise AttributeError(f'module {__name__} has no attribute {name}')
