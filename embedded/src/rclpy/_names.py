"""Names of nodes, topics and services: what is valid, how they expand, how DDS calls them."""

from __future__ import annotations

import re
from collections.abc import Callable

from rclpy.exceptions import (
    InvalidNamespaceException,
    InvalidNodeNameException,
    InvalidServiceNameException,
    InvalidTopicNameException,
)

MAX_NODE_NAME = 255
MAX_TOPIC_NAME = 255 - len("rt/") - 5  # RMW_TOPIC_MAX_NAME_LENGTH, room for prefix and suffix
_SUBSTITUTIONS = ("node", "ns", "namespace")

Problem = tuple[str, int]
"""What is wrong, and at which character."""


def _bad_character(name: str, allowed: str) -> Problem | None:
    for i, c in enumerate(name):
        if not (c.isascii() and c.isalnum()) and c not in allowed:
            return f"must not contain characters other than alphanumerics, {_listed(allowed)}", i
    return None


def _listed(allowed: str) -> str:
    return ", ".join(f"'{c}'" for c in allowed)


def _bad_tokens(name: str) -> Problem | None:
    if name != "/" and name.endswith("/"):
        return "must not end with a forward slash", len(name) - 1
    for match in re.finditer("/", name):
        follower = name[match.end() : match.end() + 1]
        if follower == "/":
            return "must not contain repeated '/'", match.end()
        if follower.isdigit():
            return "has a token that must not start with a number", match.end()
    return ("must not start with a number", 0) if name[:1].isdigit() else None


def _bad_braces(name: str) -> Problem | None:
    opened = -1
    for i, c in enumerate(name):
        if c == "{":
            if opened >= 0:
                return "must not have nested curly braces", i
            opened = i
        elif c == "}":
            if opened < 0:
                return "must not have unmatched (unbalanced) curly braces '{}'", i
            if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name[opened + 1 : i]):
                return "has a substitution with an invalid name", opened
            opened = -1
    return (
        ("must not have unmatched (unbalanced) curly braces '{}'", opened) if opened >= 0 else None
    )


def topic_problem(name: str) -> Problem | None:
    """Return what is wrong with a name that may be relative or have substitutions."""
    if not isinstance(name, str):
        raise TypeError(f"a name must be of type str, not {type(name).__name__}")
    if not name:
        return "must not be empty", 0
    tilde = name.find("~", 1)
    if tilde > 0:
        return "must not contain a '~' that is not the first character", tilde
    if len(name) > 1 and name[0] == "~" and name[1] != "/":
        return "must have '~' followed by '/' or nothing", 1
    return _bad_character(name, "_/~{}") or _bad_braces(name) or _bad_tokens(name)


def full_name_problem(name: str) -> Problem | None:
    """Return what is wrong with a fully qualified name."""
    if not name:
        return "must not be empty", 0
    if name[0] != "/":
        return "must be absolute, it must lead with a '/'", 0
    if name == "/":
        return "must not end with a forward slash", 0
    if len(name) > MAX_TOPIC_NAME:
        return f"must not be longer than {MAX_TOPIC_NAME}", MAX_TOPIC_NAME
    return _bad_character(name, "_/") or _bad_tokens(name)


def validate_topic_name(name: str, *, is_service: bool = False) -> bool:
    """Return True, or raise InvalidTopicNameException (InvalidServiceNameException)."""
    return _raise_problem(name, topic_problem(name), is_service)


def validate_full_topic_name(name: str, *, is_service: bool = False) -> bool:
    """Return True, or raise InvalidTopicNameException (InvalidServiceNameException)."""
    return _raise_problem(name, full_name_problem(name), is_service)


def _raise_problem(name: str, problem: Problem | None, is_service: bool) -> bool:
    if problem is None:
        return True
    error = InvalidServiceNameException if is_service else InvalidTopicNameException
    raise error(name, f"it {problem[0]}", problem[1])


def validate_namespace(namespace: str) -> bool:
    """Return True, or raise InvalidNamespaceException."""
    problem = None if namespace == "/" else full_name_problem(namespace)
    if problem is not None:
        raise InvalidNamespaceException(namespace, f"it {problem[0]}", problem[1])
    return True


def validate_node_name(name: str) -> bool:
    """Return True, or raise InvalidNodeNameException."""
    problem: Problem | None = ("must not be empty", 0) if not name else _bad_character(name, "_")
    if problem is None and name[0].isdigit():
        problem = "must not start with a number", 0
    if problem is None and len(name) > MAX_NODE_NAME:
        problem = f"must not be longer than {MAX_NODE_NAME}", MAX_NODE_NAME
    if problem is not None:
        raise InvalidNodeNameException(name, f"it {problem[0]}", problem[1])
    return True


def join(namespace: str, name: str) -> str:
    """Return the name in the namespace."""
    return f"{namespace.rstrip('/')}/{name}"


def expand(name: str, node_name: str, namespace: str, is_service: bool = False) -> str:
    """Return the fully qualified name: `~` and substitutions replaced, namespace prepended.

    :raises ValueError: a substitution has another name than node, ns or namespace
    """
    validate_topic_name(name, is_service=is_service)

    def substitute(match: re.Match[str]) -> str:
        if match[1] not in _SUBSTITUTIONS:
            raise ValueError(f"unknown substitution '{match[1]}' in the name {name!r}")
        return node_name if match[1] == "node" else namespace.strip("/")

    if name.startswith("~"):
        name = join(namespace, node_name) + name[1:]
    name = re.sub(r"\{([^}]*)\}", substitute, name)
    name = name if name.startswith("/") else join(namespace, name)
    validate_full_topic_name(name, is_service=is_service)
    return name


def hidden(name: str) -> bool:
    """Whether tools hide the name: a part of it starts with an underscore."""
    return any(part.startswith("_") for part in name.split("/"))


# How DDS calls them.


def topic_to_dds(name: str, plain: bool = False) -> str:
    """Return the DDS topic of a ROS topic; `plain`: avoid_ros_namespace_conventions."""
    return name if plain else f"rt{name}"


def request_to_dds(service: str) -> str:
    """Return the DDS topic that carries a service's requests."""
    return f"rq{service}Request"


def reply_to_dds(service: str) -> str:
    """Return the DDS topic that carries a service's replies."""
    return f"rr{service}Reply"


def topic_from_dds(dds_topic: str) -> str | None:
    """Return the ROS topic of a DDS topic, None when it is no ROS topic."""
    return dds_topic[2:] if dds_topic.startswith("rt/") else None


def service_from_dds(dds_topic: str) -> str | None:
    """Return the ROS service of a DDS topic, None when it is none."""
    for prefix, suffix in (("rq/", "Request"), ("rr/", "Reply")):
        if dds_topic.startswith(prefix) and dds_topic.endswith(suffix):
            return dds_topic[2 : -len(suffix)]
    return None


def type_from_dds(dds_type: str) -> str:
    """Return pkg/msg/T of pkg::msg::dds_::T_, other names as they are."""
    match = re.fullmatch(r"(.+)::dds_::(.+)_", dds_type)
    return f"{match[1].replace('::', '/')}/{match[2]}" if match else dds_type


def service_type_from_dds(dds_type: str) -> str:
    """Return pkg/srv/T of the type of its requests or replies."""
    return re.sub("_(Request|Response)$", "", type_from_dds(dds_type))


Validator = Callable[[str], bool]
