"""Reads a YAML file: the values, the line of each key, and the text of what may be a name.

The lines are for error messages. YAML reads some texts as numbers, truth values or dates: 1_000,
0x10, on, 2024-01-01. Where a setting is a text, the text counts (`base.as_written`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from fleet_env.errors import FleetFileError, SettingError

Path = tuple[str | int, ...]
Lines = dict[Path, int]   # path of keys from the top of the file -> line; () is the top itself
Texts = dict[Path, str]   # path of keys -> text without quotes, where YAML reads it as another type

# Maximum number of values in a file. With YAML aliases (*name), a few lines can produce billions
# of values.
_MOST = 100_000


def parse(text: str, file: str, needs: str = '', error: type[SettingError] = FleetFileError
          ) -> tuple[Any, Lines, Texts]:
    """Return the content of a YAML file, the line of each key, and the texts of its other types.

    :param needs: text for the error message about an empty file: what the file must contain.
    :param error: class of the error to raise.
    :raises SettingError: the text is empty, or is not valid YAML, or a key occurs twice; the
        message names file and line.
    """
    return _Reader(file, error).read(text, needs)


def line_of(path: Path, lines: Lines) -> int:
    """Return the line of a key.

    If the line is not known, return the line of the nearest parent key whose line is known.
    If there is no such key, return 0.
    """
    return next((lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in lines), 0)


class _Reader:
    def __init__(self, file: str, error: type[SettingError]) -> None:
        self._file, self._error = file, error
        self._lines: Lines = {}
        self._texts: Texts = {}
        self._count = 0  # number of values read so far

    def read(self, text: str, needs: str) -> tuple[Any, Lines, Texts]:
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 0
            raise self._error(f'is not valid YAML: {error.problem}', self._file, line) from error
        except yaml.YAMLError as error:
            raise self._error(f'is not valid YAML: {error}', self._file) from error
        if root is None:
            raise self._error(f'is empty; {needs}', self._file)
        try:
            return self._plain(root, ()), self._lines, self._texts
        except RecursionError:
            raise self._error('is nested too deeply; does an alias (*name) contain itself?',
                              self._file) from None

    def _plain(self, node: yaml.Node, path: Path) -> Any:
        """Return the value of a YAML node, and record the line of each of its keys."""
        line = self._lines.setdefault(path, node.start_mark.line + 1)
        self._counted(line)
        if isinstance(node, yaml.MappingNode):
            entries: dict[str, Any] = {}
            for key_node, value_node, merged in self._pairs(node):
                key, at = str(key_node.value), key_node.start_mark.line + 1
                if key not in entries:
                    inner = (*path, key)
                    self._lines[inner] = at
                    entries[key] = self._plain(value_node, inner)
                elif not merged:
                    raise self._error(f'the key {key!r} occurs twice', self._file, at)
            return entries
        if isinstance(node, yaml.SequenceNode):
            return [self._plain(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            value = yaml.constructor.SafeConstructor().construct_object(node)
        # PyYAML raises errors of many classes if a value does not fit its tag, as in !!bool 7.
        except Exception as error:
            raise self._error(f'{node.value!r} cannot be read as {node.tag.rpartition(":")[2]}: '
                              f'{error}', self._file, line) from error
        if isinstance(node, yaml.ScalarNode) and not node.style and \
                not isinstance(value, str | None):
            self._texts[path] = node.value
        return value

    def _pairs(self, mapping: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node, bool]]:
        """Yield key, value, and whether the merge key `<<` gives them; own keys come first.

        Of a key that occurs several times, the first counts.
        """
        below: list[yaml.Node] = []
        for key, value in mapping.value:
            if key.tag != 'tag:yaml.org,2002:merge':
                yield key, value, False
            elif below:
                raise self._error("the key '<<' occurs twice; give it a list of mappings",
                                  self._file, key.start_mark.line + 1)
            else:
                below = value.value if isinstance(value, yaml.SequenceNode) else [value]
        for one in below:
            if not isinstance(one, yaml.MappingNode):
                raise self._error("'<<' must be a mapping (*name) or a list of mappings",
                                  self._file, one.start_mark.line + 1)
            for key, value, _ in self._pairs(one):
                self._counted(key.start_mark.line + 1)
                yield key, value, True

    def _counted(self, line: int) -> None:
        self._count += 1
        if self._count > _MOST:
            raise self._error(f'holds more than {_MOST} values; do aliases (*name) repeat a part '
                              'that repeats another?', self._file, line)
