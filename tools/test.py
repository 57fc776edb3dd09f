"""The tests: `make test`, without the long ones, or `make test-all`, everything and with colcon.

The last line is `N passed, N failed[, N skipped]`; the exit code is 0 only if nothing failed.
"""

import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent
REPORTS = ROOT / 'build'
BASES = ['--base-paths', 'ros2_ws/src', 'launch', 'studies']
SHORT = ['-m', 'not long', '--hypothesis-profile=few']
# One Python each, side by side: to start it and import PyTorch takes as long as many tests. RRTO
# replaces PyTorch's `cuda`, so it is alone. They take about equally long; the last has the rest.
GROUPS = {'core': ['rog_core'], 'sim': ['rog_sim', 'rog_cli', 'rog_view'],
          'lopinfer': ['lopinfer_node'], 'rrto': ['rrto_bridge'], 'rest': []}


def folders() -> dict[str, list[Path]]:
    """The folders of tests of each group."""
    every = sorted([*ROOT.glob('*/test'), *ROOT.glob('ros2_ws/src/*/test'), ROOT / 'testing'])
    found = {name: [f for f in every if f.parent.name in packages]
             for name, packages in GROUPS.items()}
    found['rest'] = [f for f in every if not any(f in there for there in found.values())]
    return found


def start(name: str, where: list[Path], *options: str) -> subprocess.Popen:
    """A pytest that leaves its report in `build`."""
    report = REPORTS / name / 'pytest.xml'
    report.parent.mkdir(parents=True, exist_ok=True)
    report.unlink(missing_ok=True)
    return subprocess.Popen([sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider',
                             f'--junitxml={report}', *options, *map(str, where)],
                            cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(running: dict[str, subprocess.Popen]) -> bool:
    """Wait for all and print what they said; whether they ended as they should."""
    for name, process in running.items():
        print(f'{name}:\n{process.communicate()[0]}', end='', flush=True)
    return all(process.returncode == 0 for process in running.values())


def counts(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of a JUnit file."""
    suites = list(ElementTree.parse(report).getroot().iter('testsuite'))
    total, failed, skipped = (sum(int(s.get(key) or 0) for s in suites for key in keys)
                              for keys in (('tests',), ('failures', 'errors'), ('skipped',)))
    return total - failed - skipped, failed, skipped


def conclude(names: list[str], fine: bool) -> int:
    """Add up the reports; the exit code."""
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


def colcon(*arguments: str) -> bool:
    return subprocess.run(['colcon', '--log-level', 'error', *arguments], cwd=ROOT,
                          check=False).returncode == 0


def short() -> int:
    """The tests of all packages but the long ones, as they lie here."""
    fine = finish({name: start(name, where, *SHORT) for name, where in folders().items()})
    return conclude(list(GROUPS), fine)


def everything() -> int:
    """Build and test every package that this machine can build, then the rest."""
    skip: list[str] = []
    if find_spec('rosidl_cmake') is None and 'AMENT_PREFIX_PATH' not in os.environ:
        messages = sorted(p.parent.name for p in ROOT.glob('ros2_ws/src/*/CMakeLists.txt'))
        print(f'{", ".join(messages)} need rosidl and are left out: no ROS 2 is sourced. Their '
              'definitions are read and tested by embedded/.')
        skip = ['--packages-ignore', *messages]
    for old in REPORTS.glob('*/pytest.xml'):
        old.unlink()
    fine = colcon('build', *BASES, *skip, '--executor', 'sequential')
    beside = {name: start(name, [where]) for name, where in
              {'embedded': ROOT / 'embedded' / 'test', 'testing': ROOT / 'testing'}.items()}
    if fine:
        # Some at a time: most tests wait for something, and no outcome depends on how long.
        fine = colcon('test', *BASES, *skip, '--parallel-workers', '2', '--event-handlers',
                      'console_cohesion+', 'console_start_end+', '--python-testing', 'pytest',
                      '--return-code-on-test-failure')
    fine = finish(beside) and fine
    packages = [p.parent.name for p in ROOT.glob('ros2_ws/src/*/setup.py')]
    packages += ['rog_bringup', 'rog_studies']
    return conclude([*sorted(packages), *beside], fine)


if __name__ == '__main__':
    # Started in the background of a script, it would hand on that SIGINT is ignored, and tests of
    # Ctrl+C would fail.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(everything() if '--all' in sys.argv[1:] else short())
