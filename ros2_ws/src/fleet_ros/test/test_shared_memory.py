"""A machine whose shared memory is full is told so; ROS 2 would end by SIGBUS, without a word."""

import shutil
import subprocess
import sys

import pytest

# With so many bytes of shared memory left, run a command.
ROOM = '''
mount -t tmpfs -o size=1m tmpfs /dev/shm && head -c $((1048576 - $1)) /dev/zero > /dev/shm/file
shift; exec "$@"
'''
PROGRAM = 'import fleet_ros.process, rclpy; rclpy.init(); print("started")'


def run(room):
    if shutil.which('unshare') is None \
            or subprocess.run(['unshare', '-rm', 'true'], capture_output=True).returncode:
        pytest.skip('needs unshare, and the right to use it')
    return subprocess.run(['unshare', '-rm', 'sh', '-c', ROOM, 'sh', str(room), sys.executable,
                           '-c', PROGRAM], text=True, capture_output=True)


@pytest.mark.parametrize('room', [0, 4096])
def test_full_shared_memory_is_said(room):
    done = run(room)
    assert done.returncode == 1 and '/dev/shm is full' in done.stderr.splitlines()[-1]


def test_two_pages_are_enough():
    assert run(8192).stdout == 'started\n'
