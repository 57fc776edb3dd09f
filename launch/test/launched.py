"""Starts a launch file as users do, and a node that watches the started nodes."""

import os
import signal
import subprocess
import sys
import time

import pytest
from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment
from fleet_testing import LIMIT, environment, free_domain
from fleet_under_test import HERE
from spun_nodes import SpunNodes

pytest.importorskip('launch_ros', reason='launch_ros is not installed: no ROS 2 is sourced')
pytest.importorskip('ros2launch', reason='ros2launch is not installed: no ROS 2 is sourced')

COMMAND = [sys.executable, '-c', 'import sys; from ros2cli.cli import main; sys.exit(main())',
           'launch', 'rog_bringup']


class Launched:
    """A launch in a DDS domain of its own; `code` and `output` are set when it has ended."""

    def __init__(self, folder, file, *arguments):
        self.domain = free_domain()
        self._process = subprocess.Popen(
            [*COMMAND, file, *arguments], cwd=folder, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            # A process that nohup has started ignores SIGHUP, and its child processes do the same.
            # Restore the default handler for the launch.
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
            env={**environment(self.domain, HERE), 'ROS_LOG_DIR': str(folder), 'HOME': str(folder)})

    def wait(self):
        """Wait until the launch ends by itself."""
        self.output = self._process.communicate(timeout=LIMIT)[0]
        self.code = self._process.returncode
        return self

    def __enter__(self):
        os.environ.update(dds_environment(ReachConfig()))  # the variables that `rog fleet env` sets
        self._nodes = SpunNodes(self.domain)
        self.node = self._nodes.node('observer')
        return self

    def spin_until(self, done):
        """Spin `node` until the condition holds.

        Return earlier if the launch ends or `LIMIT` seconds have passed.
        """
        end = time.monotonic() + LIMIT
        while not done() and self._process.poll() is None and time.monotonic() < end:
            self._nodes.spin()

    def signal(self, number):
        """Send a signal only to the process of the launcher."""
        self._process.send_signal(number)

    def __exit__(self, *_):
        """Send SIGINT to all processes of the launch, as Ctrl+C does, and wait for its end."""
        self._nodes.close()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        self.wait()


def check_clean_end(launch):
    assert launch.code == 0, launch.output
    assert 'process has died' not in launch.output and 'Traceback' not in launch.output


def check_refused(launch, message):
    launch.wait()
    assert launch.code == 1 and message in launch.output, launch.output
    assert 'process started' not in launch.output


def check_described(folder, file, *names):
    launch = Launched(folder, file, '--show-args').wait()
    assert launch.code == 0 and 'no description given' not in launch.output
    assert all(f"'{name}':" in launch.output for name in names)
