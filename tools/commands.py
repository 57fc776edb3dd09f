"""Prints docs/reference/commands.md: all commands and arguments, taken from their parsers.

python tools/commands.py > docs/reference/commands.md
"""

import argparse
from collections.abc import Iterator

from lopinfer_node.cli.main import make_parser as lopinfer
from rog_cli.fleet_main import make_parser as fleet
from rog_cli.main import make_parser as rog
from rrto_bridge.cli.main import make_parser as rrto

HEAD = '''\
# Commands

Made by `make reference` from the parsers of the commands. `--help` after any of them says the same.
'''


def leaves(parser: argparse.ArgumentParser, text: str
           ) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yield (parser, description) for every parser that has no verbs.

    :param text: description of ``parser``.
    """
    below = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not below:
        yield parser, text
    for action in below:
        helps = {choice.dest: choice.help for choice in action._choices_actions}
        for name, inner in action.choices.items():
            yield from leaves(inner, helps.get(name) or '')


def row(action: argparse.Action) -> str:
    """Return the table row of one argument."""
    value = '' if action.nargs == 0 else action.metavar or (
        '{' + ','.join(map(str, action.choices)) + '}' if action.choices
        else action.dest.upper() if action.option_strings else action.dest)
    name = ' '.join(filter(None, [', '.join(action.option_strings),
                                  value if isinstance(value, str) else ' '.join(value)]))
    text = (action.help or '') % vars(action)
    if 'default' not in text and action.option_strings and action.default not in (None, [], False):
        text += f' (default: {action.default})'
    return '| ' + ' | '.join(c.replace('|', '\\|') for c in (f'`{name}`', text)) + ' |'


def page() -> str:
    """Return the text of docs/reference/commands.md."""
    lines = [HEAD]
    for command in (rog(), fleet(), lopinfer(), rrto()):
        lines.append(f'## {command.prog}\n\n{command.description}\n')
        for parser, text in leaves(command, ''):
            lines.append(f'### {parser.prog}\n\n{text[:1].upper()}{text[1:].rstrip(".")}.\n')
            rows = [row(a) for a in parser._actions
                    if not isinstance(a, argparse._HelpAction) and a.help != argparse.SUPPRESS]
            if rows:
                lines.append('| argument | what it is |\n|---|---|\n' + '\n'.join(rows) + '\n')
    return '\n'.join(lines)


if __name__ == '__main__':
    print(page(), end='')
