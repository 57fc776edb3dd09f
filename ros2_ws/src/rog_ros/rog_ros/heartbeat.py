"""How often statuses and heartbeats are sent: they must not fill a slow link.

A status is sent when the link can take it. Between two statuses, a heartbeat, which has less than
half of the bytes, shows that the sender is alive; while it sends rows, those show it.
"""

SHARE = 0.05   # of the link's rate that statuses may take
RARELY = 4.0   # seconds after which a status is due whatever the link carries
OFTEN = 3      # messages within the heartbeat limit, so that a lost one does not look like silence
EARLY = 0.02   # seconds by which a timer may ring too early


def is_due(since: float, nbytes: float, rate: float) -> bool:
    """Return whether a link can take another status.

    :param since: seconds since the last status.
    :param nbytes: size of a status on the air.
    :param rate: bytes/s that the link carries.
    """
    return since >= min(nbytes / (SHARE * rate), RARELY) - EARLY


def beats_after(since: float, limit: float) -> bool:
    """Return whether a heartbeat is due, since nothing was sent for ``since`` seconds.

    :param limit: the heartbeat limit in seconds.
    """
    return since >= limit / OFTEN - EARLY
