"""Starts a server and programs as processes, in a DDS domain that only the test uses."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from fleet_testing import LIMIT, SPARE, ForkedPopen, Lines, environment, free_domain

PROGRAMS = Path(__file__).with_name('programs')
# What servers, `rrto run` and its programs load.
LOADED = ('rrto_bridge.cli.main', 'rrto_bridge.server.main', 'rrto_bridge.server.node',
          'rrto_bridge.server.fork_server', 'rrto_bridge.client.local_server',
          'rrto_bridge.program.launcher', 'rrto_bridge.program.intercept',
          'rrto_bridge.client.replaying', 'rrto_bridge.client.shell')
FORKED = partial(ForkedPopen, loaded=LOADED)


class Domain:
    """Starts processes in one DDS domain.

    `close` ends the processes that still run after the test.

    :param forked: whether all are forks of a process that has loaded PyTorch: a tenth of the work.
    """

    def __init__(self, forked=False):
        self.popen = FORKED if forked else subprocess.Popen
        self.env = environment(free_domain(), *[Path(__file__).parent] * forked,
                               PYTHONFAULTHANDLER='1')
        self.processes = []
        self.folder = TemporaryDirectory()

    def start(self, *arguments):
        return self.start_file('-m', *arguments)

    def start_file(self, *arguments, stdin=subprocess.DEVNULL):
        process = self.popen([sys.executable, *arguments], env=self.env, text=True, stdin=stdin,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.processes.append(process)
        return process

    def server(self, name, **parameters):
        folder = f'{self.folder.name}/{len(self.processes)}'
        settings = [f'{k}:={v}' for k, v in {'name': name, 'directory': folder,
                                             **parameters}.items()]
        process = self.start('rrto_bridge.server.main', '--ros-args',
                             *(part for s in settings for part in ('-p', s)))
        return Lines(process)

    def rrto(self, *arguments):
        return self.start('rrto_bridge.cli.main', *arguments)

    def run(self, *arguments):
        """Run `rrto run` with these arguments; return the exit code, the output and the errors."""
        process = self.rrto('run', *arguments)
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # makes the process print its stack
            out, err = process.communicate()
        return process.returncode, out, err

    def plain(self, *arguments):
        """Run a program without rrto; return its output."""
        process = self.start_file(*arguments)
        out, err = process.communicate(timeout=LIMIT)
        assert not process.returncode, err
        return out

    def close(self):
        left = [process for process in self.processes if process.poll() is None]
        for process in left:
            process.terminate()
            process.send_signal(signal.SIGCONT)     # a stopped process ends only then
        for process in left:
            process.communicate(timeout=LIMIT)
        self.folder.cleanup()


def forked(*arguments):
    """Run `python` with these arguments as a fork; return its exit code, output and errors."""
    process = FORKED([sys.executable, *arguments], nested=False, text=True,
                     stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out, err


def children(pid):
    """Return the ids of a process's children, except what forks for it in tests."""
    found = Path(f'/proc/{pid}/task/{pid}/children').read_text().split()
    return [int(p) for p in found if Path(f'/proc/{p}/comm').read_text().strip() != SPARE]


def kill_all(pid):
    """Kill a process and all processes that it has started.

    First suspend all of them, so that no process can report the end of another process.
    """
    found, left = [], [pid]
    while left:
        os.kill(left[0], signal.SIGSTOP)
        found.append(left.pop(0))
        left += children(found[-1])
    for one in reversed(found):
        os.kill(one, signal.SIGKILL)
