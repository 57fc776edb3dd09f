"""Command line arguments after `--ros-args`: remapping, parameters, log levels.

--ros-args -r [node:]from:=to -r __ns:=/robot1 -r __node:=name
           -p [node:]name:=yaml --params-file file.yaml
           --log-level [logger:=]info --disable-rosout-logs ... [--]
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rclpy import _names
from rclpy.logging import LoggingSeverity, get_logging_severity_from_string

_ANY_NODE = "/**"
_SWITCHES = ("rosout-logs", "stdout-logs", "external-lib-logs")
_WITH_VALUE = {
    "-r": "remap", "--remap": "remap", "-p": "param", "--param": "param",
    "--params-file": "file", "--log-level": "level", "--log-config-file": "ignored",
    "--log-file-name": "ignored", "-e": "enclave", "--enclave": "enclave",
}  # fmt: skip


class InvalidArgumentsError(RuntimeError):
    """An argument after --ros-args cannot be understood; the message names it."""


@dataclass(frozen=True)
class Remap:
    """One remapping rule; `node` restricts it to one node."""

    node: str | None
    source: str
    target: str


@dataclass
class RosArgs:
    """All that the arguments say."""

    remaps: list[Remap] = field(default_factory=list)
    # Node pattern to parameters; later patterns win over earlier ones, as in rcl.
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)
    levels: dict[str, LoggingSeverity] = field(default_factory=dict)
    switches: dict[str, bool] = field(default_factory=dict)

    def node_name(self, name: str) -> str | None:
        """Return what `__node` rules make of a node's name, None when there is no such rule."""
        return self._first(("__node", "__name"), name)

    def namespace(self, node_name: str) -> str | None:
        """Return what `__ns` rules say for a node, None when there is no such rule."""
        return self._first(("__ns",), node_name)

    def _first(self, sources: Iterable[str], node_name: str) -> str | None:
        for rule in self.remaps:
            if rule.source in sources and rule.node in (None, node_name):
                return rule.target
        return None

    def remap(self, name: str, node_name: str, namespace: str, is_service: bool) -> str | None:
        """Return what a fully qualified name is remapped to, None when no rule matches."""
        own, other = ("rosservice://", "rostopic://")[:: 1 if is_service else -1]
        for rule in self.remaps:
            if rule.node not in (None, node_name) or rule.source.startswith(("__", other)):
                continue
            source = _names.expand(rule.source.removeprefix(own), node_name, namespace, is_service)
            if source == name:
                return _names.expand(rule.target, node_name, namespace, is_service)
        return None

    def parameters_of(self, full_name: str) -> dict[str, Any]:
        """Return the parameters given to the node with this fully qualified name."""
        values: dict[str, Any] = {}
        for pattern, parameters in self.parameters.items():
            if node_matches(pattern, full_name):
                values.update(parameters)
        return values

    def add_parameters(self, pattern: str, values: dict[str, Any]) -> None:
        """Add parameters for the nodes that a pattern such as /** or /*/camera describes."""
        pattern = pattern if pattern.startswith("/") else f"/{pattern}"
        self.parameters.setdefault(pattern, {}).update(values)


def node_matches(pattern: str, full_name: str) -> bool:
    """Whether `*` (one part) and `**` (any number of parts) in the pattern fit the name."""
    expression = ""
    for part in pattern.strip("/").split("/"):
        expression += {"**": r"(/[^/]+)*", "*": r"/[^/]+"}.get(part, f"/{re.escape(part)}")
    return re.fullmatch(expression, full_name) is not None


def _merge(into: dict[Any, Any], values: dict[Any, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


class _Loader(yaml.SafeLoader):
    """YAML as rcl reads it: 1e5 is a number, too, and a key that stands twice counts twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Merge the mappings of one key; of other values the last one holds."""
        self.flatten_mapping(node)
        merged: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            value = self.construct_object(value_node, deep=True)
            if isinstance(value, dict) and isinstance(merged.get(key), dict):
                _merge(merged[key], value)
            else:
                merged[key] = value
        return merged


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def parse_value(text: str, what: str) -> Any:
    """Return the parameter value that YAML text stands for."""
    try:
        value = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise InvalidArgumentsError(f"{what}: {text!r} is no YAML value: {error}") from None
    return check_value(value, what)


def check_value(value: Any, what: str) -> Any:
    """Return the value when a parameter can have it."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        kinds = {type(v) for v in value}
        if len(kinds) <= 1 and kinds <= {bool, int, float, str}:
            return value
        raise InvalidArgumentsError(f"{what}: all elements of a list must have one type: {value!r}")
    raise InvalidArgumentsError(f"{what}: not a parameter value: {value!r}")


def _flatten(prefix: str, values: dict[Any, Any], what: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, dict):
            flat.update(_flatten(name, value, what))
        else:
            flat[name] = check_value(value, f"{what}: parameter {name}")
    return flat


def _nodes(prefix: str, tree: Any, what: str) -> Iterable[tuple[str, dict[str, Any]]]:
    if not isinstance(tree, dict):
        raise InvalidArgumentsError(
            f"{what}: expected nodes that contain 'ros__parameters', found {tree!r}"
            + (f" under {prefix!r}" if prefix else "")
        )
    for key, value in tree.items():
        if key == "ros__parameters":
            if value is not None and not isinstance(value, dict):
                raise InvalidArgumentsError(f"{what}: ros__parameters of {prefix} is no mapping")
            yield prefix, _flatten("", value or {}, f"{what}: {prefix}")
        else:
            yield from _nodes(f"{prefix}/{str(key).strip('/')}", value, what)


def read_params_file(path: str) -> list[tuple[str, dict[str, Any]]]:
    """Return node patterns and their parameters from a parameter file."""
    what = f"parameter file {path}"
    try:
        tree = yaml.load(Path(path).read_text(), _Loader)
    except OSError as error:
        raise InvalidArgumentsError(f"{what}: {error.strerror}") from None
    except yaml.YAMLError as error:
        raise InvalidArgumentsError(f"{what} is no YAML: {error}") from None
    if tree is None:
        return []
    return list(_nodes("", tree, what))


def _split_rule(text: str, option: str) -> tuple[str | None, str, str]:
    """`[node:]left:=right` in its parts."""
    left, found, right = text.partition(":=")
    if not found or not left:
        raise InvalidArgumentsError(f"{option} {text}: expected [node:]name:=value")
    node, colon, name = left.partition(":")
    if colon and not name.startswith("//"):  # not rostopic://name
        return node, name, right
    return None, left, right


def _add_remap(args: RosArgs, text: str) -> None:
    node, source, target = _split_rule(text, "-r")
    try:
        if source in ("__node", "__name"):
            _names.validate_node_name(target)
        elif source == "__ns":
            _names.validate_namespace(target)
        elif source.startswith("__"):
            raise ValueError(f"unknown rule {source}")
        else:
            for name in (re.sub("^ros(topic|service)://", "", source), target):
                _names.validate_topic_name(name)
    except Exception as error:
        raise InvalidArgumentsError(f"-r {text}: {error}") from None
    args.remaps.append(Remap(node, source, target))


def _add_level(args: RosArgs, text: str) -> None:
    logger, _, level = text.rpartition(":=")
    try:
        args.levels[logger] = get_logging_severity_from_string(level)
    except RuntimeError as error:
        raise InvalidArgumentsError(f"--log-level {text}: {error}") from None


def _add(args: RosArgs, kind: str, text: str) -> None:
    if kind == "remap":
        _add_remap(args, text)
    elif kind == "param":
        node, name, value = _split_rule(text, "-p")
        args.add_parameters(node or _ANY_NODE, {name: parse_value(value, f"-p {text}")})
    elif kind == "file":
        for pattern, values in read_params_file(text):
            args.add_parameters(pattern, values)
    elif kind == "level":
        _add_level(args, text)
    elif kind == "enclave":
        raise InvalidArgumentsError(
            f"--enclave {text}: this rclpy has no SROS 2 and would talk unprotected. Source "
            "a ROS 2 installation, whose DDS has it, or leave the argument out"
        )


def _switch(args: RosArgs, option: str) -> bool:
    for state, prefix in ((True, "--enable-"), (False, "--disable-")):
        name = option.removeprefix(prefix)
        if name != option and name in _SWITCHES:
            args.switches[name] = state
            return True
    return False


def parse(arguments: Sequence[str], in_scope: bool = False) -> tuple[RosArgs, list[str]]:
    """Return what the ROS arguments say, and all other arguments.

    :param in_scope: True when the first argument is a ROS argument already (a node's cli_args)
    :raises InvalidArgumentsError: on anything that is no ROS argument inside the scope
    """
    args, others = RosArgs(), []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--ros-args":
            in_scope = True
        elif not in_scope:
            others.append(argument)
        elif argument == "--":
            in_scope = False
        elif argument in _WITH_VALUE:
            value = next(waiting, None)
            if value is None:
                raise InvalidArgumentsError(f"{argument} needs a value")
            _add(args, _WITH_VALUE[argument], value)
        elif not _switch(args, argument):
            raise InvalidArgumentsError(
                f"unknown ROS argument {argument!r} (after --ros-args only ROS arguments may "
                "stand; '--' ends them)"
            )
    return args, others
