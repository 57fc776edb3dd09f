"""Reads, finds, overrides and writes fleet files.

A fleet file is YAML; :mod:`fleet_env.fleet` says what may stand in it. Nothing is guessed: an
unknown key, a wrong type, a value out of range or a repeated robot name is refused with the line.
"""

import dataclasses
import os
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import yaml

from fleet_env.errors import FleetFileError
from fleet_env.fleet import FleetConfig, LinkConfig, RobotConfig
from fleet_env.generate import PROFILES, generate
from fleet_env.settings import Located, build, construct, locate, mapping, suggestion
from fleet_env.trace import LinkTrace, read_trace

PATH_VARIABLE = 'ROG_FLEET_PATH'


def load_fleet(name_or_path: str | PathLike[str],
               search_path: Iterable[str | PathLike[str]] = ()) -> FleetConfig:
    """Load a fleet by name (``indoor``) or by path (anything with a slash or ending in .yaml).

    :param search_path: directories that hold ``<name>.yaml``; those in the environment variable
        ROG_FLEET_PATH come first.
    :raises FleetFileError: names file, line and key; for an unknown name it lists the known ones.
    """
    text = os.fspath(name_or_path)
    if text.endswith(('.yaml', '.yml')) or os.sep in text:
        return read_fleet(text)
    known = known_fleets(search_path)
    if text not in known:
        there = suggestion(text, known) if known else 'no directory that was searched holds any'
        raise FleetFileError(f'no fleet is called {text!r}; {there}. A path ends in .yaml; '
                             f'{PATH_VARIABLE} adds directories')
    return read_fleet(known[text])


def known_fleets(search_path: Iterable[str | PathLike[str]] = ()) -> dict[str, Path]:
    """Return the fleets that :func:`load_fleet` finds by name, and their files."""
    directories = [part for part in os.environ.get(PATH_VARIABLE, '').split(os.pathsep) if part]
    found: dict[str, Path] = {}
    for directory in [*directories, *search_path]:
        for file in sorted(Path(directory).glob('*.yaml')):
            found.setdefault(file.stem, file)
    return found


def read_fleet(path: str | PathLike[str]) -> FleetConfig:
    """Read one fleet file; a relative trace path is taken from the file's directory."""
    file = os.fspath(path)
    try:
        text = Path(file).read_text(encoding='utf-8')
    except (OSError, UnicodeDecodeError) as error:
        raise FleetFileError(f'cannot be read: {error}', file) from error
    return _fleet(_parse(text, file), file)


def with_overrides(fleet: FleetConfig, overrides: Mapping[str, Any]) -> FleetConfig:
    """Return ``fleet`` with dotted settings changed, checked like those of a file.

    :param overrides: for example ``{'training.sync': 'bsp', 'robots.robot2.pace': '0.5'}``; text
        is accepted for numbers and booleans, and a robot is named, not counted.
    :raises FleetFileError: names the setting; ``fleet`` itself never changes.
    """
    tree = locate(fleet.to_dict(), fleet.file)
    for dotted, value in overrides.items():
        _override(tree, dotted, locate(value, f'override {dotted}', lenient=True))
    return _fleet(tree, fleet.file)


def with_robots(fleet: FleetConfig, count: int) -> FleetConfig:
    """Return ``fleet`` with its first ``count`` robots, and as many more like them as it takes."""
    names = {robot.name for robot in fleet.robots}
    more = (f'robot{number}' for number in range(1, count + len(names) + 1))
    robots = list(fleet.robots[:count])
    for index, name in zip(range(len(robots), count), (n for n in more if n not in names),
                           strict=False):
        robots.append(fleet.robot_defaults(index, name))
    return dataclasses.replace(fleet, robots=tuple(robots))


def dump_fleet(fleet: FleetConfig) -> str:
    """Return the text of a fleet file that loads as ``fleet``, every setting written out."""
    return yaml.safe_dump(fleet.to_dict(), sort_keys=False, allow_unicode=True)


def link_trace(link: LinkConfig) -> LinkTrace:
    """Return the trace that ``link`` follows: read or generated, shifted and scaled.

    :raises TraceError: names file and line.
    """
    trace = generate(link.trace) if link.trace in PROFILES else read_trace(link.trace)
    return trace.shifted(link.offset).scaled(link.scale)


def _fleet(node: Located, file: str) -> FleetConfig:
    values = build(FleetConfig, node, skip=('robots',))
    entries = mapping(node, 'the file')
    for key in ('name', 'robots'):
        if key not in entries:
            raise node.error(f'the key {key!r} is missing')
    fleet = FleetConfig(**values, robots=(), file=file)
    link = entries.get('link', node)
    fleet = dataclasses.replace(fleet, link=_resolved(fleet.link, link, file))
    beat = fleet.heartbeat
    if beat.limit <= beat.period:
        raise entries['heartbeat'].error(f'heartbeat.limit is {beat.limit} s; it must be longer '
                                         f'than heartbeat.period, {beat.period} s')
    return dataclasses.replace(fleet, robots=_robots(entries['robots'], fleet, file))


def _robots(node: Located, fleet: FleetConfig, file: str) -> tuple[RobotConfig, ...]:
    if not isinstance(node.value, list) or not node.value:
        raise node.error('robots must be a list of at least one "- name: ..." entry')
    robots: list[RobotConfig] = []
    lines: dict[str, int] = {}
    for index, item in enumerate(node.value):
        path = f'robots[{index}]'
        entry = mapping(item, path)
        if 'name' not in entry:
            raise item.error(f'{path} has no name')
        common = fleet.robot_defaults(index, 'unnamed')
        robot: RobotConfig = construct(RobotConfig, item, path, common)
        if robot.name in lines:
            first = f' on line {lines[robot.name]}' if lines[robot.name] else ''
            raise entry['name'].error(f'two robots are called {robot.name!r}; the first stands'
                                      f'{first or " above"}. Give each its own name')
        if robot.name == 'rog':
            raise entry['name'].error("'rog' is the namespace of the parameter server; give the "
                                      'robot another name')
        lines[robot.name] = entry['name'].line
        link = _resolved(robot.link, entry.get('link', item), file)
        robots.append(dataclasses.replace(robot, link=link))
    return tuple(robots)


def _resolved(link: LinkConfig, node: Located, file: str) -> LinkConfig:
    """Return ``link`` with an absolute path of its trace, which must exist."""
    if link.trace in PROFILES:
        return link
    path = Path(os.path.abspath(file)).parent / link.trace
    if link.emulate and not path.is_file():
        place = node.value.get('trace', node) if isinstance(node.value, dict) else node
        raise place.error(f'link.trace is {link.trace!r}: there is no file {path}, and the '
                          f'built-in traces are {", ".join(PROFILES)}')
    return dataclasses.replace(link, trace=str(path))


def _override(tree: Located, dotted: str, value: Located) -> None:
    *parents, last = dotted.split('.')
    node = tree
    for part in parents:
        if isinstance(node.value, list):
            named = {item.value['name'].value: item for item in node.value}
            if part not in named:
                raise value.error(f'no robot {part!r}; {suggestion(part, named)}')
            node = named[part]
        elif isinstance(node.value, dict):
            # A key that is not there yet is set; `build` refuses it if it is unknown.
            node = node.value.setdefault(part, Located({}, value.file))
        else:
            raise value.error(f'{part!r} is below a setting that holds a single value')
    if not isinstance(node.value, dict):
        raise value.error(f'{last!r} is below a setting that holds no keys')
    node.value[last] = value


def _parse(text: str, file: str) -> Located:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise FleetFileError(f'is not valid YAML: {error.problem}', file, line) from error
    except yaml.YAMLError as error:
        raise FleetFileError(f'is not valid YAML: {error}', file) from error
    if root is None:
        raise FleetFileError('is empty; it needs at least name and robots', file)
    try:
        return _located(root, file)
    except RecursionError:
        raise FleetFileError('is nested too deeply; does an alias (*name) contain itself?',
                             file) from None


def _located(node: yaml.Node, file: str) -> Located:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        entries: dict[str, Located] = {}
        for key_node, value_node in node.value:
            key, at = str(key_node.value), key_node.start_mark.line + 1
            if key in entries:
                raise FleetFileError(f'the key {key!r} stands here a second time', file, at)
            entries[key] = dataclasses.replace(_located(value_node, file), line=at)
        return Located(entries, file, line)
    if isinstance(node, yaml.SequenceNode):
        return Located([_located(item, file) for item in node.value], file, line)
    try:
        return Located(yaml.constructor.SafeConstructor().construct_object(node), file, line)
    except (yaml.YAMLError, ValueError) as error:
        raise FleetFileError(f'{node.value!r} cannot be read: {error}', file, line) from error
