"""Reads, finds, overrides and writes fleet files.

A fleet file is YAML; :mod:`fleet_env.settings.fleet` defines its keys. The reader guesses nothing:
an unknown key, a wrong type, a value out of range or a repeated robot name causes an error, which
names the line.
"""

import os
import sys
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from fleet_env.durable import write_text
from fleet_env.errors import FleetFileError, SettingError, TraceError, why_unread
from fleet_env.links.generate import PROFILES, generate
from fleet_env.links.trace import LinkTrace, read_trace
from fleet_env.settings.base import (
    Settings,
    Text,
    as_written,
    changed,
    checked,
    dotted,
    knobs,
    suggestion,
)
from fleet_env.settings.fleet import FleetConfig, LinkConfig, RobotConfig
from fleet_env.settings.yaml_lines import parse

PATH_VARIABLE = 'ROG_FLEET_PATH'
FLEET_FILE = 'fleet.yaml'   # name of the file with the settings of a run, in its folder
_FROM = '# made from '

_TAKEN = {'rog': 'the namespace of the parameter server',
          'server': "the name of the parameter server's process"}


def load_fleet(name_or_path: str | PathLike[str],
               search_path: Iterable[str | PathLike[str]] = ()) -> FleetConfig:
    """Load a fleet by name (``indoor``) or by path (anything with a slash or ending in .yaml).

    :param search_path: directories that hold ``<name>.yaml``; the directories in the environment
        variable ROG_FLEET_PATH come first.
    :raises FleetFileError: the file is invalid (the message names file, line and key), or no fleet
        has this name (the message lists the known names).
    """
    text = os.fspath(name_or_path)
    if text.endswith(('.yaml', '.yml')) or os.sep in text:
        return read_fleet(text)
    known = known_fleets(search_path)
    if text not in known:
        there = suggestion(text, known) if known else 'no searched directory contains a fleet'
        raise FleetFileError(f'no fleet is called {text!r}; {there} (a path ends in .yaml; '
                             f'{PATH_VARIABLE} adds directories)')
    return read_fleet(known[text])


def known_fleets(search_path: Iterable[str | PathLike[str]] = ()) -> dict[str, Path]:
    """Return name -> file of the fleets that :func:`load_fleet` finds by name."""
    directories = [part for part in os.environ.get(PATH_VARIABLE, '').split(os.pathsep) if part]
    found: dict[str, Path] = {}
    for directory in [*directories, *search_path]:
        for file in sorted(Path(directory).glob('*.yaml')):
            found.setdefault(file.stem, file)
    return found


def read_fleet(path: str | PathLike[str]) -> FleetConfig:
    """Read one fleet file; relative paths in it start at the file's directory."""
    file = os.fspath(path)
    try:
        text = Path(file).read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise FleetFileError(f'cannot be read: {why_unread(error, file)}', file) from error
    return _Document(file, *parse(text, file, 'it needs at least name and robots')).fleet()


def with_overrides(fleet: FleetConfig, overrides: Mapping[str, Any]) -> FleetConfig:
    """Return a copy of ``fleet`` with changed settings, checked like the settings of a file.

    :param overrides: dotted name -> value, for example
        ``{'training.sync': 'bsp', 'robots.robot2.pace': '0.5'}``. A robot is given by its name, not
        by its index. Numbers and booleans may be text.
    :raises FleetFileError: a setting is invalid; the message names it.
    """
    document = _Document(fleet.file, fleet.to_dict())
    for setting, value in overrides.items():
        document.override(setting, value)
    return document.fleet()


def with_robots(fleet: FleetConfig, count: int) -> FleetConfig:
    """Return ``fleet`` with exactly ``count`` robots: cut the list, or add robots with defaults."""
    names = {robot.name for robot in fleet.robots}
    more = (f'robot{number}' for number in range(1, count + len(names) + 1))
    robots = list(fleet.robots[:count])
    for index, name in zip(range(len(robots), count), (n for n in more if n not in names),
                           strict=False):
        robots.append(fleet.robot_defaults(index, name))
    return changed(fleet, robots=tuple(robots))


def dump_fleet(fleet: FleetConfig) -> str:
    """Return the text of a fleet file that loads as ``fleet`` and contains every setting."""
    return yaml.safe_dump(fleet.to_dict(), sort_keys=False, allow_unicode=True)


def write_run_fleet(fleet: FleetConfig, folder: Path) -> None:
    """Write `FLEET_FILE`, the settings of a run, into the folder of the run.

    Its first line names the fleet file that was given, because a task may stand beside it.

    :raises OSError: the file cannot be written.
    """
    write_text(folder / FLEET_FILE,
               f'{_FROM}{os.path.abspath(fleet.file)}\n' * bool(fleet.file) + dump_fleet(fleet))


def read_run_fleet(folder: Path) -> FleetConfig:
    """Read the settings of a run; `find_tasks` also finds the tasks beside the original file.

    :raises FleetFileError: the folder has no such file, or it is invalid.
    """
    fleet = read_fleet(folder / FLEET_FILE)
    first = (folder / FLEET_FILE).read_text(encoding='utf-8').partition('\n')[0]
    given = first.removeprefix(_FROM)
    return changed(fleet, file=given) if given != first and os.path.isfile(given) else fleet


def explained_fleet(fleet: FleetConfig) -> str:
    """Return the text of :func:`dump_fleet` with a comment that describes each setting."""
    known = {knob.path: f'{knob.description} ({knob.allowed})' for knob in knobs(type(fleet))}
    lines, section = [], ''
    text = yaml.safe_dump(fleet.to_dict(), sort_keys=False, allow_unicode=True, width=10**6)
    for line in text.splitlines():
        key, _, value = line.partition(':')
        section = section if line.startswith((' ', '-')) else key
        words = known.get((section, key.strip()) if line.startswith(' ') else (key,))
        lines.append(f'{line:<30} # {words}' if words and (value or key == 'robots') else line)
    return '\n'.join(lines) + '\n'


def child_fleets(fleet: FleetConfig) -> dict[str, FleetConfig]:
    """Return name of a robot -> the child fleet whose server is this robot.

    A child fleet has the duration and the seed of the parent fleet.

    :raises FleetFileError: one of four errors: the file of a child fleet cannot be read or is
        invalid; its `upstream.robot` is not the name of this robot; a child fleet has child
        fleets itself; or robots of two child fleets have the same data.
    """
    found = {robot.name: changed(read_fleet(robot.fleet), minutes=fleet.minutes, seed=fleet.seed)
             for robot in fleet.robots if robot.fleet}
    for name, below in found.items():
        if below.upstream.robot != name:
            raise FleetFileError(f'upstream.robot is {below.upstream.robot!r}; it must be '
                                 f'{name!r}, its name in the parent fleet {fleet.name}',
                                 below.file)
        if any(robot.fleet for robot in below.robots):
            raise FleetFileError(f'has child fleets and the parent fleet {fleet.name}; at most two '
                                 'levels are possible', below.file)
    shares: dict[tuple[int, int], str] = {}
    for name, below in found.items():
        world, first = below.upstream.world, below.upstream.rank
        for rank in range(first, first + len(below.robots)) if world else ():
            if (rank, world) in shares:
                raise FleetFileError(
                    f'upstream.rank is {first}: robot {rank} of {world} belongs to the fleet '
                    f'{shares[rank, world]!r}, too, so both would have the same data; it must be '
                    'the number of robots in the fleets before this one', below.file)
            shares[rank, world] = name
    return found


def link_trace(link: LinkConfig) -> LinkTrace:
    """Return the trace that ``link`` follows.

    The trace is constant, generated, or read from a file; it is then shifted and scaled.

    :raises TraceError: the trace cannot be read, or the link has neither trace nor rate.
    """
    if link.rate:
        trace = LinkTrace([0.0], [link.rate])
    elif not link.trace:
        raise TraceError('the link has neither a trace nor a rate; set link.trace or link.rate')
    else:
        trace = generate(link.trace) if link.trace in PROFILES else read_trace(link.trace)
    return trace.shifted(link.offset).scaled(link.scale)


def find_tasks(fleet: FleetConfig) -> None:
    """Let this process and its child processes import tasks from two further directories.

    These are the directory of the fleet file and the working directory. In this process, installed
    modules come first.
    """
    for folder in dict.fromkeys((os.path.dirname(os.path.abspath(fleet.file)), os.getcwd())):
        if folder not in sys.path:
            sys.path.append(folder)
        path = os.environ.get('PYTHONPATH', '').split(os.pathsep)
        if folder not in path:
            os.environ['PYTHONPATH'] = os.pathsep.join([*filter(None, path), folder])


_Path = tuple[str | int, ...]


class _Document:
    """The content of a fleet file; ``lines`` and ``texts`` of the file as from `parse`."""

    def __init__(self, file: str, data: Any, lines: Mapping[_Path, int] = MappingProxyType({}),
                 texts: Mapping[_Path, str] = MappingProxyType({})) -> None:
        self._data, self._file = data, file
        self._lines, self._texts = lines, texts
        self._overrides: dict[_Path, str] = {}

    def override(self, setting: str, value: Any) -> None:
        """Change the setting with this dotted name; a robot is given by its name."""
        *parents, last = setting.split('.')
        node = self._data
        path: list[str | int] = []
        where = f'override {setting}'
        for part in parents:
            if isinstance(node, list):
                names = [robot['name'] for robot in node]
                if part not in names:
                    raise FleetFileError(f'no robot {part!r}; {suggestion(part, names)}', where)
                index = names.index(part)
                path.append(index)
                node = node[index]
            elif isinstance(node, dict):
                path.append(part)  # the method `fleet` refuses unknown keys later
                node = node.setdefault(part, {})
            else:
                raise FleetFileError(f'the setting above {part!r} holds no keys', where)
        if not isinstance(node, dict):
            raise FleetFileError(f'the setting above {last!r} holds no keys', where)
        node[last] = Text(value) if isinstance(value, str) else value
        whole = (*path, last)
        self._overrides[whole] = where

    def fleet(self) -> FleetConfig:
        """Return the fleet that the file describes."""
        data = self._mapping(())
        fleet: FleetConfig = self._checked(FleetConfig, {
            **data, **({'robots': ()} if 'robots' in data else {}), 'file': self._file}, ())
        above = ('upstream', 'link')
        fleet = changed(fleet, link=self._resolved(fleet.link, ('link',)),
                        upstream={'link': self._resolved(fleet.upstream.link, above)})
        folder = Path(os.path.abspath(self._file)).parent
        for section in ('security', 'upstream'):
            if key := getattr(fleet, section).key:
                fleet = changed(fleet, **{section: {'key': str(folder / Path(key).expanduser())}})
        entries = data['robots']
        if not isinstance(entries, list) or not entries:
            raise self._error('robots must be a list of at least one "- name: ..." entry',
                              ('robots',))
        robots: dict[str, RobotConfig] = {}
        for index in range(len(entries)):
            path = ('robots', index)
            robot = self._robot(fleet, path)
            if robot.name in robots:
                line = self._lines.get(('robots', list(robots).index(robot.name), 'name'))
                first = f'on line {line}' if line else 'above'
                raise self._error(f'two robots are called {robot.name!r}; the first is {first}. '
                                  'Give each its own name', (*path, 'name'))
            robots[robot.name] = robot
        return changed(fleet, robots=tuple(robots.values()))

    def _robot(self, fleet: FleetConfig, path: _Path) -> RobotConfig:
        entry = self._mapping(path)
        if 'name' not in entry:
            raise self._error(f'{dotted(path)} has no name', path)
        usual = dict(fleet.robot_defaults(int(path[-1]), 'unnamed'))
        for key, value in entry.items():
            section = isinstance(usual.get(key), Settings) and isinstance(value, dict | None)
            usual[key] = {**dict(usual[key]), **(value or {})} if section else value
        robot: RobotConfig = self._checked(RobotConfig, usual, path)
        if robot.name in _TAKEN:
            raise self._error(f'{robot.name!r} is {_TAKEN[robot.name]}; give the robot another '
                              'name', (*path, 'name'))
        if robot.fleet:
            file = Path(os.path.abspath(self._file)).parent / robot.fleet
            if not file.is_file():
                raise self._error(f'{robot.name}.fleet is {robot.fleet!r}: there is no file {file}',
                                  (*path, 'fleet'))
            robot = changed(robot, fleet=str(file))
        return changed(robot, link=self._resolved(robot.link, (*path, 'link')))

    def _mapping(self, path: _Path) -> dict[str, Any]:
        node = self._data
        for key in path:
            node = node[key]
        if not isinstance(node, dict):
            such = ', such as {name: robot1}' if path[:1] == ('robots',) else ''
            raise self._error(f'{dotted(path) or "the file"} must be a mapping of keys to values'
                              f'{such}', path)
        return node

    def _checked(self, model: Any, values: dict[str, Any], path: _Path) -> Any:
        try:
            return checked(model, as_written(model, values, self._texts, path),
                           lambda rest: dotted((*path, *rest)))
        except SettingError as error:
            raise self._error(error.message, (*path, *error.path)) from None

    def _resolved(self, link: LinkConfig, path: _Path) -> LinkConfig:
        """Return ``link`` with the absolute path of its trace file, which must exist."""
        if link.trace in PROFILES or not link.trace:
            return link
        file = Path(os.path.abspath(self._file)).parent / link.trace
        if link.emulate and not link.rate and not file.is_file():
            raise self._error(f'link.trace is {link.trace!r}: there is no file {file}, and the '
                              f'built-in traces are {", ".join(PROFILES)}', (*path, 'trace'))
        return changed(link, trace=str(file))

    def _error(self, text: str, path: _Path) -> FleetFileError:
        for end in range(len(path), -1, -1):
            if path[:end] in self._overrides:
                return FleetFileError(text, self._overrides[path[:end]])
            if path[:end] in self._lines:
                return FleetFileError(text, self._file, self._lines[path[:end]])
        return FleetFileError(text, self._file)
