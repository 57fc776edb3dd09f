"""Saves and reads outputs of the final models, such as a map, for figures.

The outputs are in the directory of the run record. `rog_tasks.task.Task.portrait` makes them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from fleet_env.errors import RecordError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

MODEL_OUTPUTS_FILE = 'portrait.safetensors'
SERVER = ''
"""Key of the server's model; a robot's key is its name."""

ModelOutputs = dict[str, dict[str, np.ndarray]]


def write_model_outputs(directory: Path, shown: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Write the outputs of all models; if there are none, write no file.

    :param shown: maps the name of each robot, and `SERVER`, to a dict from the name of an output to
        its array.
    """
    arrays = {f'{who}/{name}': np.ascontiguousarray(array)
              for who, portrait in shown.items() for name, array in portrait.items()}
    if arrays:
        save_file(arrays, directory / MODEL_OUTPUTS_FILE)


def read_model_outputs(directory: Path) -> ModelOutputs:
    """Return the outputs that `write_model_outputs` has written to ``directory``.

    :returns: a dict that maps the name of each robot, and `SERVER`, to a dict from the name of an
        output to its array. The dict is empty if the run has no outputs.
    :raises RecordError: the file is damaged.
    """
    path = directory / MODEL_OUTPUTS_FILE
    if not path.exists():
        return {}
    try:
        arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise RecordError(f'must be a safetensors file: {error}', str(path)) from error
    shown: ModelOutputs = defaultdict(dict)
    for key, array in arrays.items():
        who, _, name = key.partition('/')
        shown[who][name] = array
    return dict(shown)
