"""Prints docs/reference/messages.md: all messages and services, taken from their definitions.

python tools/messages.py > docs/reference/messages.md
"""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
HEAD = '''\
# Messages and services

Made by `make reference` from the definitions in `ros2_ws/src/*_msgs`. Units stand in the texts;
where none does, a number has none. Headers carry the time of the sender's clock.
'''


def definition(path: Path) -> str:
    """Return the section of one definition: heading, description and fields."""
    above, _, below = path.read_text().partition('\n\n')
    text = ' '.join(line.removeprefix('#').strip() for line in above.splitlines())
    # Put a name in angle brackets into backticks; otherwise Markdown would read it as HTML.
    text = re.sub(r'(?<!`)(\S*<\w+>[\w/]*)', r'`\1`', text)
    return f'### {path.parent.parent.name}/{path.stem}\n\n{text}\n\n```\n{below.strip()}\n```\n'


def page() -> str:
    """Return the text of docs/reference/messages.md."""
    parts = [HEAD]
    for package in sorted((ROOT / 'ros2_ws' / 'src').glob('*_msgs')):
        parts.append(f'## {package.name}\n')
        parts += [definition(path) for kind in ('msg', 'srv')
                  for path in sorted(package.glob(f'{kind}/*.{kind}'))]
    return '\n'.join(parts)


if __name__ == '__main__':
    print(page(), end='')
