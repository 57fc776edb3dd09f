"""Says what `make setup` needs and this machine lacks; run before anything is downloaded."""

import importlib.util
import os
import platform
import shutil
import sys

ROOM = 7_000_000_000  # B; the PyTorch of PyPI brings CUDA, and with it .venv has 5.8 GB


def lacking():
    """Yield one line for each thing."""
    version = '.'.join(map(str, sys.version_info[:2]))
    if sys.version_info < (3, 10):  # noqa: UP036 (whatever python3 is here runs this)
        yield f'Python 3.10 or newer; this is {version}. Set PYTHON=, for example PYTHON=python3.12'
    elif importlib.util.find_spec('ensurepip') is None:
        yield f'venv for Python {version}: sudo apt install python{version}-venv'
    if sys.version_info >= (3, 14):
        yield (f'Python 3.10 to 3.13; this is {version}, on which cyclonedds 11.0.1 cannot be '
               'imported. Set PYTHON=, for example PYTHON=python3.13, or use ROS 2')
    machine = f'{platform.system()} on {platform.machine()}'
    if machine != 'Linux on x86_64' and 'CYCLONEDDS_HOME' not in os.environ:
        yield (f'the Python package cyclonedds, which has no wheel for {machine}: use ROS 2, or '
               'build Cyclone DDS and set CYCLONEDDS_HOME (docs/install.md)')
    if shutil.disk_usage('.').free < ROOM:
        yield f'{ROOM / 1e9:.0f} GB on this disk; {shutil.disk_usage(".").free / 1e9:.1f} are free'


if __name__ == '__main__':
    found = list(lacking())
    if found:
        sys.exit('make setup needs\n' + ''.join(f'- {line}\n' for line in found)
                 + 'Nothing was downloaded.')
