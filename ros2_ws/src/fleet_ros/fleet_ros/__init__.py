"""What every node of the suite shares."""

import glob
import os

from fleet_env.errors import SettingError

_MEMORY = '/dev/shm'


def _check_shared_memory() -> None:
    """Raise an error if loading rclpy would end this process by SIGBUS, without a word.

    ROS 2's tracing (LTTng) then maps two files in `_MEMORY`, one page each, which stay there. It
    does not check that there is room for them.
    """
    there = any(os.stat(file).st_blocks for file in
                glob.glob(f'{_MEMORY}/lttng-ust-wait-*-{os.getuid()}'))
    if there or not os.path.isdir(_MEMORY):
        return
    space = os.statvfs(_MEMORY)
    if space.f_bavail * space.f_frsize < 2 * os.sysconf('SC_PAGE_SIZE'):
        raise SettingError(f'{_MEMORY} is full, and ROS 2 needs {2 * os.sysconf("SC_PAGE_SIZE")} B '
                           'of this shared memory: remove files that no process uses (ls -l '
                           f'{_MEMORY}; fuser), or make it larger: sudo mount -o '
                           f'remount,size=1G {_MEMORY}; in a container: docker run --shm-size=1g')


_check_shared_memory()
