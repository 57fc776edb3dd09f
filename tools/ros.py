"""Installs ROS 2 into the Python environment that runs this file. `make setup` calls it.

    ros.py install DISTRIBUTION   install the wheels of ROS 2 and correct their paths
    ros.py build                  build the workspace into the environment with colcon
    ros.py sourced                succeed if a ROS 2 is sourced; the suite then uses that ROS 2

Afterwards the environment is used like /opt/ros/jazzy: `source .venv/setup.bash`.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parent.parent
PREFIX = Path(sys.prefix)
LIBRARIES = PREFIX / 'lib'
SITE = Path(sysconfig.get_path('purelib'))
INDEX = PREFIX / 'share' / 'ament_index' / 'resource_index' / 'packages'
# Folders of the machine on which the wheels were built; the wheels' CMake files name them.
THEIRS = re.compile(r'/opt/python/cp3\d+-cp3\d+/(include/python3\.\d+|'
                    r'lib/python3\.\d+/site-packages/numpy/_core/include)')


def is_sourced() -> bool:
    """Return whether the shell has sourced a ROS 2 that this file has not installed."""
    prefixes = filter(None, os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep))
    return any((Path(prefix) / 'share' / 'rclpy').is_dir()
               and not (Path(prefix) / 'pyvenv.cfg').exists() for prefix in prefixes)


def install(distribution: str) -> None:
    """Install the wheels that ros-DISTRIBUTION.txt lists."""
    pins = ROOT / f'ros-{distribution}.txt'
    if not pins.exists():
        known = ', '.join(sorted(path.stem[4:] for path in ROOT.glob('ros-*.txt')))
        sys.exit(f'ROS must be one of {known}, got {distribution}')
    subprocess.run([sys.executable, '-m', 'pip', 'install', '-q', '--no-deps', '-r', str(pins)],
                   check=True)
    # With this .pth file of the wheels, every Python would start a second time to set
    # LD_LIBRARY_PATH.
    (SITE / 'ros_wheels_bootstrapper.pth').unlink(missing_ok=True)
    set_run_paths()
    wrap_discovery_server()
    set_include_paths()


def set_run_paths() -> None:
    """Set each library's run path, so that libraries find each other without LD_LIBRARY_PATH."""
    bundled = sorted(SITE.glob('ros_*.libs'))
    packages = [SITE / entry.name for entry in INDEX.iterdir()]
    files = defaultdict(list)
    for folder in (LIBRARIES, *bundled, *packages):
        for path in folder.glob('*.so*'):
            if not path.is_symlink():
                files[folder].append(str(path))
    for folder, paths in files.items():
        where = ':'.join(f'$ORIGIN/{os.path.relpath(there, folder)}'
                         for there in (LIBRARIES, *bundled))
        subprocess.run([str(PREFIX / 'bin' / 'patchelf'), '--set-rpath', where, *paths], check=True)


def wrap_discovery_server() -> None:
    """Let Fast DDS's discovery server find its libraries.

    patchelf would spoil this program, so a script takes its place and starts it.
    """
    script = PREFIX / 'bin' / 'fast-discovery-server'
    program = max((PREFIX / 'bin').glob('fast-discovery-server-*'), default=None)
    if program is None:
        return
    where = ':'.join(map(str, (LIBRARIES, *sorted(SITE.glob('ros_*.libs')))))
    script.unlink(missing_ok=True)
    script.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={shlex.quote(where)} exec '
                      f'{shlex.quote(str(program))} "$@"\n')
    script.chmod(0o755)


def set_include_paths() -> None:
    """Replace the folders of the machine that built the wheels by the folders of this machine."""
    import numpy
    ours = {'include': sysconfig.get_path('include'), 'lib': numpy.get_include()}
    for path in PREFIX.glob('share/*/cmake/*.cmake'):
        text = path.read_text()
        new = THEIRS.sub(lambda found: ours[found[1].partition('/')[0]], text)
        if new != text:
            path.write_text(new)


def forget_removed_messages(base: Path) -> None:
    """Let a package of messages be built anew if one of its definitions is gone.

    CMake leaves what it has built of such a definition, and then no message of the package loads.
    """
    for package in (ROOT / 'ros2_ws' / 'src').glob('*_msgs'):
        built = base / package.name / 'rosidl_adapter' / package.name
        if any(not (package / file.relative_to(built)).with_suffix(
                {'msg': '.msg', 'srv': '.srv'}[file.parent.name]).exists()
               for file in built.glob('*/*.idl')):
            shutil.rmtree(base / package.name)
            shutil.rmtree(SITE / package.name, ignore_errors=True)


def build(*paths: str) -> None:
    """Build packages into the environment with colcon: those in ``paths``, or all of this suite.

    After a change in a Python file of this suite, no new build is needed.
    """
    places = paths or ('ros2_ws/src', 'launch', 'studies', '--symlink-install')
    environment = dict(os.environ)
    for name in ('AMENT_PREFIX_PATH', 'CMAKE_PREFIX_PATH'):
        others = [p for p in environment.get(name, '').split(os.pathsep) if p != str(PREFIX)]
        environment[name] = os.pathsep.join(filter(None, [str(PREFIX), *others]))
    environment['PATH'] = os.pathsep.join([str(PREFIX / 'bin'), environment['PATH']])
    base = PREFIX / 'build'
    base.mkdir(exist_ok=True)
    forget_removed_messages(base)
    with (base / 'colcon.log').open('w') as log:
        code = subprocess.run(
            ['colcon', '--log-base', str(base / 'log'), 'build', '--base-paths', *places,
             '--merge-install', '--install-base', str(PREFIX), '--build-base', str(base),
             '--event-handlers', 'console_cohesion+',
             '--cmake-args', '-G', 'Ninja', '-DBUILD_TESTING=OFF', '-DCMAKE_BUILD_TYPE=Release',
             f'-DPython3_EXECUTABLE={sys.executable}',
             '-DCMAKE_INSTALL_RPATH=$ORIGIN:$ORIGIN/../../..'],
            cwd=ROOT, env=environment, stdout=log, stderr=log, check=False).returncode
    if code:
        sys.exit(f'{(base / "colcon.log").read_text()}\ncolcon build failed; its log is '
                 f'{base / "colcon.log"}')


if __name__ == '__main__':
    verb, *arguments = sys.argv[1:]
    if verb == 'sourced':
        sys.exit(not is_sourced())
    {'install': install, 'build': build}[verb](*arguments)
