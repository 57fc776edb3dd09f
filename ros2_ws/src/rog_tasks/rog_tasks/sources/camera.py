"""A live topic of images as a source: the robot's node adds images, the training reads them.

Two threads use a source. The receiving thread calls `on_image` and `on_label`, which only check and
keep messages. The training thread removes images from the buffer, decodes them, and waits if
there are none.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from fleet_env.errors import PictureError
from fleet_env.pictures import from_message

from rog_tasks.batches import Batch
from rog_tasks.errors import SourceClosed, TaskError
from rog_tasks.sources.frames import Frames
from rog_tasks.sources.source import Report, Source, Wanted
from rog_tasks.sources.spec import Spec

LATE = 1.0
"""Seconds without an image after which the camera counts as interrupted."""

LOOK = 0.2
"""Seconds between two checks of the clock while waiting for an image."""


class CameraSource(Source):
    """The newest labelled images of a topic; the time of a message is the time of its arrival.

    If no usable image comes, training continues with the images in the buffer for ``patience``
    seconds. Then training pauses until the next image, and `report` says so.

    :param clock: returns the time in seconds; tests pass their own clock.
    """

    def __init__(self, images: Spec, labels: Spec, wanted: Wanted,
                 clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(images, labels, wanted)
        self._buffer: Frames | None = None  # None before training begins
        self._clock = clock
        self._changed = threading.Condition()
        self._closed = False
        self._hint = ''
        self._blocked = math.inf  # time since which the training waits; infinity: it does not wait

    @property
    def image_topic(self) -> str:
        """Topic of the images, as the task names it."""
        return self._spec.target

    @property
    def label_topic(self) -> str:
        """Topic of the labels, as the task names it; '' if the labels do not come from a topic."""
        return self._label_spec.target if self._label_spec.kind == 'topic' else ''

    # -- the side that receives messages ---

    def on_image(self, message: Any) -> None:
        """Add a sensor_msgs Image or CompressedImage to the buffer; count it if it is invalid."""
        with self._changed:
            if self._buffer is None:
                return
            now = self._clock()
            try:
                self._buffer.add(now, from_message(message, self.image_topic))
            except PictureError as error:
                self._buffer.refuse(now, str(error))
            self._changed.notify_all()

    def on_label(self, message: Any) -> None:
        """Store the label in a std_msgs String, with the time of its arrival."""
        with self._changed:
            if self._buffer is not None:
                self._buffer.label(self._clock(), message.data)
                self._changed.notify_all()

    def hint(self, text: str) -> None:
        """Set the text that fault reports add about missing topics; '' if no topic is missing."""
        with self._changed:
            self._hint = text

    def close(self) -> None:
        """Make every waiting call raise `SourceClosed`, because the run has ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def report(self) -> Report:
        """Return whether usable images come; if they do not, return the fault."""
        name = f'camera {self.image_topic}'
        with self._changed:
            now, buffer = self._clock(), self._buffer
            if buffer is None:
                return Report(name, 'ok', 'training has not begun')
            buffer.settle(now)
            values = {**buffer.counts, 'in the buffer': len(buffer),
                      'waiting for a label': buffer.pending,
                      'buffer (KiB)': buffer.bytes // 1024, **self._label_values()}
            fault = self._fault(now, buffer)
            if now - self._blocked > LATE or not math.isinf(self._blocked) \
                    and now - buffer.newest_arrived > LATE:
                return Report(name, 'error', f'{fault or "too few images come"}; training is '
                                             'paused until one can be used', values)
            if now - buffer.newest_arrived > LATE:
                left = max(self._spec.patience - (now - buffer.newest), 0.0)
                return Report(name, 'warn', f'{fault}; training goes on with the {len(buffer)} '
                                            f'images in the buffer for {left:.0f} s', values)
            recent = now - buffer.trouble_at <= self._spec.patience
            return Report(name, 'warn' if recent else 'ok', f'some is refused; last '
                          f'{buffer.trouble}' if recent else 'images come', values)

    # -- the side that trains ---

    def batches(self, rank: int, world: int, count: int) -> Iterator[Batch]:
        """Return endless batches, drawn at random from the kept images; wait for enough images."""
        if self._buffer is not None:
            raise TaskError(f'the camera {self.image_topic} serves one robot once; a method that '
                            'gives copies of shards to robots needs a folder of images')
        self._open_labels()
        with self._changed:
            self._buffer = self._buffer_for(count)
        return self._draw(self._buffer, count, self._generator(rank))

    def shard(self, rank: int, world: int, count: int) -> Iterator[Batch]:
        """Raise TaskError, because a live topic has no end, and thus no shard."""
        raise TaskError(f'the camera {self.image_topic} has no whole shard; this method of '
                        'training needs a folder of images')

    def wait(self) -> None:
        """Wait until there is a usable image; before the first call of `batches`, do not wait.

        :raises SourceClosed: the run ends during the wait.
        """
        if self._buffer is not None:
            self._gather(self._buffer, 1)

    def _draw(self, buffer: Frames, count: int, generator: np.random.Generator) -> Iterator[Batch]:
        while True:
            self._gather(buffer, count)
            yield self._batch(*buffer.draw(count, generator))

    def _gather(self, buffer: Frames, need: int) -> None:
        """Decode and keep arrived images until ``need`` images are kept.

        Also wait until the newest kept image is at most ``patience`` seconds old.
        """
        while True:
            with self._changed:
                if self._closed:
                    raise SourceClosed(f'the run ended before {self.image_topic} gave an image')
                buffer.settle(self._clock())
                taken = buffer.take(need)
            # decoding is slow, so it happens without the lock
            found = [self._decode(frame.picture) for frame in taken]
            with self._changed:
                for frame, (pixels, error) in zip(taken, found, strict=True):
                    buffer.keep(frame, pixels, error)
                now = self._clock()
                if len(buffer) >= need and now - buffer.newest <= self._spec.patience:
                    self._blocked = math.inf
                    return
                self._blocked = min(self._blocked, now)
                if not taken:
                    self._changed.wait(LOOK)

    def _fault(self, now: float, buffer: Frames) -> str:
        """Return why no usable image comes; '' if there is no fault."""
        hint = self._hint and f': {self._hint}'
        if now - buffer.newest_image > LATE:
            since = 'no image has come' if math.isinf(buffer.newest_image) else \
                f'no image for {now - buffer.newest_image:.0f} s'
            return f'{since} on topic {self.image_topic}{hint}'
        last = f'; last {buffer.trouble}' if buffer.trouble else ''
        if self.label_topic and now - buffer.newest_arrived > LATE:
            return (f'images come without a label within {self._label_spec.tolerance:g} s of them '
                    f'on topic {self.label_topic}{hint}{last}')
        return f'images come that cannot be used{last}' if buffer.trouble else ''
