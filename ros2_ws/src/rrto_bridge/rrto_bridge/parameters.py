"""Parameters of the server node, declared once, and what is made of them."""

from __future__ import annotations

from types import SimpleNamespace

from fleet_env.fleet import LinkConfig
from fleet_env.shaped import ShapedLink
from fleet_env.trace import LinkTrace
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
    'link_trace': Knob('', 'Emulate a link: a built-in trace (indoor, outdoor) or a file of '
                           '"seconds Mbit/s" lines. Empty: a real link, or link_rate.'),
    'link_rate': Knob(0.0, 'Emulate a link of a constant rate, Mbit/s; 0: none.', 0.0, 1e6),
    'link_latency': Knob(0.0, 'Delay of an emulated link per direction, s.', 0.0, 10.0),
    'link_epoch': Knob(0.0, 'Wall-clock time at which the trace of an emulated link begins, s; the '
                            'same for program and server.'),
}


def shaped_link(settings: SimpleNamespace) -> ShapedLink:
    """The emulated link that the parameters describe, or the real one."""
    if settings.link_trace:
        config = LinkConfig(trace=settings.link_trace, latency=settings.link_latency)
        return ShapedLink.from_config(config, settings.link_epoch)
    if settings.link_rate:
        return ShapedLink(LinkTrace([0.0], [settings.link_rate]), settings.link_latency)
    return ShapedLink()
