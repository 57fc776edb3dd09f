"""Makes a release: sets the version of all packages and dates CHANGELOG.md.

python tools/release.py 0.6.0               # dated today
python tools/release.py 0.6.0 2026-12-24    # dated otherwise

It commits nothing; its last line says how to commit and tag.
"""

import argparse
import datetime
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Where a version stands, by the end of a file's name. None of these files has a second match.
PATTERNS = {'pyproject.toml': re.compile(r'^(version = ")(.+)(")$', re.M),
            'setup.py': re.compile(r"^( *version=')(.+)(',)$", re.M),
            'package.xml': re.compile(r'^( *<version>)(.+)(</version>)$', re.M)}
UNRELEASED = '## Unreleased\n'
RELEASE = re.compile(r'^## (\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)$', re.M)


class ReleaseError(ValueError):
    """A release that cannot be made."""


def versioned(root: Path) -> dict[Path, str]:
    """Return the version in each file of the checkout ``root`` that has one."""
    found = {}
    for path in [root / 'pyproject.toml', *(
            path for name in ('setup.py', 'package.xml')
            for place in ('*', 'ros2_ws/src/*') for path in sorted(root.glob(f'{place}/{name}')))]:
        match = PATTERNS[path.name].search(path.read_text())
        if match is None:
            raise ReleaseError(f'{path} must have a version, as /{PATTERNS[path.name].pattern}/')
        found[path] = match[2]
    return found


def order(version: str) -> tuple[int, ...]:
    """Return a key by which versions are ordered."""
    if not re.fullmatch(r'\d+\.\d+\.\d+', version):
        raise ReleaseError(f'a version must be three numbers, as 0.6.0, got {version!r}')
    return tuple(map(int, version.split('.')))


def release(root: Path, version: str, date: datetime.date) -> None:
    """Set ``version`` in all files of the checkout ``root``, and give it what is unreleased.

    :raises ReleaseError: the version is not newer than that of any package, the date is earlier
        than that of the last release, or nothing is unreleased. Nothing is written then.
    """
    files = versioned(root)
    newest = max(files.values(), key=order)
    if order(version) <= order(newest):
        raise ReleaseError(f'a release must be newer than {newest}, got {version}')
    log = root / 'CHANGELOG.md'
    text = log.read_text()
    before, heading, after = text.partition(UNRELEASED)
    last = RELEASE.search(after)
    if not heading or last is None:
        raise ReleaseError(f'{log} must have a section {UNRELEASED.strip()!r} before one like '
                           '"## 0.5.0 - 2026-11-29"')
    if not after[:last.start()].strip():
        raise ReleaseError(f'nothing is unreleased: {log} must say below {UNRELEASED.strip()!r} '
                           'what users notice')
    if str(date) < last[2]:
        raise ReleaseError(f'a release must not be older than {last[1]} of {last[2]}, got {date}')
    for path in files:
        path.write_text(PATTERNS[path.name].sub(rf'\g<1>{version}\g<3>', path.read_text()))
    log.write_text(f'{before}{heading}\n## {version} - {date}\n{after}')


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('version', help='three numbers, such as 0.6.0')
    parser.add_argument('date', nargs='?', type=datetime.date.fromisoformat,
                        default=datetime.date.today(), help='YYYY-MM-DD (default: today)')
    options = parser.parse_args()
    try:
        release(ROOT, options.version, options.date)
    except ReleaseError as error:
        print(f'release: {error}', file=sys.stderr)
        return 1
    tag = f'v{options.version}'
    print(f'{len(versioned(ROOT))} files and CHANGELOG.md say {options.version}. When `make setup '
          'lint test-all` has passed:')
    print(f'git commit -am "Version {options.version}" && git tag -a {tag} -m {tag} && '
          f'git push origin HEAD {tag}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
