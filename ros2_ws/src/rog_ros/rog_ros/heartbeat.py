"""How often statuses are sent: they are also heartbeats, and must not fill a slow link."""

SHARE = 0.05   # of the link's rate that statuses may take
OFTEN = 3      # statuses within the heartbeat limit, so that a lost one does not look like silence
EARLY = 0.02   # seconds by which a timer may ring too early


def is_due(since: float, nbytes: float, rate: float, limit: float) -> bool:
    """Return whether a link can take another status.

    :param since: seconds since the last status.
    :param nbytes: size of a status on the air.
    :param rate: bytes/s that the link carries.
    :param limit: the heartbeat limit in seconds.
    """
    return since >= min(nbytes / (SHARE * rate), limit / OFTEN) - EARLY
