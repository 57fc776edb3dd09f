"""The emulated link of a node: its parameters, and what is made of them."""

from __future__ import annotations

from typing import Any

from fleet_env.fleet import LinkConfig
from fleet_env.shaped import ShapedLink
from fleet_env.trace import LinkTrace

from .parameters import Knob

LINK = {
    'link_trace': Knob('', 'Emulate a link: a built-in trace (indoor, outdoor) or a file of '
                           '"seconds Mbit/s" lines. Empty: a real link, or link_rate.'),
    'link_rate': Knob(0.0, 'Emulate a link of a constant rate, Mbit/s; 0: none.', 0.0, 1e6),
    'link_latency': Knob(0.0, 'Delay of an emulated link per direction, s; without a rate or a '
                              'trace the rate is unlimited.', 0.0, 10.0),
    'link_epoch': Knob(0.0, 'Wall-clock time at which the trace of an emulated link begins, s; the '
                            'same on both sides.'),
}


def shaped_link(settings: Any) -> ShapedLink:
    """The emulated link that the attributes `LINK` of ``settings`` describe, or the real one.

    Raises TraceError for a trace that can't be read.
    """
    if settings.link_trace:
        config = LinkConfig(trace=settings.link_trace, latency=settings.link_latency)
        return ShapedLink.from_config(config, settings.link_epoch)
    trace = LinkTrace([0.0], [settings.link_rate]) if settings.link_rate else None
    return ShapedLink(trace, settings.link_latency)
