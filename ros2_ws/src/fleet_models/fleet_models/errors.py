"""The error of this package."""


from fleet_link.errors import PeerError


class FollowError(PeerError):
    """A peer has sent what no peer sends, or a version cannot be used; nothing has changed."""
