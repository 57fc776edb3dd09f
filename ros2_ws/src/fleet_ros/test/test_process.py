"""A node as a process: what ends it has words and an exit code."""

import subprocess
import sys

from fleet_testing import LIMIT, environment, free_domain

PROGRAM = '''
import sys
from fleet_ros.process import run

def build():
    sys.exit(0)

sys.exit(run(build, None, [], ()))
'''


def test_sys_exit_in_loaded_code_is_an_error():
    done = subprocess.run([sys.executable, '-c', PROGRAM], env=environment(free_domain()),
                          capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 1 and 'error: the task or model called sys.exit(0)' in done.stderr
