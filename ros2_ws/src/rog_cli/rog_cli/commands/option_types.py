"""Options, and types of options, that several verbs share."""

from __future__ import annotations

import argparse
import math
from pathlib import Path


def place(text: str) -> Path:
    """Return the path that the user gives to an option such as --out.

    An empty text is refused, because it usually comes from an unset variable and would mean the
    current directory.
    """
    if not text.strip():
        raise argparse.ArgumentTypeError('must not be empty; give a path, or omit the option')
    return Path(text)


def seconds(text: str) -> float:
    """Return a time to wait, in seconds; refuse negative numbers, infinity and NaN.

    With infinity or NaN the wait would never end.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f'must be a time of at least 0 s, got {text!r}')
    return value


def add_trackers(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose where the curves of a run go."""
    parser.add_argument('--tensorboard', type=place, metavar='DIR', help='write curves for '
                        "TensorBoard into DIR, in a folder that is named as the run's")
    parser.add_argument('--mlflow', action='store_true', help='send curves to MLflow, as '
                        'MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME say')
