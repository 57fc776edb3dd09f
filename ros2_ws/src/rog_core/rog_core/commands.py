"""The server's word on how a worker goes on, checked before anything of it is followed."""

from __future__ import annotations

import math

from .errors import ConfigError, RemoteProtocolError
from .messages import MAX_SHARDS, End, Kind, Work
from .sync import SyncMethod, parse_sync


def method_of(text: str) -> SyncMethod:
    """Return the method that the server names; `RemoteProtocolError` for one unknown here."""
    try:
        return parse_sync(text)
    except ConfigError as error:
        raise RemoteProtocolError('the server asks for a method that this worker does not know: '
                                  f'{error}') from error


def check_command(end: End) -> None:
    """Raise `RemoteProtocolError` if a worker cannot go on as the end of a pull says.

    Before the transfer is closed: a refused end must change nothing.
    """
    command = end.command
    if end.transfer.kind not in (Kind.PULL, Kind.ANCHOR) or command.stop:
        return
    method_of(command.sync)
    if command.next_iteration < 1:
        raise RemoteProtocolError(f'end of a pull grants iteration {command.next_iteration}')
    if not (command.mta_time >= 0 and math.isfinite(command.mta_time)):
        raise RemoteProtocolError(f'end of a pull has MTA time {command.mta_time}')
    if not command.patience >= 0:
        raise RemoteProtocolError(f'end of a pull has patience {command.patience}')
    if command.work is not None:
        _check_work(command.work)


def _check_work(work: Work) -> None:
    if not 1 <= work.shards <= MAX_SHARDS or not 0 < len(work.ids) == len(work.weights):
        raise RemoteProtocolError(f'end of a pull asks for {len(work.ids)} of {work.shards} '
                                  f'shards, with {len(work.weights)} weights')
    if not all(0 <= shard < work.shards for shard in work.ids):
        raise RemoteProtocolError(f'end of a pull asks for a shard that is none of {work.shards}')
    if not all(map(math.isfinite, work.weights)):
        raise RemoteProtocolError('end of a pull asks for a weight that is NaN or infinite')
