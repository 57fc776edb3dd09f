"""Local SGD (FedAvg): several steps on each robot between two exchanges."""

from __future__ import annotations

from rog_core.methods.base import Method
from rog_core.steps import Local, Step
from typing_extensions import override


class LocalSgd(Method):
    """``local:H``: BSP whose robots take H local steps of SGD before their models are averaged.

    Source: McMahan et al., Communication-efficient learning of deep networks from decentralized
    data, AISTATS 2017. An iteration of a robot is one exchange and takes H batches.
    """

    name = 'local'
    usage = 'local:H'
    known = ()

    @override
    def bounds(self) -> tuple[float, float]:
        self.steps = self.spec.threshold(1)
        return 1, 1

    @override
    def grant(self, robot: str, iteration: int) -> tuple[int, Step]:
        return iteration + 1, Local(self.steps)
