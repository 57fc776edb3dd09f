"""Settings of `core`."""

from __future__ import annotations

from typing import Literal

from fleet_env.settings.base import Settings, setting


class CoreSettings(Settings):
    """Settings that decide what is executed, and when and where actions are computed."""

    request_share: float = setting(
        0.5, 'share of a chunk: if no more than this is left in the queue, new actions are '
             'requested, or earlier so that the server can answer before the robot begins to '
             'compute itself; 1: all the time', gt=0.0, le=1.0)
    in_flight: int = setting(1, 'most requests to the server at a time', ge=1, le=16)
    aggregation: Literal['latest', 'weighted'] = setting(
        'latest', 'action for a time for which several chunks have one: that of the latest '
                  'observation, or the mean weighted by half_life')
    half_life: float = setting(0.3, 'age of an observation, relative to the latest one, at which '
                                    'its action counts half (aggregation: weighted)', 's', gt=0.0,
                               le=60.0)
    margin: float = setting(1.5, 'the robot begins to compute itself when the queue lasts for only '
                                 'this many times as long as that takes', ge=1.0, le=10.0)
    patience: float = setting(1.0, 'least time after which a request counts as lost', 's', gt=0.0,
                              le=60.0)
    safety: Literal['hold', 'stop'] = setting(
        'hold', 'what the robot does without an action. hold: positions are repeated, velocities '
                'and efforts are 0; stop: velocities and efforts are set to 0 once, then nothing '
                'is published')
    stale: float = setting(2.0, 'age of its observation from which an action counts as stale; it '
                                'is executed, and a warning says so', 's', gt=0.0, le=600.0)
    most_age: float = setting(0.0, 'age from which an action is no longer executed; 0: a chunk is '
                                   'executed to its end', 's', ge=0.0, le=600.0)
