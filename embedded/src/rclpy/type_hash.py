"""Type hashes: what a type is, in 32 bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SIZE = 32


@dataclass(slots=True)
class TypeHash:
    """A hash of a message's definition.

    :param version: of the way to hash; -1 when there is no hash
    :param value: 32 bytes
    """

    version: int = -1
    value: bytes = bytes(_SIZE)

    def __setattr__(self, name: str, value: object) -> None:
        kind = int if name == "version" else bytes
        assert isinstance(value, kind), f"{name} must be of type {kind.__name__}, not {value!r}"
        object.__setattr__(self, name, value)

    def __str__(self) -> str:
        if self.version <= 0 or len(self.value) != _SIZE:
            return "INVALID"
        return f"RIHS{self.version:02}_{self.value.hex()}"

    @classmethod
    def _from_text(cls, text: str) -> TypeHash:
        """Read the words that `str` gives; no hash when they are something else."""
        match = re.fullmatch(r"RIHS([0-9]{2})_([0-9a-f]{64})", text)
        return cls(int(match[1]), bytes.fromhex(match[2])) if match else cls()
