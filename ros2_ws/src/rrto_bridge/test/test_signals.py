"""Signals that a program receives while its device is on the server."""

import subprocess
import sys

from fleet_testing import LIMIT

PROGRAM = """
import signal, time
from rrto_bridge.program import signals

def released():
    signal.raise_signal(signal.SIGINT)
    print('released')

class Tensor:
    def __del__(self):
        released()

signals.install(lambda: False, Tensor.__del__.__code__)
try:
    tensor = Tensor()
    del tensor
    time.sleep(60)
except KeyboardInterrupt:
    print('interrupted')
"""


def test_ctrl_c_while_a_tensor_is_released_is_not_lost():
    ended = subprocess.run([sys.executable, '-c', PROGRAM], capture_output=True, text=True,
                           timeout=LIMIT, check=False)
    assert (ended.stdout, ended.stderr) == ('released\ninterrupted\n', '')
