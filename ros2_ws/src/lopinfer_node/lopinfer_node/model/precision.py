"""How far a GPU may round below float32 in a model's operators: the same on robot and server.

PyTorch has these settings for a whole process, and only a GPU uses them. So the robot's settings
travel with its model, and the server computes the model with them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..errors import ModelError

AMPERE = 8, 0   # the first capability of a GPU that computes in TF32


@dataclass(frozen=True)
class Precision:
    """PyTorch's settings of rounding; the default is the precision of a CPU, which does not round.

    `matmul`, `convolution`: TF32 in matrix products, and in convolutions and recurrent layers.
    `float16`, `bfloat16`: sums of products of these types may have the type itself.
    """

    matmul: bool = False
    convolution: bool = False
    float16: bool = False
    bfloat16: bool = False

    @classmethod
    def of(cls, device: torch.device) -> Precision:
        """Return the precision with which this process computes on `device` now."""
        if device.type != 'cuda':
            return cls()
        now = cls.of_gpus()
        if _capability(device) >= AMPERE:
            return now
        return cls(float16=now.float16, bfloat16=now.bfloat16)

    @classmethod
    def of_gpus(cls) -> Precision:
        """Return this process's present settings for GPUs."""
        matmul: Any = torch.backends.cuda.matmul
        cudnn: Any = torch.backends.cudnn
        if hasattr(matmul, 'fp32_precision'):
            # PyTorch 2.9: reading `allow_tf32` raises an error in a program that sets the new names
            tf32 = matmul.fp32_precision == 'tf32', cudnn.conv.fp32_precision == 'tf32'
        else:
            tf32 = matmul.allow_tf32, cudnn.allow_tf32
        return cls(tf32[0], tf32[1], bool(matmul.allow_fp16_reduced_precision_reduction),
                   bool(matmul.allow_bf16_reduced_precision_reduction))

    def use(self) -> None:
        """Compute with this precision in the whole process from now on; a repeated call is cheap.

        Only a process that computes for others calls this: a user's program keeps its settings.
        """
        global _used
        if _used is self:
            return
        # These names exist in every version; they also set the new ones.
        matmul = torch.backends.cuda.matmul
        matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = self.matmul, self.convolution
        matmul.allow_fp16_reduced_precision_reduction = self.float16
        matmul.allow_bf16_reduced_precision_reduction = self.bfloat16
        _used = self

    @contextmanager
    def held(self) -> Iterator[None]:
        """Compute with this precision, as `use` does, and keep other threads from changing it.

        Threads with the same precision compute at the same time; one with another precision waits
        until they leave, and those that come after it wait for it.
        """
        global _holders, _wanted
        with _changed:
            while _holders and _used != self or _wanted not in (None, self):
                _wanted = _wanted or self
                _changed.wait()
            if _wanted is not None:
                _wanted = None
                _changed.notify_all()
            self.use()
            _holders += 1
        try:
            yield
        finally:
            with _changed:
                _holders -= 1
                _changed.notify_all()

    def as_json(self) -> dict[str, bool]:
        """Return the settings by name."""
        return asdict(self)

    @classmethod
    def from_json(cls, state: Any) -> Precision:
        """Return what `as_json` has written; raise ModelError for anything else."""
        if type(state) is not dict or state.keys() != cls().as_json().keys() \
                or not all(type(value) is bool for value in state.values()):
            raise ModelError(f'precision must have {", ".join(cls().as_json())}, each true or '
                             f'false, got {state}')
        return cls(**state)


_used: Precision | None = None   # the precision of the last call of `Precision.use`
_changed = threading.Condition()
_holders = 0                        # number of threads in `Precision.held`
_wanted: Precision | None = None    # the precision for which the first waiting thread waits


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
