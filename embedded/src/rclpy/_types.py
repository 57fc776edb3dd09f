"""What the message packages of embedded/ consist of: their two folders as modules.

`std_msgs/msg/__init__.py` is two lines: it asks here for a `__getattr__` that makes a class the
first time somebody wants it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from rclpy._definitions import names
from rclpy._message import message_class, service_class


def load(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a module such as std_msgs.msg.

    :param module: the module's `__name__`, a package and `msg` or `srv`
    """
    package, folder = module.split(".")
    known = names(package, folder)
    make: Callable[[str], type] = message_class if folder == "msg" else service_class

    def getattribute(name: str) -> Any:
        if name not in known:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        cls = make(f"{package}/{folder}/{name}")
        setattr(sys.modules[module], name, cls)
        return cls

    return getattribute, lambda: list(known), list(known)
