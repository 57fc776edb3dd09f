"""The signature of a fleet's server on its statuses, and the public number of a process.

All robots read the statuses of the fleet, also robots that have not registered yet. So these
statuses are signed. A robot's key file can check signatures but cannot make them.
"""

from __future__ import annotations

import hashlib
from typing import Any

from fleet_link.key import Key, Signer
from fleet_ros.sealing import canonical, octets
from rog_core.server.admission import MEMBERS


def process_of(incarnation: int) -> int:
    """Return the public number of a process; it does not reveal the secret incarnation."""
    digest = hashlib.blake2b(incarnation.to_bytes(8, 'little'), digest_size=8, person=b'rog life')
    return int.from_bytes(digest.digest(), 'little')


class Signature:
    """Signs and checks the statuses of a fleet's server; a robot's key can only check them."""

    def __init__(self, key: Key) -> None:
        self._signer = Signer(key)

    def sign(self, status: Any) -> None:
        """Sign ``status``: write the signature into its field ``tag``."""
        status.tag = octets(self._signer.sign(canonical(status)))

    def proves(self, status: Any) -> bool:
        """Return whether a server with the fleet key has signed this status, now or earlier."""
        # The time of a check grows with the length of the status, so refuse a status with too many
        # robots.
        return len(status.robots) <= MEMBERS and self._signer.proves(bytes(status.tag),
                                                                     canonical(status))
