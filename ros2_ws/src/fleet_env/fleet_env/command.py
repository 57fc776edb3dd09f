"""What all commands share: `--version`, parsers of options, and words for errors and times."""

from __future__ import annotations

import argparse
import gc
import os
import re
import resource
import signal
import sys
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, NoReturn

from .errors import SettingError, did_you_mean

# Distributions that can contain this package: the first in a ROS workspace, the second if the suite
# is installed from a wheel. If both are, the code is that of the earlier one on sys.path.
PROVIDERS = ('fleet_env', 'rog_suite')
COLLECTS = gc.get_threshold()
# New objects before the garbage collector runs while modules are imported. With the default it
# takes .5 of the 2.9 s in which PyTorch and its compiler are imported.
SELDOM = 10_000
DESCRIPTORS = 15  # with fewer file descriptors no node of ROS 2 starts (measured; Fast DDS 2.14)
_CHOICE = re.compile(r"invalid choice: '(?P<given>.*)' \(choose from (?P<known>.*)\)")


@cache
def version() -> str:
    """Return the version of this software."""
    found = next((one for place in sys.path for name in PROVIDERS
                  for one in distributions(name=name, path=[place])), None)
    return 'unknown' if found is None else found.version


def duration(seconds: float) -> str:
    """Return a duration for people, in seconds, minutes or hours."""
    if seconds < 100:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 6000 else f'{seconds / 3600:.1f} h'


def begin_process() -> None:
    """Prepare this process, which is a command's or a node's own, before it imports much."""
    _use_utf8()
    collect_seldom()


def collect_seldom() -> None:
    """Let the garbage collector run seldom, until `never_collect_what_is_loaded` is called."""
    gc.set_threshold(SELDOM, *COLLECTS[1:])


def never_collect_what_is_loaded() -> None:
    """Let the garbage collector ignore all objects that are in use now, and run as usual again.

    With PyTorch, it takes 0.25 s to look at all of them, and no thread of Python runs meanwhile.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTS)


def _use_utf8() -> None:
    """Start this process again in Python's UTF-8 mode, if it uses another encoding (LC_ALL=C).

    With another one, names with an umlaut could neither be written to files nor come from them.
    """
    there = os.environ.get('PYTHONUTF8') == '1'  # without effect in a process that ignores it
    if sys.getfilesystemencoding() != 'utf-8' and not there and sys.executable:
        os.environ['PYTHONUTF8'] = '1'
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def how_it_ended(code: int) -> str:
    """Describe the exit code of a process."""
    if code >= 0:
        return f'ended with exit code {code}'
    try:
        name = signal.Signals(-code).name
    except ValueError:  # real-time signals have no names
        name = f'signal {-code}'
    return f'was ended by {name}' + ', as when memory runs out' * (-code == signal.SIGKILL)


def last_error(log: Path) -> str:
    """Return the last error in a process's log, or the last line if the log has no error."""
    lines = log.read_text(encoding='utf-8', errors='replace').splitlines()
    errors = [line.removeprefix('error: ') for line in lines if line.startswith('error: ')]
    return (errors or [line for line in lines if line.strip()] or [''])[-1]


def os_error_text(error: OSError) -> str:
    """Return a line for the user about a file that cannot be used: its name and the reason."""
    named = error.filename and error.strerror
    return f'{error.filename}: {error.strerror}' if named else str(error)


def at_least_one(text: str) -> int:
    """Parse an option's text as a whole number; raise `ArgumentTypeError` if it is below 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'must be a whole number of at least 1, got {text}')
    return int(text)


class CommandParser(argparse.ArgumentParser):
    """A parser that suggests the most similar verb or choice for a mistyped one."""

    def error(self, message: str) -> NoReturn:
        """Print the message with the most similar choice, and end with exit code 2."""
        if found := _CHOICE.search(message):
            known = [word.strip(" '") for word in found['known'].split(',')]
            if near := did_you_mean(found['given'], known):
                message = f'{message}; {near}'
        super().error(message)


class ShowVersion(argparse.Action):
    """Prints name and version of the command."""

    def __init__(self, option_strings: Any, dest: str) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, nargs=0, default=argparse.SUPPRESS,
                         help='show the version and end')

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any,
                 option_string: str | None = None) -> None:
        """Print name and version, and end with exit code 0."""
        print(parser.prog, version())
        parser.exit()


def command_parser(name: str, description: str) -> CommandParser:
    """Return a parser for the command ``name``, with the option `--version`.

    :raises SettingError: this process may not open `DESCRIPTORS` files. Otherwise the imports of
        the command's verbs would fail, with tracebacks.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < DESCRIPTORS:  # RLIM_INFINITY is -1
        raise SettingError(f'at least {DESCRIPTORS} file descriptors are needed (ulimit -n), '
                           f'got {most}')
    parser = CommandParser(prog=name, description=description)
    parser.add_argument('--version', action=ShowVersion)
    return parser
