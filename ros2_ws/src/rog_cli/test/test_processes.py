"""The processes of a fleet end, or are said not to have ended."""

import subprocess
import sys

from rog_cli.processes import kill


class Held:
    """A process that a device holds: not even SIGKILL ends it now."""

    def kill(self):
        pass

    def wait(self, timeout=None):
        assert timeout is not None, 'this would be for ever'
        raise subprocess.TimeoutExpired('held', timeout)


def test_nobody_waits_for_ever_for_a_process_that_was_killed():
    assert not kill(Held())


def test_a_process_that_was_killed_has_ended():
    process = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
    assert kill(process) and process.poll() == -9
