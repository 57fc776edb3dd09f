"""First on PYTHONPATH of a program under `rrto run`: installs the device when torch is imported.

Python imports this module at start, in every process of the program. Another sitecustomize further
on the path is imported, too.
"""

import importlib.util
import os
import sys
from importlib.machinery import PathFinder


class _Watch:
    """A finder that installs rrto's device once torch has been imported."""

    def find_spec(self, name, path=None, target=None):
        if name != 'torch':
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec('torch')
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                from rrto_bridge.launcher import install
                install()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get('RRTO_SETTINGS'):
    sys.meta_path.insert(0, _Watch())
    try:
        from rrto_bridge import children
        children.install()
    except ImportError:   # another Python, which has no rrto
        pass

_here = os.path.dirname(os.path.realpath(__file__))  # colcon may have put a link beside it
_others = [p for p in sys.path if os.path.realpath(p) != _here]
_other = PathFinder.find_spec('sitecustomize', _others)
if _other is not None and _other.loader is not None:
    _other.loader.exec_module(importlib.util.module_from_spec(_other))
