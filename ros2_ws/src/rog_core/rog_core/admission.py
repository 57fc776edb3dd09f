"""The checks of a registration: whether a worker may join."""

from __future__ import annotations

from .codecs import Codec
from .errors import ConfigError, PartitionMismatchError
from .member import Member
from .messages import PROTOCOL, RegisterRequest, RegisterResponse
from .partition import RowPartition, partition_of


def refusal(request: RegisterRequest, partition: RowPartition, codec: Codec, other: Member | None,
            now: float, heartbeat_limit: float) -> RegisterResponse | None:
    """Return the refusal of a request, None if the worker may join.

    ``partition`` and ``codec`` are the server's; ``other``: the member of that name, if any.
    """
    if request.protocol != PROTOCOL:
        return RegisterResponse(False, f'{request.robot} speaks protocol {request.protocol}, '
                                f'this server {PROTOCOL}; install the same version on both')
    if request.codec != codec.name:
        return RegisterResponse(False, f"{request.robot} has codec '{request.codec}', this "
                                f"server '{codec.name}'; give both the same")
    try:
        theirs = partition_of(request.parameters, request.granularity, request.codec)
        theirs.require_same(partition)
        if theirs.digest != request.digest:
            raise PartitionMismatchError('the digest does not belong to the parameters listed')
    except (PartitionMismatchError, ConfigError) as error:
        return RegisterResponse(False, f'{request.robot} does not train the same model as this '
                                f'server: {error} (here: {request.robot}, there: the server)')
    if other is not None and other.incarnation != request.incarnation and other.alive:
        age = now - other.heard
        return RegisterResponse(
            False, f"a robot named '{request.robot}' is alive (heard {age:.1f} s ago); give "
            'each robot a name of its own. If it was restarted, it is let in once its former '
            f'life is silent for {heartbeat_limit:g} s', retry=True)
    return None
