"""Lists what `make setup` needs and this machine lacks. It runs before any download."""

import importlib.util
import os
import platform
import shutil
import sys
import sysconfig

from ros import is_sourced

# bytes of free disk space that `make setup` needs; .venv alone takes 6 GB, because PyPI's PyTorch
# contains CUDA
ROOM = 7_000_000_000


def lacking():
    """Yield one line for each thing that this machine lacks."""
    version = '.'.join(map(str, sys.version_info[:2]))
    other = 'Set PYTHON=, for example PYTHON=python3.12'
    if sys.version_info < (3, 10):  # noqa: UP036 (whatever python3 is here runs this)
        yield f'Python 3.10 or newer; this is {version}. {other}'
    elif importlib.util.find_spec('ensurepip') is None:
        yield f'venv for Python {version}: sudo apt install python{version}-venv'
    if not os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')):
        yield f'the headers of Python {version}: sudo apt install python{version}-dev'
    if not (shutil.which(os.environ.get('CXX') or 'c++') and shutil.which('cc')):
        yield 'a compiler for C++, which builds the messages: sudo apt install g++'
    if is_sourced():
        if importlib.util.find_spec('rclpy') is None:
            yield (f'the Python of the ROS 2 that is sourced; {sys.executable} cannot import its '
                   f'rclpy. {other}')
    else:
        machine = f'{platform.system()} on {platform.machine()}'
        if machine != 'Linux on x86_64':
            yield (f'ROS 2, sourced, since PyPI has none for {machine}: from apt, RoboStack or an '
                   'image (docs/start/install.md)')
        elif sys.version_info >= (3, 15):
            yield f'Python 3.10 to 3.14, for which PyPI has ROS 2; this is {version}. {other}'
    if shutil.disk_usage('.').free < ROOM:
        yield f'{ROOM / 1e9:.0f} GB on this disk; {shutil.disk_usage(".").free / 1e9:.1f} are free'


if __name__ == '__main__':
    found = list(lacking())
    if found:
        sys.exit('make setup needs\n' + ''.join(f'- {line}\n' for line in found)
                 + 'Nothing was downloaded.')
