"""Versions of the model that a fleet learns: offered by its server, taken up by whoever uses it.

`follow(model)` is for a program's own loop; LOPInfer and the policy node have it as an option.
"""

from .following import Follower, Following, FollowOptions, Replacing, follow

__all__ = ['FollowOptions', 'Follower', 'Following', 'Replacing', 'follow']
