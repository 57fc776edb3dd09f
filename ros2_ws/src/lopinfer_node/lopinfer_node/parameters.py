"""Parameters of the two nodes, declared once, and what is made of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from fleet_ros.link import LINK
from fleet_ros.parameters import Knob

from .planner import METHODS
from .recording import Recording

COMMON = LINK | {
    'threads': Knob(0, "Threads that compute; 0: PyTorch's own choice.", 0, 1024),
    'recording': Knob('', 'File to which every computation and transfer is written; empty: none.'),
    'device': Knob('cpu', 'PyTorch device that computes: cpu, cuda or cuda:N.'),
}

SERVER = COMMON | {
    'directory': Knob('', 'Folder of the models; empty: ~/.cache/lopinfer.'),
    'models': Knob('', 'Models to have ready, names separated by commas: of torchvision or timm, '
                       'or package.module:factory.'),
    'uploads': Knob(True, 'Whether robots may send models.'),
    'clients': Knob(16, 'Most robots at a time.', 1, 1024),
    'lease': Knob(30.0, 'Silence after which a robot is forgotten, s.', 3.0, 3600.0),
}

CLIENT = COMMON | {
    'model': Knob('mobilenet_v3_small', 'Model: a name of torchvision or timm, or '
                                        'package.module:factory.'),
    'pretrained': Knob(False, 'Whether to download trained weights.'),
    'height': Knob(224, 'Rows of the model\'s input; images are scaled to it.', 1, 8192),
    'width': Knob(224, 'Columns of the model\'s input.', 1, 8192),
    'mean': Knob([0.485, 0.456, 0.406], 'Subtracted from each channel, which is 0 to 1.'),
    'std': Knob([0.229, 0.224, 0.225], 'Each channel is then divided by it.'),
    'server': Knob('/lopinfer', 'Namespace of the server.'),
    'method': Knob('lopinfer', 'How the plans are made.', choices=METHODS),
    'probe_period': Knob(0.5, 'Time between measurements of an idle link, s.', 0.05, 60.0),
    'probe_bytes': Knob(64000, 'Bytes of a measurement.', 4096, 240000),
    'deadline': Knob(0.1, 'Time that a request waits for the server beyond what was expected of '
                          'it, s; at least as long as was expected.', 0.0, 60.0),
    'slowdown': Knob(1.0, 'Emulate a slower robot: computing takes so many times as long; 1: off.',
                     1.0, 1000.0),
    'link_delay': Knob(0.002, 'Delay of the link per direction that plans expect, s.', 0.0, 10.0),
}


def recording(settings: SimpleNamespace) -> Recording | None:
    """What the parameters want written down."""
    return Recording(Path(settings.recording)) if settings.recording else None
