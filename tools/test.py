"""`make test`: colcon builds and tests every package that this machine can build, then the rest.

The last line is `N passed, N failed[, N skipped]`; the exit code is 0 only if nothing failed.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parent.parent
BASES = ['--base-paths', 'ros2_ws/src', 'launch', 'studies']


def colcon(*arguments: str) -> int:
    return subprocess.run(['colcon', '--log-level', 'error', *arguments], cwd=ROOT,
                          check=False).returncode


def counts(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of a JUnit file."""
    suites = list(ElementTree.parse(report).getroot().iter('testsuite'))
    total, failed, skipped = (sum(int(s.get(key) or 0) for s in suites for key in keys)
                              for keys in (('tests',), ('failures', 'errors'), ('skipped',)))
    return total - failed - skipped, failed, skipped


def main() -> int:
    # hypothesis then repeats the same examples everywhere, and asks for no speed.
    os.environ.setdefault('CI', 'true')
    skip: list[str] = []
    if find_spec('rosidl_cmake') is None and 'AMENT_PREFIX_PATH' not in os.environ:
        messages = sorted(p.parent.name for p in ROOT.glob('ros2_ws/src/*/CMakeLists.txt'))
        print(f'{", ".join(messages)} need rosidl and are left out: no ROS 2 is sourced. Their '
              'definitions are read and tested by embedded/.')
        skip = ['--packages-ignore', *messages]
    for old in (ROOT / 'build').glob('*/pytest.xml'):
        old.unlink()
    broken = colcon('build', *BASES, *skip, '--executor', 'sequential') != 0
    embedded = ROOT / 'build' / 'embedded' / 'pytest.xml'
    embedded.parent.mkdir(parents=True, exist_ok=True)
    beside = subprocess.Popen([sys.executable, '-m', 'pytest', '-q', 'embedded/test', '-p',
                               'no:cacheprovider', f'--junitxml={embedded}'], cwd=ROOT, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if not broken:
        # Some at a time: most tests wait for something, and no outcome depends on how long.
        colcon('test', *BASES, *skip, '--parallel-workers', '2', '--event-handlers',
               'console_cohesion+', 'console_start_end+', '--python-testing', 'pytest',
               '--return-code-on-test-failure')
    print(beside.communicate()[0], end='')
    packages = [p.parent.name for p in ROOT.glob('ros2_ws/src/*/setup.py')]
    packages += ['rog_bringup', 'rog_studies']
    passed = failed = skipped = 0
    for name in [*sorted(packages), 'embedded']:
        report = ROOT / 'build' / name / 'pytest.xml'
        if not report.exists():
            print(f'{name}: no test report; it was not built, or its tests ended early')
            failed += 1
            continue
        result = counts(report)
        print(f'{name}: {result[0]} passed, {result[1]} failed, {result[2]} skipped')
        passed, failed, skipped = passed + result[0], failed + result[1], skipped + result[2]
    print(f'{passed} passed, {failed} failed, {skipped} skipped')
    return 1 if failed or broken or not passed else 0


if __name__ == '__main__':
    sys.exit(main())
