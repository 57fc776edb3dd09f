"""Helpers for the tests of several packages: DDS domains, environments, processes, waiting."""

from __future__ import annotations

import atexit
import faulthandler
import fcntl
import importlib
import os
import random
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any

LIMIT = 300.0  # a wait fails after this many seconds, which suffice even on a busy machine

# Not above 101: there, Linux may already have given the ports of a domain to some connection.
_DOMAINS = range(1, 102)
_SHARE = 8
# maps a domain to its lock file, which this process holds until its end
_claimed: dict[int, Any] = {}


def free_domain() -> int:
    """Return a DDS domain that no process on this machine uses and no other test process claims.

    A process claims `_SHARE` domains and then uses them again and again, so that some domains are
    left for other processes.
    """
    if len(_claimed) >= _SHARE:
        for domain in list(_claimed)[1:]:  # conftest.py uses the first domain for all tests
            if _is_quiet(domain):
                # move this domain to the end, so that it is reused after all others
                _claimed[domain] = _claimed.pop(domain)
                return domain
    folder = Path(tempfile.gettempdir()) / f'fleet_testing_{os.getuid()}'
    folder.mkdir(exist_ok=True)
    for domain in random.Random(os.getpid()).sample(_DOMAINS, len(_DOMAINS)):
        lock = (folder / str(domain)).open('w')
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        if _is_quiet(domain):
            _claimed[domain] = lock
            return domain
    raise RuntimeError('no DDS domain is free on this machine')


def _is_quiet(domain: int) -> bool:
    """Return whether no process uses the port of a domain's first participant."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind(('127.0.0.1', 7400 + 250 * domain + 10))
        except OSError:
            return False
        return True


def environment(domain: int, *folders: Path | str, **more: str) -> dict[str, str]:
    """Return environment variables for a process in this domain that imports from ``folders``."""
    path = os.pathsep.join([*map(str, folders), os.environ.get('PYTHONPATH', '')])
    return {**os.environ, 'PYTHONPATH': path, 'ROS_DOMAIN_ID': str(domain), **more}


# What the processes of LOPInfer and of policies load. PyTorch itself loads `torch._dynamo` when a
# model is traced, which takes longer than all the rest.
INFERENCE = ('torch._dynamo', 'lopinfer_node.ros.server_node', 'lopinfer_node.ros.client_node',
             'lopinfer_node.runtime.trial', 'fleet_policy.node', 'fleet_policy.own_gpu')
# What the processes of whole fleets and of the documents' programs load.
PROGRAMS = (*INFERENCE, 'rog_cli.main', 'rog_sim.simulation', 'rog_sim.figures',
            'rog_bringup.task_check', 'rog_core.warm_up:warm_up', 'fleet_models', 'rog_ps.main',
            'rog_ps.node', 'rog_worker.main', 'rog_worker.training', 'rog_worker.connect',
            'sklearn.datasets', 'fleet_env.vision:import_torchvision')

# With it begins a program that a fork runs, but that must import the packages of this suite anew.
# `forget(*missing)` does so again; the packages ``missing`` are as if they were not installed.
FORGET = '''
import sys
def forget(*missing):
    for name in [*sys.modules]:
        package = name.partition('.')[0]
        if package in missing or package.startswith(('fleet_', 'rog_', 'lopinfer', 'rrto')):
            del sys.modules[name]
    sys.modules.update(dict.fromkeys(missing))
forget()
'''


@cache
def forks(*loaded: str) -> Any:
    """Return a `ForkServer` that has loaded these modules, the same in all tests of this process.

    A process that it starts needs a tenth of the processor time of one that loads PyTorch itself.
    """
    from rog_cli.launching.fork_server import ForkServer  # imported here: few tests need it
    domain = int(os.environ['ROS_DOMAIN_ID'])
    server = ForkServer(environment(domain, *sys.path), (__name__, *loaded))
    atexit.register(server.close)
    return server


class ForkedPopen(subprocess.Popen):
    """A `subprocess.Popen` whose Python is a fork by `forks`; another program is started as always.

    ``loaded``: see `forks`. ``nested``: whether in the fork `subprocess.Popen` is this class too,
    and `os.execvpe` of a Python runs in the same process. A program under `rrto run` gets the
    device as it does at the start of a Python.
    """

    def __init__(self, command: Any, *arguments: Any, loaded: Iterable[str] = (),
                 nested: bool = True, **options: Any) -> None:
        self._loaded, self._nested = tuple(loaded), nested
        super().__init__(command, *arguments, **options)

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any,
                       pass_fds: Any, cwd: Any, env: Any, startupinfo: Any, creationflags: Any,
                       shell: Any, *files: Any) -> None:
        if not _is_python(args):
            super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo,
                creationflags, shell, *files)
            return
        pipes = files[:6]
        own = zip(range(3), (pipes[0], pipes[3], pipes[5]), strict=True)
        there = {number: number if file == -1 else file for number, file in own}
        self.pid = _fork(_spare or forks(*self._loaded), list(map(str, args)),
                         {**there, **{number: number for number in pass_fds}},
                         os.environ if env is None else env, cwd, self._nested)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


class Forked(ForkedPopen):
    """`python -m command` as a fork by `forks`.

    ``command``: a module, ``module:function`` or the path of a program, and its arguments.
    ``errors``: whether ``stdout`` gets the errors too; otherwise they go where those of the tests
    go.
    """

    def __init__(self, loaded: Iterable[str], command: Iterable[str],
                 env: Mapping[str, str] | None = None, errors: bool = True,
                 cwd: Path | str | None = None) -> None:
        first, *more = command
        super().__init__(
            [sys.executable, *['-m'] * (not first.endswith('.py')), first, *more], loaded=loaded,
            nested=False, env=env, cwd=cwd, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT if errors else None)


def forked_subprocess(*loaded: str) -> Any:
    """Return what takes the place of `subprocess` in a module that starts `python -m ...`."""
    def start(command: list[str], **_: Any) -> Forked:
        return Forked(loaded, command[2:], errors=False)
    return SimpleNamespace(**{**vars(subprocess), 'Popen': start})


def forked_on_link(*loaded: str) -> Callable[..., Any]:
    """Return a function in place of `fleet_ros.own_gpu.start_process`; it forks the process."""
    def start(module: str, descriptor: int, device: str, environment: dict[str, str]) -> Any:
        return ForkedPopen(
            [sys.executable, '-m', module, str(descriptor), device, str(os.getpid())],
            loaded=loaded, nested=False, pass_fds=[descriptor], env=environment,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return start


SPARE = 'spare'  # name of the process that forks for another fork
_spare: Any = None  # in a fork, the `ForkServer` for its own forks


class _Exec(BaseException):
    """Leaves what runs in a fork; its arguments are the command that is to run in its place."""


def _is_python(command: Any) -> bool:
    return Path(command[0]).name.startswith('python') \
        and (command[1] in ('-c', '-m') or str(command[1]).endswith('.py'))


def _fork(server: Any, command: list[str], files: dict[int, int], env: Mapping[str, str],
          cwd: Path | str | None, nested: bool) -> int:
    """Fork `python ...` with open files, their numbers there and here; return the process id."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        socket.send_fds(ours, [b'.'], list(files.values()))
        numbers = ','.join(map(str, files))
        pid: int = server.start([f'{__name__}:_as_main', numbers, str(cwd or os.getcwd()),
                                 SPARE if nested else '', *command], theirs, env).pid
    return pid


def _as_main() -> None:
    """Run `python ...` in a fork; the socket by which its files come has arrived as its output."""
    _, numbers, folder, nested, *command = sys.argv
    Path('/proc/self/comm').write_text('python')   # `SPARE`, if that has forked it
    targets = list(map(int, numbers.split(',')))
    with socket.socket(fileno=os.dup(1)) as link:
        _, files, *_ = socket.recv_fds(link, 1, len(targets))
    above = [fcntl.fcntl(file, fcntl.F_DUPFD, max(targets) + 1) for file in files]
    for file in files:
        os.close(file)
    for file, target in zip(above, targets, strict=True):
        os.dup2(file, target)
        os.close(file)
    os.chdir(folder)
    if os.environ.get('PYTHONFAULTHANDLER'):
        faulthandler.enable(2)
    if nested:
        _prepare_nested()
    _name_streams()
    while command:
        command = _run_or_replaced(command)


def _run_or_replaced(command: list[str]) -> list[str]:
    """Run `python ...`; return the command that it becomes, if any."""
    try:
        _run(command)
    except _Exec as other:
        return list(other.args)
    return []


def _name_streams() -> None:
    # the present ones are of other files
    sys.stdin = os.fdopen(0, closefd=False)
    for name, descriptor in (('stdout', 1), ('stderr', 2)):
        setattr(sys, name, os.fdopen(descriptor, 'w', buffering=1, errors='backslashreplace',
                                     closefd=False))


def _run(command: list[str]) -> None:
    """Run `python -m module`, `-m module:function`, `-c code` or `file`."""
    if os.environ.get('RRTO_SETTINGS'):   # what `sitecustomize` of rrto_bridge does
        from rrto_bridge.program import children, launcher
        children.install()
        sys.meta_path.insert(0, _Again(sys.modules.pop('torch'), launcher.install))
    option, *sys.argv = command[1:]
    if option == '-c':
        code, sys.argv[0] = sys.argv[0], option
        sys.path.insert(0, '')
        main = sys.modules['__main__'] = ModuleType('__main__')
        exec(compile(code, '<string>', 'exec'), vars(main))
    elif option == '-m':
        name, _, function = sys.argv[0].partition(':')
        if function:
            sys.exit(getattr(importlib.import_module(name), function)())
        sys.path.insert(0, '')
        sys.modules.pop(name, None)   # `python -m` loads it as the main one
        runpy.run_module(name, run_name='__main__', alter_sys=True)
    else:
        path = Path(option).absolute()      # as `__file__` of `python name`
        sys.argv.insert(0, str(path))
        sys.path.insert(0, str(path.parent))
        runpy.run_path(str(path), run_name='__main__')


class _Again(MetaPathFinder, Loader):
    """Finds a module that is loaded but hidden, and then calls a function, at its next import."""

    def __init__(self, module: ModuleType, then: Callable[[], None]) -> None:
        self._module, self._spec, self._then = module, module.__spec__, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._module.__name__:
            return None
        sys.meta_path.remove(self)
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        self._then()


def _prepare_nested() -> None:
    """Let this fork, which has no thread yet, fork what it starts."""
    global _spare
    from rog_cli.launching import fork_server

    class Spare(fork_server.ForkServer):
        def __init__(self) -> None:
            self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._link.settimeout(LIMIT)
            if pid := os.fork():
                theirs.close()
                self._process = fork_server.Child(pid)  # type: ignore[assignment]
                return
            self._link.close()
            Path('/proc/self/comm').write_text(SPARE)
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(nowhere, descriptor)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            try:
                program = fork_server._serve(theirs)
            except ConnectionError:
                program = None
            if program is None:
                os._exit(0)
            sys.exit(program())

    _spare = None
    _spare = Spare()
    atexit.register(_spare.close)
    subprocess.Popen = ForkedPopen  # type: ignore[misc, assignment]
    execute = os.execvpe

    def run_here(file: str, command: list[str], env: dict[str, str]) -> None:
        # `rrto run` without a named server has used ROS to find one; another use would fail.
        if not _is_python(command) or '--server' not in sys.argv:
            execute(file, command, env)
        os.environ.clear()
        os.environ.update(env)
        sys.path[:0] = [path for path in env.get('PYTHONPATH', '').split(os.pathsep)
                        if path and path not in sys.path]
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise _Exec(*command)

    os.execvpe = run_here  # type: ignore[assignment]


def fewer(number: int) -> int:
    """Return ``number``; under `make test` return a tenth of it, but at least 1."""
    from hypothesis import settings  # imported here, because not all tests need it
    return max(1, number * settings().max_examples // 100)


def examples(number: int) -> Any:
    """Return a decorator: hypothesis tries ``number`` examples; in `make test` a tenth of them."""
    from hypothesis import settings
    return settings(max_examples=fewer(number))


def mostly_long(values: Iterable[Any], *quick: Any) -> list[Any]:
    """Return ``values`` as parameters of a test; `make test` uses only the values in ``quick``."""
    import pytest  # imported here, because benches do not need it
    assert set(quick) <= set(values := [*values]), 'a quick one is not among the values'
    return [value if value in quick else pytest.param(
        *value if isinstance(value, tuple) else [value], marks=pytest.mark.long)
        for value in values]


def eventually(condition: Callable[[], Any], what: Callable[[], str] = lambda: 'the condition',
               step: Callable[[], Any] = lambda: time.sleep(0.02)) -> None:
    """Call ``step`` until the condition holds; after `LIMIT` s, fail and name the condition."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, f'did not happen: {what()}'
        step()


class Lines:
    """A process and its lines of output; a test can wait for a line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._readers = [threading.Thread(target=self._read, args=(stream,), daemon=True)
                         for stream in (process.stdout, process.stderr) if stream]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()

    def lines(self) -> list[str]:
        """Return the lines of stdout and stderr that have arrived so far."""
        with self._changed:
            return list(self._lines)

    def wait(self, pattern: str) -> str:
        """Return the first line that matches ``pattern``; fail if none comes within `LIMIT` s."""
        def found() -> str:
            return next((line for line in self._lines if re.search(pattern, line)), '')
        with self._changed:
            assert self._changed.wait_for(found, LIMIT), f'{pattern!r} not in {self._lines[-20:]}'
            return found()

    def ended(self) -> tuple[int, str]:
        """Wait until the process ends; return its exit code and its whole output."""
        code = self.process.wait(LIMIT)
        for reader in self._readers:
            reader.join(LIMIT)
        return code, ''.join(self.lines())

    def interrupt(self) -> tuple[int, str]:
        """End the process and its group, as Ctrl+C does; return what `ended` returns."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.ended()
