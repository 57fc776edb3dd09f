"""Checks a registration: decides whether a worker may join."""

from __future__ import annotations

from collections.abc import Mapping

from ..codecs import Codec
from ..errors import PartitionMismatchError, shown
from ..model.partition import Listing, Parameter, Role, RowPartition, require_same
from ..protocol.messages import PROTOCOL, RegisterRequest, RegisterResponse
from .member import Member

# maximum number of robots of a server; for each robot the server stores a copy of the model
MEMBERS = 256


def refusal(request: RegisterRequest, partition: RowPartition, codec: Codec,
            members: Mapping[str, Member], now: float, heartbeat_limit: float
            ) -> RegisterResponse | None:
    """Return the answer that refuses a registration, or None if the worker may join.

    ``partition``, ``codec`` and ``members`` belong to the server. ``now`` and ``heartbeat_limit``
    are in seconds.
    """
    if request.protocol != PROTOCOL:
        return RegisterResponse(False, f'{request.robot} speaks protocol {request.protocol}, '
                                f'this server {PROTOCOL}; install the same version on both')
    if request.codec != codec.name:
        theirs = shown(request.codec, 80)
        return RegisterResponse(False, f"{request.robot} has codec '{theirs}', this "
                                f"server '{codec.name}'; give both the same")
    try:
        # Compare only the lists of parameters; build no partition from the request. An unknown
        # sender can claim a model of any size, and the partition of a huge model could fill the
        # memory.
        require_same(Listing(tuple(Parameter(n, s, Role(r)) for n, s, r in request.parameters),
                             request.granularity), partition)
        if request.digest != partition.digest:
            raise PartitionMismatchError('the digest does not match the listed parameters')
    except PartitionMismatchError as error:
        return RegisterResponse(False, f'{request.robot} does not train the same model as this '
                                f'server: {error} (here: {request.robot}, there: the server)')
    other = members.get(request.robot)
    if other is None and len(members) >= MEMBERS:
        return RegisterResponse(False, f'this server already knows {MEMBERS} robots, the most that '
                                'it accepts')
    if other is not None and other.incarnation != request.incarnation and other.alive:
        age = now - other.patience.heard
        return RegisterResponse(
            False, f"a robot named '{request.robot}' is alive (heard {age:.1f} s ago); give "
            'each robot a name of its own. If it was restarted, it can join once its former '
            f'process is silent for {heartbeat_limit:g} s', retry=True)
    return None
