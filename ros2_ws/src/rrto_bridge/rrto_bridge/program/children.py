"""Make the device visible in every process that a program starts, with any environment.

A program gets the remote device through environment variables, which make Python load `bootstrap`.
A child process with an empty environment, or a Python that ignores the environment, would not get
the device, and would silently compute on the CPU. A real CUDA device needs no environment
variables, so every child process gets it. To give the remote device to every child process too,
this file changes the commands by which the program starts processes. This file runs in every
process, so it imports only modules that Python itself loads when it starts.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import rrto_bridge

SETTINGS = 'RRTO_SETTINGS'
HIDDEN = 'RRTO_HIDDEN'       # stores the PYTHON* variables that Python must not read at its start
BOOTSTRAP = os.path.join(os.path.dirname(os.path.abspath(rrto_bridge.__file__)), 'bootstrap')

# Environment variables, besides PYTHONPATH, that a process needs to find the server.
_NEEDED = re.compile('RRTO_SETTINGS|RRTO_OWN_.*|CUDA_VISIBLE_DEVICES|LD_LIBRARY_PATH'
                     '|AMENT_PREFIX_PATH|SKIP_DEFAULT_XML_FILE'
                     '|(ROS|RMW|CYCLONEDDS|FASTDDS|FASTRTPS)_.*')
# Commands that start another command, as in `timeout 5 python ...`.
_BEFORE = frozenset(('timeout', 'nice', 'nohup', 'setsid', 'stdbuf', 'taskset', 'chrt', 'ionice',
                     'numactl', 'xargs'))
_PYTHON = re.compile(r'python[\d.]*')
_AS_ANOTHER_USER = ('sudo', 'su', 'doas', 'runuser', 'systemd-run')
_IN_A_SHELL = re.compile(r'\benv\s+(-i\b|-\s|--ignore-environment)'
                         r'|\bpython[\d.]*\s+-[a-zA-Z]*[IES]'
                         r'|\bunset\s+PYTHONPATH|\bPYTHONPATH=(?!\S*\$\{?PYTHONPATH)')
_CANNOT = ('rrto: {} discards the environment through which a program gets the device, so it will '
           'see no device: start it without that')

Environment = dict[str, str]


def adapted(command: Sequence[str], environment: Mapping[str, str], ours: Mapping[str, str]
            ) -> tuple[list[str], Environment]:
    """Return a command and its environment, changed so that the program sees the device.

    ``ours``: the environment of the process that starts the command.
    """
    command, environment = list(command), dict(environment)
    name = os.path.basename(command[0]) if command else ''
    if SETTINGS not in environment:
        environment.update({k: v for k, v in ours.items()
                            if _NEEDED.fullmatch(k) and k not in environment})
        environment['PYTHONPATH'] = _joined(environment.get('PYTHONPATH'), ours.get('PYTHONPATH'))
    environment['PYTHONPATH'] = _joined(BOOTSTRAP, environment.get('PYTHONPATH'))
    if name == 'env':
        return _after_env(command, environment, ours), environment
    if name.startswith('python'):
        return _python(command, environment)
    if name in _BEFORE:
        at = _started(command)
        rest, environment = adapted(command[at:], environment, ours)
        return command[:at] + rest, environment
    if _ignores_by_itself(command) or name in _AS_ANOTHER_USER \
            or name.endswith('sh') and _IN_A_SHELL.search(' '.join(command)):
        _say(_CANNOT.format(' '.join(command)[:80]))
    return command, environment


def _started(command: list[str]) -> int:
    """Return the index at which the started command begins: 2 for `timeout 5 python x.py`.

    `command` begins with a command of `_BEFORE`. If the started command is not a Python, `env` or a
    command of `_BEFORE`, return the length of `command`.
    """
    for at, word in enumerate(command[1:], 1):
        name = os.path.basename(word)
        if name in ('env', *_BEFORE) or _PYTHON.fullmatch(name):
            return at
        # Program names begin with [a-z/.]; options, durations and signals such as KILL do not.
        if re.match('[a-z/.]', word):
            break
    return len(command)


def _joined(*paths: str | None) -> str:
    """Join search paths, such as two values of PYTHONPATH, and drop repeated entries."""
    parts = [part for path in paths if path for part in path.split(os.pathsep)]
    return os.pathsep.join(dict.fromkeys(parts))


def _after_env(command: list[str], environment: Environment, ours: Mapping[str, str]) -> list[str]:
    """Adapt COMMAND in a command `env [OPTION] [NAME=VALUE] COMMAND`; return the new command."""
    at, emptied, named = 1, False, {}
    while at < len(command) and (command[at].startswith('-') or '=' in command[at]):
        option = command[at]
        emptied = emptied or option in ('-', '--ignore-environment') or \
            bool(re.match('-[a-zA-Z0]*i', option))
        if '=' in option and not option.startswith('-'):
            key, _, named[key] = option.partition('=')
        at += 2 if option in ('-u', '--unset', '-C', '--chdir') else 1
    if at >= len(command):
        return command
    given = {**({} if emptied else environment), **named}
    rest, wanted = adapted(command[at:], given, {**environment, **ours})
    changed = [f'{k}={v}' for k, v in wanted.items() if given.get(k) != v]
    gone = [part for k in given if k not in wanted for part in ('-u', k)]
    return [command[0], *gone, *command[1:at], *changed, *rest]


def _python(command: list[str], environment: Environment) -> tuple[list[str], Environment]:
    """Change a Python command with `-E` or `-I` so that it still reads the device's variables.

    The changed command does not have these options, so Python would also read the user's PYTHON*
    variables. Therefore move those variables to `HIDDEN`; `install` restores them.
    """
    made, ignores, at = command[:1], False, 1
    while at < len(command) and re.match('-[a-zA-Z]', command[at]):
        option = command[at]
        flags = re.match('-([a-bd-ln-zA-VY-Z]*)', option)[1]  # type: ignore[index]
        rest = option[1 + len(flags):]      # the option c, m, W or X, and the text that follows it
        if 'S' in flags:
            _say(_CANNOT.format('python -S'))
            return command, environment
        ignores = ignores or 'E' in flags or 'I' in flags
        if 'I' in flags:
            if sys.version_info < (3, 11):
                _say(_CANNOT.format('python -I before 3.11'))
                return command, environment
            flags += 'Ps'
        flags = flags.replace('E', '').replace('I', '')
        if flags or rest:
            made.append(f'-{flags}{rest}')
        at += 1
        if rest[:1] in ('c', 'm'):
            break
        if rest in ('W', 'X') and at < len(command):
            made.append(command[at])
            at += 1
    if ignores:
        hidden = {k: v for k, v in environment.items() if k.startswith('PYTHON')}
        environment = {k: v for k, v in environment.items() if k not in hidden}
        environment['PYTHONPATH'] = BOOTSTRAP
        environment[HIDDEN] = '\n'.join(f'{k}={v}' for k, v in hidden.items())
    return [*made, *command[at:]], environment


def _ignores_by_itself(command: list[str]) -> bool:
    """Return whether the `#!` line of a script makes Python ignore environment variables."""
    try:
        with open(command[0], 'rb') as file:
            return bool(re.match(rb'#!.*python[\d.]*\s+-[a-zA-Z]*[IES]', file.readline(256)))
    except (OSError, IndexError):
        return False


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def install() -> None:
    """Patch Python's functions that start processes; they then call `adapted` for each command."""
    hidden = os.environ.pop(HIDDEN, '')
    if hidden:
        os.environ.update(line.partition('=')[::2] for line in hidden.split('\n'))
    import _posixsubprocess
    ours = dict(os.environ)
    fork_exec = _posixsubprocess.fork_exec

    def call_fork_exec(args: Any, executables: Any, close: Any, fds: Any, cwd: Any, env: Any,
                       *more: Any) -> Any:
        given = dict(os.environ) if env is None else dict(
            os.fsdecode(entry).split('=', 1) for entry in env)
        words = [os.fsdecode(word) for word in args]
        command, wanted = adapted(words, given, ours)
        if command != words:
            args = type(args)(os.fsencode(word) for word in command)
        if wanted != dict(os.environ) or env is not None:
            env = [os.fsencode(f'{k}={v}') for k, v in wanted.items()]
        return fork_exec(args, executables, close, fds, cwd, env, *more)

    _posixsubprocess.fork_exec = call_fork_exec
    if 'subprocess' in sys.modules:
        sys.modules['subprocess']._fork_exec = call_fork_exec  # type: ignore[attr-defined]
    execve = os.execve

    def call_execve(path: Any, args: Any, env: Any) -> Any:
        command, wanted = adapted([os.fsdecode(word) for word in args],
                                  {os.fsdecode(k): os.fsdecode(v) for k, v in env.items()}, ours)
        return execve(path, command, wanted)

    def call_execv(path: Any, args: Any) -> Any:
        return call_execve(path, args, os.environ)

    os.execve, os.execv = call_execve, call_execv  # type: ignore[assignment]
    system = os.system

    def call_system(command: Any) -> int:
        from shlex import quote
        given, text = dict(os.environ), os.fsdecode(command)
        _, wanted = adapted(['sh', '-c', text], given, ours)
        return system('\n'.join([*(f'export {k}={quote(v)}' for k, v in wanted.items()
                                   if given.get(k) != v), text]))

    os.system = call_system
    for name in ('posix_spawn', 'posix_spawnp'):
        if hasattr(os, name):
            setattr(os, name, _spawning(getattr(os, name), ours))


def _spawning(spawn: Callable[..., Any], ours: Mapping[str, str]) -> Callable[..., Any]:
    def call(path: Any, argv: Any, env: Any, **more: Any) -> Any:
        command, wanted = adapted([os.fsdecode(word) for word in argv],
                                  {os.fsdecode(k): os.fsdecode(v) for k, v in env.items()}, ours)
        return spawn(path, command, wanted, **more)
    return call
