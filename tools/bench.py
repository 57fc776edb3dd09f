"""`make bench`: run the benches of all packages, write docs/results/benchmarks.md.

A bench prints one JSON object per line; the key `bench` holds its name. No code compares the
results with limits.
"""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def run(path: Path) -> list[dict]:
    print(f'{path.relative_to(ROOT)} ...', flush=True)
    env = {**os.environ, 'OMP_NUM_THREADS': '1'}
    done = subprocess.run([sys.executable, str(path)], cwd=ROOT, env=env, text=True, check=False,
                          stdout=subprocess.PIPE)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{')]
    print(*lines, sep='\n', flush=True)
    if done.returncode:
        print(f'{path} ended with exit code {done.returncode}', file=sys.stderr)
    return [json.loads(line) for line in lines]


def rows(prefix: str, value: object) -> list[str]:
    """Return the table rows of a result; the name of a row is ``prefix`` and the nested keys."""
    if isinstance(value, dict):
        return [row for key, item in value.items()
                for row in rows(f'{prefix} {key}'.strip().replace('_', ' '), item)]
    if isinstance(value, list):
        return [row for item in value for row in rows(f'{prefix} {item.pop("bytes", "")}', item)]
    shown = f'{value:.4g}' if isinstance(value, float) else str(value)
    return [f'| {prefix} | {shown} |']


def main() -> None:
    benches = sorted([*ROOT.glob('ros2_ws/src/*/bench/*.py'), *ROOT.glob('studies/bench/*.py')])
    benches = [b for b in benches if 'print(' in b.read_text()]
    page = ['# Benchmarks', '', 'Made by `make bench`; figures compare within one run.', '',
            f'Machine: {os.cpu_count()} cores, {platform.machine()}, {platform.system()}, '
            f'Python {platform.python_version()}.', '']
    for bench in benches:
        for result in run(bench):
            name = result.pop('bench', bench.stem)
            page += [f'## {name}', '', f'`{bench.relative_to(ROOT)}`', '', '| figure | value |',
                     '|---|---|', *rows('', result), '']
    (ROOT / 'docs/results/benchmarks.md').write_text('\n'.join(page))
    print('wrote docs/results/benchmarks.md')


if __name__ == '__main__':
    main()
