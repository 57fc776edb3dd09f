"""Runs the tests: `make test` without the long tests, `make test-all` all tests with colcon.

The last line is `N passed, N failed[, N skipped]`. The exit code is 0 only if nothing failed.
"""

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).parent.parent
REPORTS = Path(sys.prefix) / 'build'  # where `make setup` has built the workspace
BASES = ['--base-paths', 'ros2_ws/src', 'launch', 'studies']
SHORT = ['-m', 'not long', '--hypothesis-profile=few']
# Each group of packages is tested in its own Python process, and all groups run at the same time.
# There are fewer groups than packages, because many tests take less time than the start of a
# process with PyTorch. RRTO replaces PyTorch's `cuda`, so it has its own group. All groups take
# about the same time. `rest` contains all other tests, also all that fork the programs of whole
# fleets: the process that has loaded these (`fleet_testing.PROGRAMS`) is started once.
GROUPS = {'core': ['rog_core', 'rog_methods_local'],
          'sim': ['rog_sim', 'rog_view', 'fleet_emulation', 'rog_tasks', 'studies'],
          'lopinfer': ['lopinfer_node', 'fleet_policy'], 'rrto': ['rrto_bridge'], 'rest': []}
# Compiles rog_core's kernels into the cache on disk. In a fresh clone, processes that start at the
# same time would each compile all of them.
KERNELS = [sys.executable, '-c', 'from rog_core.warm_up import warm_up; warm_up()']
# Groups and packages whose tests do not use the kernels, so they do not wait for the compilation.
NO_KERNELS = ('rrto', 'lopinfer', 'rrto_bridge', 'lopinfer_node')
# The packages whose tests take longest. These tests begin first, so that none of them runs
# alone at the end.
LONGEST = ('rog_bringup', 'testing', 'rrto_bridge', 'rog_core', 'rog_studies', 'lopinfer_node',
           'rog_sim', 'fleet_emulation', 'rog_cli', 'fleet_policy')
# Number of packages that are tested at the same time. Four packages keep two cores busy, because
# most tests spend a part of their time waiting.
AT_ONCE = 4


def folders() -> dict[str, list[Path]]:
    """Return the test folders of each group."""
    every = sorted([*ROOT.glob('*/test'), *ROOT.glob('ros2_ws/src/*/test'), ROOT / 'testing'])
    found = {name: [f for f in every if f.parent.name in packages]
             for name, packages in GROUPS.items()}
    found['rest'] = [f for f in every if not any(f in there for there in found.values())]
    return found


def pytest(name: str, where: list[Path], *options: str) -> list[str]:
    """Return a pytest command that writes its report into `build`."""
    return [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider',
            f'--junitxml={REPORTS / name / "pytest.xml"}', *options, *map(str, where)]


def run(commands: dict[str, list[str]], at_once: int) -> bool:
    """Run commands, ``at_once`` at the same time, and print the output of each.

    Commands that use kernels begin when the kernels have been compiled. Return whether all commands
    ended with exit code 0.
    """
    commands = {'kernels': KERNELS, **commands}
    waiting, fine = list(commands), True
    running: dict[int, tuple[str, float, subprocess.Popen]] = {}
    while waiting or running:
        compiling = 'kernels' in [*waiting, *(name for name, _, _ in running.values())]
        ready = [n for n in waiting if n in ('kernels', *NO_KERNELS) or not compiling]
        for name in ready[:at_once - len(running)]:
            waiting.remove(name)
            (REPORTS / name).mkdir(parents=True, exist_ok=True)
            (REPORTS / name / 'pytest.xml').unlink(missing_ok=True)
            with (REPORTS / name / 'tests.log').open('w') as log:
                process = subprocess.Popen(commands[name], cwd=ROOT, stdout=log, stderr=log)
            running[process.pid] = name, time.monotonic(), process
        pid, status, used = os.wait4(-1, 0)
        name, began, process = running.pop(pid)
        process.returncode = os.waitstatus_to_exitcode(status)
        print(f'{name}: {time.monotonic() - began:.0f} s, of a processor '
              f'{used.ru_utime + used.ru_stime:.0f} s')
        print((REPORTS / name / 'tests.log').read_text(), end='', flush=True)
        fine = fine and process.returncode == 0
    return fine


def counts(report: Path) -> tuple[int, int, int]:
    """Return the numbers of passed, failed and skipped tests in a JUnit file."""
    suites = list(ElementTree.parse(report).getroot().iter('testsuite'))
    total, failed, skipped = (sum(int(s.get(key) or 0) for s in suites for key in keys)
                              for keys in (('tests',), ('failures', 'errors'), ('skipped',)))
    return total - failed - skipped, failed, skipped


def conclude(names: list[str], fine: bool) -> int:
    """Print the sum of the reports; return the exit code.

    ``fine``: whether all processes ended with exit code 0.
    """
    passed = failed = skipped = 0
    for name in names:
        report = REPORTS / name / 'pytest.xml'
        if not report.exists():
            print(f'{name}: no test report; it was not built, or its tests ended early')
            failed += 1
            continue
        result = counts(report)
        print(f'{name}: {result[0]} passed, {result[1]} failed, {result[2]} skipped')
        passed, failed, skipped = passed + result[0], failed + result[1], skipped + result[2]
    if not fine and not failed:
        print('something ended with an error after its tests')
    print(f'{passed} passed, {failed} failed, {skipped} skipped')
    return 0 if passed and fine and not failed else 1


def colcon(verb: str, *arguments: str, log: str = 'log') -> list[str]:
    """Return the command of a colcon verb.

    Commands that run at the same time need different log folders ``log``.
    """
    return ['colcon', '--log-level', 'error', '--log-base', log, verb, *BASES, '--merge-install',
            '--install-base', sys.prefix, '--build-base', str(REPORTS), *arguments]


def short() -> int:
    """Run the tests of all packages, except the long tests, from the source tree."""
    # The commands of ros2, which `make ros2-tools` installs, find packages by this variable.
    os.environ.setdefault('AMENT_PREFIX_PATH', sys.prefix)
    fine = run({name: pytest(name, where, *SHORT) for name, where in folders().items()},
               at_once=len(GROUPS))
    return conclude(list(GROUPS), fine)


def everything() -> int:
    """Test every package with colcon, and the folder `testing`.

    colcon tests the packages as `make setup` has built them. At most `AT_ONCE` processes
    run at the same time.
    """
    for old in REPORTS.glob('*/pytest.xml'):
        old.unlink()
    packages = [p.parent.name for p in ROOT.glob('ros2_ws/src/*/setup.py')]
    packages += ['rog_bringup', 'rog_studies']
    # One colcon process per package: a single process would test a package only after the packages
    # on which it depends.
    commands = {name: colcon(
        'test', '--packages-select', name, '--event-handlers', 'console_cohesion+',
        '--python-testing', 'pytest', '--return-code-on-test-failure', log=f'log/{name}')
        for name in sorted(packages)}
    commands['testing'] = pytest('testing', [ROOT / 'testing'])
    order = [*(name for name in LONGEST if name in commands), *sorted(commands.keys() - LONGEST)]
    fine = run({name: commands[name] for name in order}, AT_ONCE)
    return conclude([*sorted(packages), 'testing'], fine)


if __name__ == '__main__':
    # Hundreds of processes import our packages; without bytecode, each would compile them again.
    os.environ.pop('PYTHONDONTWRITEBYTECODE', None)
    # Let PyTorch's threads sleep while they wait for work. By default they spin, and so take the
    # cores from the processes of other tests.
    os.environ.setdefault('OMP_WAIT_POLICY', 'passive')
    sys.exit(everything() if '--all' in sys.argv[1:] else short())
