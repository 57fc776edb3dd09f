"""QoS profiles. All publishers and subscriptions of a topic use the same profile."""

from fleet_ros.qos import STATUS, STREAM

__all__ = ['AGAIN', 'LAST_WORDS', 'STATUS', 'STREAM']

# An ending process says so every `AGAIN` seconds until its peer answers, at most `LAST_WORDS`
# seconds.
AGAIN, LAST_WORDS = 0.1, 0.5
