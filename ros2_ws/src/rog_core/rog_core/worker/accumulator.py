"""The worker's arrays: weights, momentum, and the gradients that the server has not received yet.

Source: dist-EF-SGDM (reference [22] of the ROG paper): blockwise compression with error feedback
and Nesterov momentum on the worker. The error of a lossy codec stays in ``pending`` and is sent
later. Rows that were not sent also stay in ``pending``.
"""

from __future__ import annotations

import numpy as np

from ..arrays import Array, accumulate, all_finite, copy_of, first_bad, zeros_like
from ..codecs import RAW, Codec, Part, at_once, in_model_order
from ..errors import GradientError
from ..model.partition import RowPartition

# `publish` drops a predicted step whose norm exceeds FARTHEST * sqrt(1 + norm of the model ** 2).
FARTHEST = 10.0


class Accumulator:
    """Flat float32 arrays (elements,) on one device, see `rog_core.arrays`.

    ``weights``: the model, to which pulled rows are added. ``model``: the memory on which
    gradients are computed; it is the same array as ``weights`` until `detach` separates them.
    ``pending``: sum of the steps (gradients times learning rate) that the server has not received
    yet. ``magnitude`` float32 (segments,): sum of |pending|. ``drift``: the part of the local
    steps of a `Phase` that the server has not received yet; None outside of phases. ``model``
    includes these steps, ``weights`` does not.

    Only for SVRG: ``full`` is this worker's full gradient, which must be pushed; None if there is
    none. ``anchor`` is a pair: an earlier model, and the fleet's full gradient at this model; or
    None.
    """

    def __init__(self, partition: RowPartition, weights: Array) -> None:
        if len(weights) != partition.elements:
            raise ValueError(f'weights have {len(weights)} elements; the partition has '
                             f'{partition.elements}')
        self.partition, self.weights, self.model = partition, weights, weights
        self.momentum = zeros_like(weights)
        self.pending = zeros_like(weights)
        self.magnitude = np.zeros(partition.segments, np.float32)
        self.rate = 0.0  # learning rate of the last step
        self.kept = 0    # number of calls of `keep_local`
        self.drift: Array | None = None
        self.full: Array | None = None
        self.anchor: tuple[Array, Array] | None = None

    def detach(self) -> None:
        """Give ``weights`` separate memory, so that pulled rows do not change ``model``."""
        if self.model is self.weights:
            self.weights = copy_of(self.weights)

    def publish(self, ahead: int = 0) -> None:
        """Copy ``weights`` to ``model``; do not call this function while a gradient is computed.

        ``ahead``: number of this worker's steps that are under way and not yet in the weights. Each
        of these steps is predicted from the momentum (SpecTrain's weight prediction). A prediction
        far away from the model is ignored. Such a prediction comes from a gradient that the server
        will refuse, and gradients at the predicted model would be useless, or NaN.
        """
        if self.model is not self.weights:
            self.model[:] = self.weights
            if ahead:
                # if the step overflows, it is infinite, and the condition below drops it
                with np.errstate(over='ignore'):
                    step = np.float32(ahead * self.rate) * self.momentum
                    far = float(step @ step)
                if far <= FARTHEST ** 2 * (1 + float(self.weights @ self.weights)):
                    self.model -= step

    def publish_own(self) -> None:
        """Store ``weights`` - ``drift`` in ``model``; before, separate the memory of both arrays.

        If there is no ``drift`` yet, it begins at zero.
        """
        if self.drift is None:
            self.drift = zeros_like(self.weights)
        self.detach()
        self.model[:] = self.weights
        self.model -= self.drift

    def keep_local(self, change: Array) -> None:
        """Add ``change``, the result of local steps, to ``pending`` and ``drift`` unscaled."""
        self.accumulate(change, 1.0, 0.0)
        self.kept += 1
        self.momentum[:] = 0  # a later method must not continue with this momentum
        if self.drift is not None:
            self.drift += change

    def settle(self, ids: np.ndarray) -> None:
        """Set ``drift`` to zero in the segments ``ids``, which have arrived at the server."""
        if self.drift is not None:
            zeros = np.zeros(4 * int(self.partition.lengths[ids].sum()), np.uint8)
            RAW.store(self.partition, self.drift, ids, zeros)

    def accumulate(self, gradient: Array, learning_rate: float, momentum: float = 0.9,
                   weight_decay: float = 0.0, nesterov: bool = True) -> None:
        """Add one step of SGD to `pending`.

        At first, m, the stored momentum, becomes momentum * m + gradient. Then the step is
        learning_rate * (gradient + momentum * m + weight_decay * model). If ``nesterov`` is false,
        the momentum is standard: the step is learning_rate * (m + weight_decay * model).

        The gradient must be finite, see `check`. If the step overflows float32, drop all pending
        rows: no server would accept these rows, so the worker would otherwise send them forever.
        """
        self.rate = learning_rate
        self.magnitude = accumulate(
            gradient, self.model, self.momentum, self.pending, learning_rate, momentum,
            weight_decay, self.partition.offsets, nesterov)
        if not np.isfinite(self.magnitude).all():
            self.reset()

    def clear(self) -> None:
        """Drop the steps that the server has not received."""
        self.pending[:] = 0
        self.magnitude[:] = 0

    def reset(self) -> None:
        """Drop the steps that the server has not received, and the momentum that contains them."""
        self.clear()
        self.momentum[:] = 0
        self.drift = None

    def check(self, gradient: Array) -> None:
        """Raise `GradientError` if the gradient is not finite."""
        if not all_finite(gradient):
            raise GradientError('the gradient holds NaN or infinite values: '
                                f'first in row {self._first_bad_row(gradient)}; lower the learning '
                                'rate or look at the data of this batch')

    def _first_bad_row(self, gradient: Array) -> str:
        bad = first_bad(gradient)
        row = int(np.searchsorted(self.partition.row_offsets, bad, side='right')) - 1
        return f'{row} of {self.partition.owner(bad)}'

    def mean_magnitude(self) -> np.ndarray:
        """Return the mean |pending| of each row, float32 (rows,)."""
        return self.partition.row_sum(self.magnitude) / self.partition.row_lengths

    @property
    def at_once(self) -> int:
        """See `rog_core.transfer.sender.Rows.at_once`."""
        return at_once(self.pending)

    def encode(self, codec: Codec, ids: np.ndarray) -> np.ndarray:
        """Encode segments ``ids`` of ``pending``; subtract the decoded values from ``pending``."""
        return codec.take(self.partition, self.pending, ids, self.magnitude[ids])

    def put_back(self, codec: Codec, parts: list[Part]) -> None:
        """Add the rows ``parts``, which have not arrived at the server, to ``pending`` again."""
        ids, values = in_model_order(codec, self.partition, parts)
        codec.add(self.partition, self.pending, ids, values)
