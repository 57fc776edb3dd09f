"""Imports the object that a text ``package.module:name`` names."""

import difflib
import re
from typing import Any

from fleet_env.vision import imported, other_build

from rog_tasks.errors import TaskError

_SPEC = re.compile(r'([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)')


def load_object(spec: str, what: str, fleet: bool = True) -> Any:
    """Import ``package.module:name`` and return the object of that name.

    :param what: word for the object in messages to the user: ``task``, ``model``.
    :param fleet: whether a fleet file names the object. The module may then be in the folder of the
        fleet file.
    :raises TaskError: the text is malformed, or the module is not found, fails to import, or has no
        object of that name.
    """
    match = _SPEC.fullmatch(spec)
    if not match:
        raise TaskError(f'{what} {spec!r} must look like package.module:name')
    module_name, name = match.groups()
    try:
        module = imported(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name + '.').startswith(error.name + '.'):
            beside = 'beside the fleet file, ' if fleet else ''
            raise TaskError(f'{what} {spec!r}: there is no module {error.name!r}; is it installed, '
                            f'{beside}or its folder on PYTHONPATH?') from error
        raise TaskError(f'{what} {spec!r}: {module_name} needs the module {error.name!r}, which is '
                        'not installed') from error
    except Exception as error:
        advice = other_build(error)
        raise TaskError(f'{what} {spec!r}: importing {module_name} failed with '
                        f'{type(error).__name__}: {error}' + f'. {advice}' * bool(advice)
                        ) from error
    if not hasattr(module, name):
        near = difflib.get_close_matches(name, [
            known for known, value in vars(module).items() if callable(value)], 1)
        hint = f'; did you mean {near[0]!r}?' if near else ''
        raise TaskError(f'{what} {spec!r}: {module_name} has no {name!r}{hint}')
    return getattr(module, name)
