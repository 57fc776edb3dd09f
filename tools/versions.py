"""Tries RRTO and LOPInfer with several versions of PyTorch, each as robot and as server.

    versions.py [VERSION ...]
    versions.py --tests [VERSION ...] [--packages PACKAGE ...]

A version such as 2.8 gets an environment in .versions/, some 6 GB: its PyTorch from PyPI, all else
from the environment that runs this file, whose own PyTorch is one of the versions. For each pair of
versions this file runs the programs of rrto_bridge/test under `rrto run`, and LOPInfer with
ResNet-18, and compares their results with those of plain PyTorch on the robot. With --tests it runs
the tests of the packages that use PyTorch in each version instead. `make versions` calls it.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

from fleet_env.settings.fleet import ReachConfig
from fleet_ros.environment import dds_environment

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / 'testing'))
from fleet_testing import LIMIT, Lines, free_domain  # noqa: E402

PLACE = ROOT / '.versions'
PACKAGE = ROOT / 'ros2_ws' / 'src' / 'rrto_bridge'
HELPER = Path(__file__).with_name('versions_program.py')
# Maps a version to what pip installs for it; torchvision's version belongs to PyTorch's.
NEEDED = {'2.4': ('torch==2.4.1', 'torchvision==0.19.1'),
          '2.8': ('torch==2.8.0', 'torchvision==0.23.0'),
          '2.13': ('torch==2.13.0', 'torchvision==0.28.0'),
          '2.14': ('torch==2.14.1', 'torchvision==0.29.1'),
          '2.15': ('torch==2.15.0', 'torchvision==0.29.2')}
# Packages that use PyTorch; their tests run with --tests.
TESTED = ('rrto_bridge', 'lopinfer_node', 'fleet_compute', 'fleet_policy', 'rog_core',
          'rog_methods_local', 'rog_tasks', 'fleet_env', 'fleet_models', 'rog_sim', 'rog_ps',
          'rog_worker')
OWN = '.'.join(version('torch').split('.')[:2])
PROGRAMS = ('classify', 'segment', 'detect', 'encoder', 'mlp', 'two_models', 'batches', 'branches',
            'recurrent', 'loops', 'traced', 'changed')
HERE = re.compile(r'^rrto: (aten\.\S+) runs on this machine', re.MULTILINE)


def python_of(name: str) -> str:
    """Return the Python of a version's environment; make the environment if there is none."""
    if name == OWN:
        return sys.executable
    folder = PLACE / name
    python = folder / 'bin' / 'python'
    ready = folder / '.ready'
    if not ready.exists():
        print(f'making {folder}', flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        venv.create(folder, symlinks=True)
        site = Path(sysconfig.get_path('purelib', vars={'base': str(folder)}))
        (site / 'suite.pth').write_text(
            f'import site; site.addsitedir({sysconfig.get_path("purelib")!r})\n')
        subprocess.run([python, '-m', 'pip', 'install', '-q', '--no-warn-conflicts',
                        *NEEDED[name]], check=True)
        ready.touch()
    return str(python)


def environment_of(python: str) -> dict[str, str]:
    """Return the environment variables for processes of a version."""
    return {**os.environ, **dds_environment(ReachConfig(domain_id=free_domain())),
            'PATH': f'{Path(python).parent}{os.pathsep}{os.environ["PATH"]}',
            'AMENT_PREFIX_PATH': sys.prefix, 'OMP_NUM_THREADS': '1', 'CUDA_VISIBLE_DEVICES': ''}


def run(command: list[str], variables: dict[str, str]) -> str:
    """Run a command to its end and return what it printed as errors; raises RuntimeError."""
    done = subprocess.run(command, env=variables, cwd=PACKAGE, text=True, capture_output=True,
                          timeout=3 * LIMIT, check=False)
    if done.returncode:
        raise RuntimeError('\n'.join((done.stdout + done.stderr).splitlines()[-12:]))
    return done.stderr


def rrto(robot: str, server: str, folder: Path) -> str:
    """Run all programs of a robot's version on a server's; return what ran on the robot."""
    plain, offloaded = folder / f'{Path(robot).parents[1].name}.pt', folder / 'offloaded.pt'
    variables = {**environment_of(robot), 'CUDA_VISIBLE_DEVICES': '0'}
    if not plain.exists():
        run([robot, str(HELPER), 'run', str(plain), *PROGRAMS],
            {**variables, 'CUDA_VISIBLE_DEVICES': ''})
    process = subprocess.Popen([server, '-m', 'rrto_bridge.server.main', '--ros-args', '-p',
                                'name:=other', '-p', 'threads:=1', '-p', f'directory:={folder}'],
                               env=variables, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    try:
        Lines(process).wait('serving as')
        said = run([robot, '-m', 'rrto_bridge.cli.main', 'run', '--server', 'other', '--', robot,
                    str(HELPER), 'run', str(offloaded), *PROGRAMS], variables)
    finally:
        process.terminate()
        process.wait(LIMIT)
    run([robot, str(HELPER), 'compare', str(plain), str(offloaded)], variables)
    return ' '.join(HERE.findall(said))


def lopinfer(robot: str, server: str, folder: Path) -> str:
    """Share ResNet-18 of a robot's version with a server's."""
    run([robot, str(HELPER), 'lopinfer', server], environment_of(robot))
    return ''


def tests(robot: str, server: str, folder: Path, package: str) -> str:
    """Run the short tests of a package; return what they counted."""
    where, variables = ROOT / 'ros2_ws' / 'src' / package, environment_of(robot)
    del variables['CUDA_VISIBLE_DEVICES']  # which the programs of the tests would report
    done = subprocess.run([robot, '-m', 'pytest', '-q', '-m', 'not long', '-p', 'no:cacheprovider',
                           '--hypothesis-profile=few', 'test'], env=variables, cwd=where,
                          text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError('\n'.join(done.stdout.splitlines()[-30:]))
    return done.stdout.splitlines()[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--tests', action='store_true',
                        help='run the tests of the packages that use PyTorch in each version')
    parser.add_argument('--packages', nargs='+', default=TESTED, metavar='PACKAGE',
                        help=f'which, with --tests (default: {" ".join(TESTED)})')
    parser.add_argument('versions', nargs='*', metavar='VERSION', help=', '.join(NEEDED))
    options = parser.parse_args()
    names = options.versions or list(NEEDED)
    if unknown := set(names) - {*NEEDED, OWN}:
        parser.error(f'a version must be one of {", ".join(NEEDED)}, got {", ".join(unknown)}')
    pythons = {name: python_of(name) for name in names}
    tried: dict[str, Callable[[str, str, Path], str]] = {'rrto': rrto, 'lopinfer': lopinfer}
    if options.tests:
        tried = {package: partial(tests, package=package) for package in options.packages}
    pairs = [(one, other, what) for one in names for other in names for what in tried
             if one == other or not options.tests]
    failed = 0
    print('| robot | server | what | result |\n|---|---|---|---|')
    with tempfile.TemporaryDirectory() as folder:
        for one, other, what in pairs:
            try:
                result = tried[what](pythons[one], pythons[other], Path(folder)) or 'equal'
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                failed += 1
                result = f'failed\n{error}'
            print(f'| {one} | {other} | {what} | {result} |', flush=True)
    print(f'{len(pairs) - failed} passed, {failed} failed')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
