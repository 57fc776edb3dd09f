"""Synchronisation methods, one file each, and `create`, which builds a method from its name.

No code outside this folder names a method. A method of another package is a subclass of `Method`,
written ``package.module:Class:argument+option``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from typing import Any

from ..codecs import get_codec
from ..errors import ConfigError
from .asp import Asp
from .base import Method, Team
from .coded import Dcgc, DghGc, Gc, Gcc, Hgc
from .diloco import DiLoCo
from .dssp import Dssp
from .flown import Flown
from .gsgm import Gsgm
from .local import LocalSgd
from .rsp import Rsp
from .ssp import Ssp
from .svrg import Svrg
from .trimmed import Trimmed
from .written import Written, read

__all__ = ['METHODS', 'Method', 'Team', 'check_method', 'create', 'is_loaded', 'parse', 'usages']

METHODS: dict[str, type[Method]] = {method.name: method for method in (
    Method, Ssp, Asp, Dssp, Flown, Rsp, Gsgm, LocalSgd, DiLoCo, Trimmed, Gc, Hgc, Gcc, Dcgc,
    DghGc)}
LONGEST = 200  # characters of the text of a method
PARTS: dict[str, type[Method]] = {'svrg': Svrg}  # options that are mix-in classes of a method


def usages() -> str:
    """Return how the methods of this package are written, for messages."""
    return ', '.join(method.usage for method in METHODS.values())


def parse(text: str) -> Written:
    """Parse the text of a method; `ConfigError` if no method can be named so."""
    if len(text) > LONGEST:
        raise ConfigError(f'the text of a method must have at most {LONGEST} characters, got '
                          f'{len(text)}')
    written = read(text, frozenset(METHODS))
    if written is None:
        raise ConfigError(f"synchronisation method '{text.strip()}' is unknown; choose one of "
                          f'{usages()}, for example rsp:4, or a class of an installed package, '
                          'package.module:Class')
    return written


def create(text: str, team: Team | None = None) -> Method:
    """Return a new method, by its name; `ConfigError` if it is unknown or unfit for the team."""
    written, team = parse(text), team or Team()
    if written.name in METHODS:
        return _built(METHODS[written.name], written, team)
    method = _foreign(written, team)
    from ..method_check import (
        rehearse,  # here, as it imports the machines, which import this module
    )

    rehearse(lambda: _foreign(written, team), text, team)
    return method


def is_loaded(text: str) -> bool:
    """Whether the method of that text can be built without importing anything."""
    name = parse(text).name
    return name in METHODS or name.partition(':')[0] in sys.modules


def check_method(settings: Any, capacities: Mapping[str, float]) -> None:
    """Raise `ConfigError` if the method in ``settings.training`` does not fit the fleet.

    Call it before a server is started, so that nothing else has been started yet.
    """
    training = settings.training
    create(training.sync, Team(capacities, get_codec(training.codec).name, training.momentum,
                               settings.server.clip, bool(settings.upstream.robot)))


def _built(cls: type[Method], written: Written, team: Team) -> Method:
    parts = [part for name, part in PARTS.items()
             if ('+', name) in ((sign, option) for sign, option, _ in written.signs)
             and name in cls.known]
    if parts:
        cls = type(f'{"".join(p.__name__ for p in parts)}{cls.__name__}', (*parts, cls), {})
    return cls(written, team)


def _foreign(written: Written, team: Team) -> Method:
    """Build a method of another package; any exception that it raises becomes a `ConfigError`."""
    module, _, name = written.name.partition(':')
    what = f"synchronisation method '{written.text}'"
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ConfigError(f'{what}: {error}; install the package that contains it where the '
                          f'server runs, or choose one of {usages()}') from error
    except AttributeError:
        raise ConfigError(f"{what}: module {module} has no '{name}'") from None
    except (Exception, SystemExit) as error:
        raise ConfigError(f'{what}: module {module} cannot be imported: '
                          f'{type(error).__name__}: {error}') from error
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ConfigError(f'{what}: {module}:{name} is not a subclass of rog_core.methods.Method')
    try:
        return _built(found, written, team)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f'{what} cannot be built: {type(error).__name__}: {error}') from error
