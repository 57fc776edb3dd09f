"""Writes graph.json and weights.safetensors by hand, as an attacker could."""

import json

from lopinfer_node.model.files import GRAPH, WEIGHTS
from lopinfer_node.model.precision import Precision
from safetensors.torch import save_file


def write_model(folder, shape, *calls, weights=None, dtype='float32', axis=None):
    """Write a folder with a model of one input; each call is (op, arguments, shape[, dtype])."""
    records = [{'op': op, 'arguments': arguments, 'shape': list(made), 'dtype': (*kind, dtype)[0],
                'place': op, 'pick': 0 if 'native' in op else None}
               for op, arguments, made, *kind in calls]
    folder.mkdir(parents=True)
    (folder / GRAPH).write_text(json.dumps({
        'version': 2, 'precision': Precision().as_json(), 'name': 'written',
        'calls': records, 'outputs': [{'v': len(calls)}],
        'inputs': [{'shape': list(shape), 'dtype': dtype, 'axis': axis, 'place': 'x'}]}))
    save_file(weights or {}, str(folder / WEIGHTS))
    return folder
