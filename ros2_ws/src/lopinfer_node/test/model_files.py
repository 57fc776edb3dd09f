"""Writes models into a folder, also by hand, as an attacker could, and reads them."""

import json

from fleet_compute.weights import FOLDER, Weights
from lopinfer_node.model import files
from lopinfer_node.model.files import CONTENTS, GRAPH
from lopinfer_node.model.precision import Precision
from lopinfer_node.model.traced import bytes_of, content_of


def kept_in(folder):
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    return Weights(1 << 30, folder / FOLDER)


def save(traced, folder):
    kept = kept_in(folder)
    for name, text in files.texts(traced).items():
        (folder / name).write_bytes(text)
    for name, content in traced.contents.items():
        kept.write(bytes_of(traced.parameters[name]), content.sha256)


def load(folder, device='cpu'):
    return files.load(folder, kept_in(folder), device)


def write_model(folder, shape, *calls, weights=None, dtype='float32', axis=None):
    """Write a folder with a model of one input; each call is (op, arguments, shape[, dtype])."""
    records = [{'op': op, 'arguments': arguments, 'shape': list(made), 'dtype': (*kind, dtype)[0],
                'place': op, 'pick': 0 if 'native' in op else None}
               for op, arguments, made, *kind in calls]
    kept = kept_in(folder)
    (folder / GRAPH).write_text(json.dumps({
        'version': 2, 'precision': Precision().as_json(), 'name': 'written',
        'calls': records, 'outputs': [{'v': len(calls)}],
        'inputs': [{'shape': list(shape), 'dtype': dtype, 'axis': axis, 'place': 'x'}]}))
    contents = {name: content_of(tensor) for name, tensor in (weights or {}).items()}
    (folder / CONTENTS).write_text(json.dumps(contents))
    for name, content in contents.items():
        kept.write(bytes_of(weights[name]), content.sha256)
    return folder
