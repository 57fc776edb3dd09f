"""Runs the tests that need no ROS 2 on arm64, which qemu emulates: no board is needed.

    arm64.py [--root FOLDER] [PACKAGE ...] [-- PYTEST_OPTION ...]

The first run makes an arm64 Debian in FOLDER, outside the repository: some 10 minutes and 2 GB. The
tests then see this checkout, read only, at /suite. They run in their short form; one after the
other they take hours, since everything is 10 to 30 times as slow as it is here. Needs root, and
apt install mmdebstrap qemu-user-static; pip install uv.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
ROOT = Path('/var/lib/rog-arm64')
NEEDED = ('mmdebstrap', 'qemu-aarch64-static', 'uv')
DEBIAN = ('python3', 'g++', 'iproute2')  # g++: for RRTO
PYTHON = '3.11'  # of Debian 12
WHEELS = 'aarch64-manylinux_2_28'
# The newest PyTorch whose wheel for arm64 needs no CUDA; JetPack 6 has 2.4 to 2.8, too.
PYTORCH = ('torch==2.8.0', 'torchvision==0.23.0')
# What has no place here: tools of development, a browser, CUDA, the solver of one comparison.
WITHOUT = ('torchvision', 'timm', 'ortools', 'nicegui', 'selenium', 'ruff', 'mypy', 'types-PyYAML',
           'hatchling', 'nvidia-cuda-nvrtc-cu12')
# Their tests need no ROS 2, or most of them do not.
PACKAGES = ('fleet_link', 'fleet_compute', 'rog_core', 'rog_methods_local', 'fleet_env',
            'rog_tasks', 'fleet_models', 'fleet_policy', 'lopinfer_node', 'rrto_bridge', 'rog_sim')
BINFMT = Path('/proc/sys/fs/binfmt_misc')
RULE = Path('/usr/lib/binfmt.d/qemu-aarch64.conf')
# In a mount namespace of its own, so that nothing stays mounted, however this ends.
INSIDE = '''set -e
mount -t proc proc "$ROOT/proc"
mount --rbind /dev "$ROOT/dev"
mount --bind "$SUITE" "$ROOT/suite"
mount -o remount,bind,ro "$ROOT/suite"
exec chroot "$ROOT" "$@"
'''


def run(root: Path, *command: str) -> int:
    """Run a command inside the root file system; return its exit code."""
    sources = [Path('/suite', folder.relative_to(REPOSITORY)) for folder in (
        REPOSITORY / 'testing', REPOSITORY / 'launch', *REPOSITORY.glob('ros2_ws/src/*/'))]
    variables = {
        'PATH': '/usr/bin:/usr/sbin:/bin:/sbin', 'HOME': '/root', 'LANG': 'C.UTF-8',
        'PYTHONPATH': ':'.join(map(str, [*sources, '/packages', '/site'])),
        'PYTHONPYCACHEPREFIX': '/var/cache/python', 'NUMBA_CACHE_DIR': '/var/cache/numba',
        'ROOT': str(root), 'SUITE': str(REPOSITORY.resolve())}
    return subprocess.run(['unshare', '--mount', '--propagation', 'private', 'sh', '-c', INSIDE,
                           'sh', *command], env=variables, check=False).returncode


def emulate() -> None:
    """Let this kernel run programs for arm64."""
    if not (BINFMT / 'register').exists():
        subprocess.run(['mount', '-t', 'binfmt_misc', 'binfmt_misc', str(BINFMT)], check=True)
    if not (BINFMT / 'qemu-aarch64').exists():
        (BINFMT / 'register').write_text(RULE.read_text())


def requirements() -> list[str]:
    """Return the lines of requirements.txt that the tests need there."""
    lines = (line.partition('#')[0].strip()
             for line in (REPOSITORY / 'requirements.txt').read_text().splitlines())
    return [line for line in lines if line and line.partition(';')[0].strip() not in WITHOUT]


def make(root: Path) -> None:
    """Make the root file system, with Python's packages, if it is not there."""
    if (root / 'ready').exists():
        return
    if not (root / 'debian').exists():
        print(f'an arm64 Debian in {root}', flush=True)
        shutil.rmtree(root, ignore_errors=True)
        subprocess.run(['mmdebstrap', '-q', '--architectures=arm64', '--variant=minbase',
                        f'--include={",".join(DEBIAN)}', 'bookworm', str(root)], check=True)
        (root / 'debian').touch()
    (root / 'suite').mkdir(exist_ok=True)
    shutil.copy('/etc/hosts', root / 'etc' / 'hosts')
    print('Python packages for arm64, from PyPI', flush=True)
    # uv runs here, not there: that takes seconds instead of half an hour
    subprocess.run(['uv', 'pip', 'install', '-q', '--no-config', '--only-binary', ':all:',
                    '--python-platform', WHEELS, '--python-version', PYTHON, '--target',
                    str(root / 'site'), *PYTORCH, *requirements()], check=True)
    (root / 'ready').touch()


def names_of_the_suite(root: Path, packages: list[Path]) -> None:
    """Write what pip would have written of the suite's packages: their entry points."""
    shutil.rmtree(root / 'packages', ignore_errors=True)
    (root / 'packages').mkdir()
    for package in packages:
        subprocess.run([sys.executable, 'setup.py', '-q', 'egg_info', '--egg-base',
                        str(root / 'packages')], cwd=package, check=True,
                       stderr=subprocess.DEVNULL)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--root', type=Path, default=ROOT, metavar='FOLDER')
    parser.add_argument('tests', nargs='*', metavar='PACKAGE',
                        help=f'a package or a path of tests (default: {" ".join(PACKAGES)})')
    ours = sys.argv[1:]
    more = ours[ours.index('--') + 1:] if '--' in ours else []
    options = parser.parse_args(ours[:len(ours) - len(more) - bool('--' in ours)])
    if os.geteuid() or (missing := [name for name in NEEDED if not shutil.which(name)]):
        parser.error('this must run as root' if os.geteuid() else
                     f'{" and ".join(missing)} must be there: apt install mmdebstrap '
                     'qemu-user-static; pip install uv')
    emulate()
    make(options.root)
    names_of_the_suite(options.root, sorted(p.parent for p in REPOSITORY.glob(
        'ros2_ws/src/*/setup.py')))
    failed = []
    for name in options.tests or PACKAGES:
        where = name if '/' in name else f'ros2_ws/src/{name}/test'
        print(f'== {name}', flush=True)
        if run(options.root, 'sh', '-c', 'cd /suite && exec "$@"', 'sh', 'python3', '-m', 'pytest',
               '-q', '-m', 'not long', '--hypothesis-profile=few', '-p', 'no:cacheprovider',
               '-p', 'without_ros', '--timeout=3600', *more, where):
            failed.append(name)
    print(f'failed: {", ".join(failed)}' if failed else 'nothing failed')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
