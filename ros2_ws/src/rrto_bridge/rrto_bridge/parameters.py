"""Parameters of the server node, declared once."""

from __future__ import annotations

from fleet_ros.link import LINK
from fleet_ros.parameters import Knob

SERVER = {
    'name': Knob('', 'Name of the server, letters, digits and single underscores; empty: the '
                     "machine's name."),
    'device': Knob('', 'PyTorch device that computes: cpu, cuda or cuda:N; empty: cuda if there is '
                       'one.'),
    'programs': Knob(16, 'Most programs at a time.', 1, 1024),
    'memory': Knob(4096, 'Most MiB of tensors of one program.', 1, 1 << 20),
    'weights': Knob(4096, 'Most MiB of weights kept for programs that come again.', 0, 1 << 20),
    'lease': Knob(10.0, 'Silence after which a program is forgotten, s.', 1.0, 3600.0),
    'threads': Knob(0, "Threads that compute; 0: PyTorch's own choice.", 0, 1024),
} | LINK
