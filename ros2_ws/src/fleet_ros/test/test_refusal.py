"""What a user's program is refused reads as text, and other errors keep their traceback."""

import subprocess
import sys

import pytest

PROGRAM = '''
from fleet_env.errors import SettingError
from fleet_ros.refusal import without_traceback

def refused():
    with without_traceback('rog'):
        raise SettingError('this must hold.\\nDo that.')

try:
    refused()
except SettingError:
    print('caught')
'''


@pytest.mark.parametrize(('ending', 'said'), [
    ('refused()', 'rog: this must hold.\nDo that.\n'), ('1 / 0', 'ZeroDivisionError')])
def test_a_refusal_that_nobody_catches_is_text(ending, said):
    done = subprocess.run([sys.executable, '-c', PROGRAM + ending], capture_output=True, text=True,
                          check=False)
    assert (done.returncode, done.stdout) == (1, 'caught\n')
    assert done.stderr == said if said.endswith('\n') else 'Traceback' in done.stderr
