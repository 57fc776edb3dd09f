"""Names on the graph, made and checked in one place for both sides."""

from __future__ import annotations

import re

MAX_NAME = 100

# Topics may not have parts that begin with a digit, nor two underscores in a row.
_NAME = re.compile(r'[A-Za-z][A-Za-z0-9]*(_[A-Za-z0-9]+)*')


def graph_name(text: str) -> str:
    """The name on the graph for a name of the user's, or of a machine: '3f2a-1' is 'n3f2a_1'.

    A valid name stays as it is, so it may be applied twice.
    """
    name = re.sub(r'[^A-Za-z0-9]+', '_', text).strip('_')[:MAX_NAME].rstrip('_')
    return name if name[:1].isalpha() else f'n{name}'[:MAX_NAME]


def is_graph_name(name: str) -> bool:
    """Whether `graph_name` would leave it as it is."""
    return len(name) <= MAX_NAME and _NAME.fullmatch(name) is not None
