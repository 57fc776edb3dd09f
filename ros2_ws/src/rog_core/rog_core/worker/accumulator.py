"""The worker's arrays: weights, momentum, and the gradients that the server has not received yet.

Source: dist-EF-SGDM (reference [22] of the ROG paper): blockwise compression with error feedback
and Nesterov momentum on the worker. The error of a lossy codec stays in ``pending`` and is sent
later. Rows that were not sent also stay in ``pending``.

The pending values of buffers are the changes by this robot's own batches: the buffers before a
computation minus those after it. They are sent raw, and stay in ``pending`` until the server has
received them, because the robot's own buffers are ``weights`` - ``pending``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from ..arrays import (
    Array,
    accumulate,
    all_finite,
    between,
    copy_of,
    difference_magnitude,
    first_bad,
    from_host,
    joined,
    zeros_like,
)
from ..codecs import RAW, Codec, Part, at_once, in_model_order
from ..errors import GradientError
from ..model.partition import Role, RowPartition

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

    ``own``, float32 (elements of the buffers,): the robot's own buffers, on which it computes.
    ``frozen``: function that returns the values of the frozen parameters, if there are any;
    ``enlarge``: function that makes room for them at the end of ``model``, and returns it.
    ``keeps_buffers``: whether the robot keeps its own buffers (FedBN), and pushes only their
    changes.

    Only for SVRG: ``full`` is this worker's full gradient, which must be pushed; None if there is
    none. ``anchor`` is a pair: an earlier model, and the fleet's full gradient at this model; or
    None.
    """

    def __init__(self, partition: RowPartition, weights: Array, own: Array | None = None,
                 frozen: Callable[[], Array] | None = None,
                 enlarge: Callable[[], Array] | None = None, keeps_buffers: bool = False) -> None:
        if len(weights) != partition.elements:
            raise ValueError(f'weights have {len(weights)} elements; the partition has '
                             f'{partition.elements}')
        self.partition, self.weights, self.model = partition, weights, weights
        self.own = copy_of(weights[partition.buffers]) if own is None else own
        self.frozen, self._enlarge = frozen, enlarge
        self._keeps, self._has_own = keeps_buffers, False
        # positions of the integers among the buffers
        self._integers: Array = from_host(np.flatnonzero(partition.are_integers), weights)
        self.momentum = zeros_like(weights)
        self.pending = zeros_like(weights)
        self.magnitude = np.zeros(partition.segments, np.float32)
        self.rate = 0.0  # learning rate of the last step
        self.kept = 0    # number of calls of `keep_local`
        self.switched: tuple[int, ...] = ()  # see `RowPartition.trained`
        self._held: list[slice] = []         # elements of the parameters that are frozen now
        self._initial: Array | None = None   # first values of the frozen parameters, see `grow`
        self.drift: Array | None = None
        self.full: Array | None = None
        self.anchor: tuple[Array, Array] | None = None

    def grow(self) -> None:
        """Make room for the frozen parameters, because a robot has unfrozen one of them.

        ``model`` grows later, in `follow`, because a gradient may be computed on it now.
        """
        if not self.partition.frozen:
            return
        assert self.frozen is not None, 'a model with frozen parameters needs `frozen`'
        self.detach()
        values = self._initial = copy_of(self.frozen())
        self.weights, self.partition = joined(self.weights, values), self.partition.grown
        more = zeros_like(values)
        self.momentum, self.pending = joined(self.momentum, more), joined(self.pending, more)
        if self.drift is not None:
            self.drift = joined(self.drift, more)
        self.magnitude = np.append(self.magnitude, np.zeros(
            self.partition.segments - self.magnitude.size, np.float32))
        self._hold()

    def restore_frozen(self) -> None:
        """Give frozen parameters their first values, from which a snapshot of the server begins.

        The server may have restarted from a checkpoint in which nothing had been unfrozen.
        """
        if self._initial is not None:
            self.weights[len(self.weights) - len(self._initial):] = self._initial

    def follow(self) -> None:
        """Let ``model`` grow, too; call this function only while no gradient is computed."""
        if len(self.model) < len(self.weights):
            assert self.frozen is not None, 'a model with frozen parameters needs `frozen`'
            self.model = joined(self.model, self.frozen()) if self._enlarge is None \
                else self._enlarge()

    def switch(self, switched: Iterable[int]) -> None:
        """Note which parameters the robot has frozen or unfrozen, see `RowPartition.trained`.

        The steps of a parameter that has become frozen are dropped, and its values in ``model``
        stay as they are until it is unfrozen, or the run ends.
        """
        if tuple(switched) != self.switched:
            self.switched = tuple(switched)
            self._hold()

    def _hold(self) -> None:
        starts = self.partition.starts
        self._held = [
            slice(int(starts[k]), int(starts[k + 1]))
            for k, parameter in enumerate(self.partition.parameters)
            if parameter.role in (Role.TRAINED, Role.FROZEN)
            and (parameter.role == Role.TRAINED) == (k in self.switched)]
        if self._held:
            self.detach()
        for part in self._held:
            self.momentum[part] = 0
            if self.drift is not None:
                self.drift[part] = 0
        self._drop_held()

    def _drop_held(self) -> None:
        """Drop the pending steps of frozen parameters, for example their weight decay."""
        offsets = self.partition.offsets
        for part in self._held:
            self.pending[part] = 0
            # the segments that lie within this parameter; with granularity model there are none
            first, end = np.searchsorted(offsets, (part.start, part.stop))
            self.magnitude[first:end] = 0

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
        self.follow()
        self._reconcile_buffers()
        if self.model is not self.weights:
            self._update_model(self.weights)
            if ahead:
                # if the step overflows, it is infinite, and the condition below drops it
                with np.errstate(over='ignore'):
                    step = np.float32(ahead * self.rate) * self.momentum
                    far = float(step @ step)
                if far <= FARTHEST ** 2 * (1 + float(self.weights @ self.weights)):
                    for part in self._held:
                        step[part] = 0
                    self.model -= step

    def _update_model(self, values: Array, less: Array | None = None) -> None:
        held = [copy_of(self.model[part]) for part in self._held]
        self.model[:] = values
        if less is not None:
            self.model -= less
        for part, former in zip(self._held, held, strict=True):
            self.model[part] = former

    def _reconcile_buffers(self) -> None:
        """Take the fleet's changes of buffers into the robot's own.

        The fleet and the robot may have changed a buffer for the same reason, such as a variance
        that begins at 1. The sum of both changes would then be too large, and a variance could
        become negative. So the robot's new value lies between its former one and the fleet's, and
        the rest of its pending change is dropped. Of integers, the larger one counts.
        """
        part, at = self.partition.buffers, self._integers
        if part.start == part.stop or self._keeps and self._has_own:
            return
        weights, pending = self.weights[part], self.pending[part]
        counted = self.own[at]
        self.own[:] = between(weights - pending, self.own, weights)
        self.own[at] = counted + (weights[at] - counted) * (weights[at] > counted)
        pending[:] = weights - self.own

    def publish_final(self) -> None:
        """Copy ``weights`` to ``model`` at the end of the run, frozen parameters included."""
        part = self.partition.buffers
        self.pending[part] = 0
        if not self._keeps:
            self.own[:] = self.weights[part]
        self._held = []
        self.publish()

    def publish_own(self) -> None:
        """Store ``weights`` - ``drift`` in ``model``; before, separate the memory of both arrays.

        If there is no ``drift`` yet, it begins at zero.
        """
        if self.drift is None:
            self.drift = zeros_like(self.weights)
        self.detach()
        self.follow()
        self._reconcile_buffers()
        self._update_model(self.weights, self.drift)

    def keep_buffers(self, change: Array) -> None:
        """Add the change of the buffers that is in ``change``, (elements,), to ``pending``."""
        buffers = self.partition.buffers
        if buffers.start == buffers.stop:
            return
        self.pending[buffers] += change[buffers]
        self.own -= change[buffers]
        self._has_own = True
        self._reconcile_buffers()
        self._measure_buffers()

    def _measure_buffers(self) -> None:
        part, segments = self.partition.buffers, self.partition.buffer_segments
        pending = self.pending[part]
        self.magnitude[segments] = difference_magnitude(
            pending, zeros_like(pending),
            self.partition.offsets[segments.start:segments.stop + 1] - part.start)

    def keep_local(self, change: Array) -> None:
        """Add ``change``, the result of local steps, to ``pending`` and ``drift`` unscaled."""
        self.accumulate(change, 1.0, 0.0)
        self.kept += 1
        self.momentum[:] = 0  # a later method must not continue with this momentum
        if self.drift is not None:
            for region in self.partition.optimised:
                self.drift[region.elements] += change[region.elements]
            for part in self._held:
                self.drift[part] = 0

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
        for region in self.partition.optimised:
            part = region.elements
            self.magnitude[region.segments] = accumulate(
                gradient[part], self.model[part], self.momentum[part], self.pending[part],
                learning_rate, momentum, weight_decay, region.offsets, nesterov)
        self._drop_held()
        if not np.isfinite(self.magnitude).all():
            self.reset()

    def clear(self, buffers: bool = False) -> None:
        """Drop the steps that the server has not received; ``buffers``: also their changes."""
        for region in self.partition.optimised:
            self.pending[region.elements] = 0
            self.magnitude[region.segments] = 0
        if buffers:
            self.pending[self.partition.buffers] = 0
            self.magnitude[self.partition.buffer_segments] = 0

    def reset(self) -> None:
        """Drop the steps that the server has not received, and the momentum that contains them."""
        self.clear(buffers=True)
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
        """Maximum number of bytes that one call of `encode` should return; 0: one window."""
        return at_once(self.pending)

    def encode(self, codec: Codec, ids: np.ndarray) -> np.ndarray:
        """Encode segments ``ids`` of ``pending``.

        The decoded values are subtracted from ``pending``; those of buffers later, see `received`.
        """
        if self.partition.are_buffers(ids):
            return RAW.snapshot(self.partition, self.pending, ids)
        return codec.take(self.partition, self.pending, ids, self.magnitude[ids])

    def received(self, parts: list[Part]) -> None:
        """Subtract the changes of buffers in ``parts``, which the server has received."""
        buffers = [part for part in parts if self.partition.are_buffers(part[0])]
        for ids, values in buffers:
            RAW.add(self.partition, self.pending, ids, values, -1.0)
        if buffers:
            self._measure_buffers()

    def put_back(self, codec: Codec, parts: list[Part]) -> None:
        """Add the rows ``parts``, which have not arrived at the server, to ``pending`` again."""
        ids, values = in_model_order(codec, self.partition, [
            part for part in parts if not self.partition.are_buffers(part[0])])
        codec.add(self.partition, self.pending, ids, values)
        self._drop_held()
