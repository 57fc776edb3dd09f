"""Parameters of a node whose model follows what a fleet learns."""

from __future__ import annotations

from pathlib import Path

from fleet_env.settings.base import Settings, setting

from .following import FollowOptions
from .taking import MARGIN, Check


class FollowSettings(Settings):
    """What a node follows; it takes up versions between two inferences."""

    follow: str = setting('', 'namespace of a fleet, such as /rog: the node takes up what the '
                              'fleet learns, between two inferences; local: what the worker of '
                              'this robot trains; empty: its weights stay', empty=True)
    follow_margin: float = setting(MARGIN, 'a version is taken up if its accuracy is at most so '
                                           'much below that of the one in use', ge=0.0, le=1.0)
    keep: str = setting('', 'folder that keeps the version in use for the next start; empty: none',
                        empty=True)

    def followed(self, check: Check | None = None) -> FollowOptions:
        """Return these settings as options of a follower with the node's own check."""
        return FollowOptions(self.follow, margin=self.follow_margin, check=check,
                             keep=Path(self.keep).expanduser() if self.keep else None)
