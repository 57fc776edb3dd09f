"""What a task shows of the models at the end of a run, beside the run's records.

See `rog_tasks.task.Task.portrait` for what there may be.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from fleet_env.errors import RecordError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

PORTRAIT_FILE = 'portrait.safetensors'
SERVER = ''
"""The name of the server's model; robots have their own."""

Portraits = dict[str, dict[str, np.ndarray]]


def write_portraits(directory: Path, shown: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Write what is shown of each, if there is anything: name -> array, by robot."""
    arrays = {f'{who}/{name}': np.ascontiguousarray(array)
              for who, portrait in shown.items() for name, array in portrait.items()}
    if arrays:
        save_file(arrays, directory / PORTRAIT_FILE)


def read_portraits(directory: Path) -> Portraits:
    """Return what `write_portraits` wrote; empty if there is nothing.

    :raises RecordError: names a file that is damaged.
    """
    path = directory / PORTRAIT_FILE
    if not path.exists():
        return {}
    try:
        arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RecordError(f'is no safetensors file: {error}', str(path)) from error
    shown: Portraits = defaultdict(dict)
    for key, array in arrays.items():
        who, _, name = key.partition('/')
        shown[who][name] = array
    return dict(shown)
