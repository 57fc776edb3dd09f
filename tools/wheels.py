"""Builds the suite's wheels for machines without ROS 2 into dist/: `make wheels`.

There are two wheels. The wheel rog_suite is pure Python. The wheel rog_suite_msgs holds
the messages that were built in this environment. It fits only the Python and the ROS 2
of this environment, and requires the wheels of that ROS 2.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from packaging.tags import sys_tags

ROOT = Path(__file__).parent.parent
PREFIX = Path(sys.prefix)
SITE = Path(sysconfig.get_path('purelib'))
NAME = 'rog_suite_msgs'
# The wheels of ROS 2 that the nodes import; pip also installs everything that these require.
RUNS = ('ros-rclpy', 'ros-rmw-fastrtps-cpp', 'ros-diagnostic-msgs', 'ros-lifecycle-msgs',
        'ros-rcl-interfaces', 'ros-rosidl-generator-py', 'ros-sensor-msgs', 'ros-std-msgs',
        'ros-std-srvs', 'ros-trajectory-msgs')


def messages(folder: Path) -> None:
    """Build the wheel of the messages from the files that colcon has installed."""
    version = re.search(r'^version = "(.*)"$', (ROOT / 'pyproject.toml').read_text(), re.M)[1]
    tag = next(sys_tags())
    pins = (ROOT / f'ros-{distribution()}.txt').read_text()
    required = ''.join(f'Requires-Dist: {line}\n' for line in pins.splitlines()
                       if line.partition('==')[0] in RUNS)
    with tempfile.TemporaryDirectory() as name:
        root = Path(name) / f'{NAME}-{version}'
        information = root / f'{NAME}-{version}.dist-info'
        information.mkdir(parents=True)
        (information / 'METADATA').write_text(
            f'Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\n'
            'Summary: Messages of rog_suite, and the ROS 2 that they are built for\n'
            f'License: Apache-2.0\n{required}Requires-Dist: numpy\n')
        (information / 'WHEEL').write_text(
            f'Wheel-Version: 1.0\nGenerator: tools/wheels.py\nRoot-Is-Purelib: false\nTag: {tag}\n')
        for manifest in sorted(PREFIX.glob('build/*_msgs/*install_manifest.txt')):
            for path in map(Path, manifest.read_text().splitlines()):
                if path.suffix != '.pyc':
                    inside = (root / path.relative_to(SITE) if SITE in path.parents else
                              root / f'{root.name}.data' / 'data' / path.relative_to(PREFIX))
                    inside.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copy(path, inside)
        subprocess.run([sys.executable, '-m', 'wheel', 'pack', str(root), '-d', str(folder)],
                       check=True, stdout=subprocess.DEVNULL)


def distribution() -> str:
    """Return the name of the ROS 2 distribution whose wheels are in this environment."""
    from importlib.metadata import version
    for path in ROOT.glob('ros-*.txt'):
        if f'ros-rclpy=={version("ros-rclpy")}\n' in path.read_text():
            return path.stem.partition('-')[2]
    sys.exit('the messages are built for the ROS 2 of PyPI, and this environment has none: run '
             'make wheels where no ROS 2 is sourced')


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / 'dist')
    folder.mkdir(exist_ok=True)
    messages(folder)
    subprocess.run([sys.executable, '-m', 'hatchling', 'build', '-t', 'wheel', '-d', str(folder)],
                   cwd=ROOT, check=True, capture_output=True)
    print(*sorted(folder.glob('*.whl')), sep='\n')


if __name__ == '__main__':
    main()
