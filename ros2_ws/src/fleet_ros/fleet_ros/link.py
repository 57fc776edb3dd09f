"""The emulated link of a node. Its parameters are the same for ROG, LOPInfer and RRTO."""

from __future__ import annotations

from fleet_env.emulated.shaped import ShapedLink
from fleet_env.settings.base import Settings, setting
from fleet_env.settings.fleet import LinkConfig


class LinkSettings(Settings):
    """Settings of a node's link.

    If they contain neither trace nor rate nor latency, no link is emulated.
    """

    link: LinkConfig = LinkConfig(trace='')
    link_epoch: float = setting(0.0, 'wall-clock time at which the trace of an emulated link '
                                     'begins, the same on both sides; 0: when the nodes start, or '
                                     'for ROG when the training begins', 's', ge=0.0)

    def shaped_link(self) -> ShapedLink:
        """Return the link that these settings describe.

        :raises TraceError: the trace cannot be read.
        """
        return ShapedLink.from_config(self.link, self.link_epoch)
