"""The error of this package."""


class FollowError(ValueError):
    """A peer has sent what no peer sends, or a version cannot be used; nothing has changed."""
