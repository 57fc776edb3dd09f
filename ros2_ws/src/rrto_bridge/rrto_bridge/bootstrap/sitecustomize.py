"""Install rrto's device when a program under `rrto run` imports torch.

`rrto run` puts this folder first on PYTHONPATH, so Python imports this module at the start of every
process of the program. The module then imports the next sitecustomize on the path, if any.
"""

import gc
import importlib.util
import os
import sys
from importlib.machinery import PathFinder


class _Watch:
    """A finder that installs rrto's device after the import of torch."""

    def find_spec(self, name, path=None, target=None):
        if name != 'torch':
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec('torch')
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                collects = gc.get_threshold()
                gc.set_threshold(10_000, *collects[1:])   # half a second less
                try:
                    execute(module)
                finally:
                    gc.set_threshold(*collects)
                try:
                    from rrto_bridge.program.launcher import install
                except ModuleNotFoundError as error:
                    raise ImportError(
                        f'rrto: {sys.executable} has no {error.name}: install the suite in the '
                        'environment of this Python, too (docs/start/install.md)') from None
                install()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


if os.environ.get('RRTO_SETTINGS'):
    sys.meta_path.insert(0, _Watch())
    try:
        from rrto_bridge.program import children
        children.install()
    except ImportError:   # a Python in which rrto is not installed
        pass

_here = os.path.dirname(os.path.realpath(__file__))  # resolves colcon's symbolic links
_others = [p for p in sys.path if os.path.realpath(p) != _here]
_other = PathFinder.find_spec('sitecustomize', _others)
if _other is not None and _other.loader is not None:
    _other.loader.exec_module(importlib.util.module_from_spec(_other))
