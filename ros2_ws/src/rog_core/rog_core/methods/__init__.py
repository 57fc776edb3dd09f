"""Synchronisation methods, one file each, and `create`, which builds a method from its name.

The state machines use a method only through the interface of `Method`; they never test its name.
A method of another package is a subclass of `Method`. If that package registers the method
(`rog_core.plugins`), users write the registered name. Otherwise users write
``package.module:Class:argument+option``.
"""

from __future__ import annotations

import difflib
import sys
from typing import Any

from .. import plugins
from ..errors import ConfigError
from .asp import Asp
from .base import Method, Team
from .coded import Dcgc, DghGc, Gc, Gcc, Hgc
from .dssp import Dssp
from .flown import Flown
from .gsgm import Gsgm
from .method_spec import MethodSpec, read
from .role import Role
from .rsp import Rsp
from .ssp import Ssp
from .svrg import Svrg

__all__ = ['METHODS', 'Method', 'Team', 'create', 'is_known', 'parse', 'place_of', 'usages']

METHODS: dict[str, type[Method]] = {method.name: method for method in (
    Method, Ssp, Asp, Dssp, Flown, Rsp, Gsgm, Gc, Hgc, Gcc, Dcgc, DghGc)}
LONGEST = 200  # maximum number of characters in the text of a method
PARTS: dict[str, type[Role]] = {'svrg': Svrg}  # maps an option to the roles that it adds


def usages() -> str:
    """Return one text for error messages: how users write each method.

    Of the registered methods of other packages, only the names are listed.
    """
    return ', '.join([*(method.usage for method in METHODS.values()), *plugins.methods()])


def parse(text: str) -> MethodSpec:
    """Parse the text of a method: its name, arguments and options.

    The name is known, or it has the form ``package.module:Class``; whether such a class exists is
    not checked.

    :raises ConfigError: the text has another form, or more than `LONGEST` characters.
    """
    if len(text) > LONGEST:
        raise ConfigError(f'the text of a method must have at most {LONGEST} characters, got '
                          f'{len(text)}')
    spec = read(text, frozenset(METHODS))
    if spec is None or spec.name not in METHODS:
        spec = read(text, frozenset([*METHODS, *plugins.methods()]))
    if spec is None:
        raise ConfigError(f"synchronisation method '{text.strip()}' is unknown; choose one of "
                          f'{usages()}, for example rsp:4, or a class of an installed package, '
                          'package.module:Class')
    return spec


def create(text: str, team: Team | None = None) -> Method:
    """Build the method that ``text`` names.

    Raises `ConfigError` if the method is unknown or does not fit the team. This function imports no
    module. For a method of another package, call `rog_core.method_check.check_named` first: it
    imports the method's module.
    """
    spec, team = parse(text), team or Team()
    if spec.name in METHODS:
        return _built(METHODS[spec.name], spec, team)
    cls = _foreign(spec)
    try:
        return _built(cls, spec, team)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"synchronisation method '{spec.text}' cannot be built: "
                          f'{type(error).__name__}: {error}') from error


def is_known(text: str) -> bool:
    """Return whether the method in ``text`` can be used without importing an unknown module.

    True for a method of this package, for a method that an installed package registers, and for a
    method whose module is already imported.
    """
    name = parse(text).name
    return name in METHODS or name in plugins.methods() or place_of(name)[0] in sys.modules


def place_of(name: str) -> tuple[str, str]:
    """Return (name of the module, name of the class) of a method from another package."""
    found = plugins.methods().get(name)
    if found is not None:
        return found.module, found.attr
    module, _, cls = name.partition(':')
    return module, cls


def _built(cls: type[Method], spec: MethodSpec, team: Team) -> Method:
    parts = [part for name, part in PARTS.items()
             if ('+', name) in ((sign, option) for sign, option, _ in spec.signs)
             and name in cls.known]
    if parts:
        cls = type(f'{"".join(p.__name__ for p in parts)}{cls.__name__}', (*parts, cls), {})
    return cls(spec, team)


def _foreign(spec: MethodSpec) -> type[Method]:
    """Return the class of a method from another package; its module must be imported already."""
    module, name = place_of(spec.name)
    what = f"synchronisation method '{spec.text}'"
    if module not in sys.modules:
        raise ConfigError(f'{what}: module {module} must be imported before a machine is given the '
                          'method; call rog_core.method_check.check_named')
    found: Any = getattr(sys.modules[module], name, None)
    if found is None:
        near = difflib.get_close_matches(name, [
            known for known, value in vars(sys.modules[module]).items()
            if isinstance(value, type) and issubclass(value, Method)], 1)
        hint = f"; did you mean '{near[0]}'?" if near else ''
        raise ConfigError(f"{what}: module {module} has no '{name}'{hint}")
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(f'{what}: {module}:{name} is not a subclass of rog_core.methods.Method')
    return found
