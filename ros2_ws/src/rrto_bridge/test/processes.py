"""A server and programs as processes in a DDS domain of the test's own."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

PROGRAMS = Path(__file__).with_name('programs')
LIMIT = 300   # seconds after which a process is stuck, even on a machine that is busy


class Domain:
    """Environment of the processes; ends what is left. Its number is this process's own."""

    def __init__(self, other=0):
        number = 100 + (2 * os.getpid() + other) % 130
        self.env = {**os.environ, 'ROS_DOMAIN_ID': str(number), 'OMP_NUM_THREADS': '1',
                    'PYTHONDONTWRITEBYTECODE': '1', 'PYTHONFAULTHANDLER': '1'}
        self.processes = []

    def start(self, *arguments, **options):
        process = subprocess.Popen([sys.executable, '-m', *arguments], env=self.env, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self.processes.append(process)
        return process

    def server(self, name, **parameters):
        settings = [f'{k}:={v}' for k, v in {'name': name, **parameters}.items()]
        process = self.start('rrto_bridge.nodes', '--ros-args',
                             *(part for s in settings for part in ('-p', s)))
        return Lines(process)

    def rrto(self, *arguments):
        return self.start('rrto_bridge.cli.main', *arguments)

    def run(self, *arguments):
        """Exit code, output and errors of `rrto run` with these arguments."""
        process = self.rrto('run', *arguments)
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # says where it is stuck
            out, err = process.communicate()
        return process.returncode, out, err

    def plain(self, *arguments):
        """Output of a program without rrto."""
        done = subprocess.run([sys.executable, *arguments], env=self.env, text=True, check=True,
                              capture_output=True, timeout=LIMIT)
        return done.stdout

    def close(self):
        left = [process for process in self.processes if process.poll() is None]
        for process in left:
            process.terminate()
        for process in left:
            process.communicate(timeout=LIMIT)


class Lines:
    """A process whose lines on stderr and stdout can be waited for."""

    def __init__(self, process):
        self.process = process
        self._changed = threading.Condition()
        self._lines = []
        for stream in (process.stdout, process.stderr):
            threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def _read(self, stream):
        for line in stream:
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()

    def lines(self):
        """The lines so far."""
        with self._changed:
            return list(self._lines)

    def wait(self, pattern):
        """The first line that matches; fails if none comes."""
        def found():
            return next((line for line in self._lines if re.search(pattern, line)), None)
        with self._changed:
            assert self._changed.wait_for(found, LIMIT), (
                f'{pattern!r} not in {self._lines[-20:]}')
            return found()
