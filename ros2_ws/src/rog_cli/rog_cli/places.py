"""Paths that options give."""

from __future__ import annotations

import argparse
from pathlib import Path


def place(text: str) -> Path:
    """Return the path of an option, such as --out.

    An empty text, of a variable that is not set, would be the directory in which the user is.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError('it is empty; give a path, or leave the option out')
    return Path(text)
