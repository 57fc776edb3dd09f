"""A bounded buffer of the newest labelled images of a camera, live or recorded.

An image passes three stages. While its label may still come, it is *pending*. Then it has
*arrived*, still encoded. The training thread *takes* the newest arrived images, decodes them, and
*keeps* the few pixels that the model needs; it draws batches from the kept images. At every stage
the newest images replace the oldest, because a robot should learn from its present place. A robot
that computes slower than its camera loses images, but its memory does not grow.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from fleet_env.pictures import Picture
from numpy.typing import NDArray

from rog_tasks.errors import TaskError, some

LABELS = 4096
"""Maximum number of labels that are remembered; the newest labels replace the oldest."""

UNKNOWN = -1
"""Number in place of a label for an image without a label."""


@dataclass
class Frame:
    """An image that is still encoded, the time at which it was taken, and its label."""

    time: float
    picture: Picture
    label: int = UNKNOWN


class Frames:
    """The newest images with their labels; all times are seconds of the same clock.

    :param classes: names of the classes, in the order of their numbers.
    :param image: shape (channels, height, width) of the pixels.
    :param keep: largest number of kept images.
    :param memory: largest size of all images together, in bytes.
    :param tolerance: largest difference, in seconds, between the times of a label and its image.
        None means that images need no labels.
    :raises TaskError: the kept images would take more than half of ``memory``.
    """

    def __init__(self, classes: Sequence[str], image: tuple[int, int, int], keep: int,
                 memory: float, tolerance: float | None = None) -> None:
        size = keep * math.prod(image)
        if 2 * size > memory:
            raise TaskError(f'{keep} images of {"x".join(map(str, image))} take '
                            f'{size / 2**20:.1f} MiB, more than half of memory='
                            f'{memory / 2**20:g}; choose a smaller keep or more memory')
        self._numbers = {name: number for number, name in enumerate(classes)}
        self._tolerance = tolerance
        self._room = memory - size         # maximum bytes of all encoded images
        self._bytes = 0                    # size of the encoded images at present
        self._pending: deque[Frame] = deque()
        self._arrived: deque[Frame] = deque()
        self._pixels = np.empty((keep, *image), np.uint8)
        self._kept_labels = np.empty(keep, np.int64)
        self._label_times: deque[float] = deque(maxlen=LABELS)
        self._labels: deque[int] = deque(maxlen=LABELS)
        self.counts: Counter[str] = Counter()
        self.trouble = ''                  # the last refused message, and the reason
        self.trouble_at = -math.inf
        self.newest_image = -math.inf      # time of the newest image, also if it was refused
        # time of the newest image that has *arrived*: its label, if it needs one, is decided; it is
        # not decoded yet
        self.newest_arrived = -math.inf
        self.newest = -math.inf            # time of the newest image that is kept

    def __len__(self) -> int:
        """Return the number of images that are kept."""
        return min(self.counts['kept'], len(self._pixels))

    @property
    def bytes(self) -> int:
        """Bytes of all images at present."""
        return self._bytes + len(self) * math.prod(self._pixels.shape[1:])

    @property
    def pending(self) -> int:
        """Number of images whose label may still come."""
        return len(self._pending)

    def add(self, time: float, picture: Picture) -> None:
        """Add an image; if the buffer is full, forget the oldest encoded images."""
        self._seen(time)
        if picture.bytes > self._room:
            self._trouble(time, f'{picture.name}: an image of {picture.bytes} bytes is larger than '
                                'the buffer; give it more memory')
            return
        self._pending.append(Frame(time, picture))
        self._bytes += picture.bytes
        self.settle(time)
        while self._bytes > self._room or \
                len(self._pending) + len(self._arrived) > len(self._pixels):
            self._forget(self._arrived or self._pending)
            self.counts['never looked at'] += 1

    def refuse(self, time: float, why: str) -> None:
        """Count an invalid image, and remember why it is invalid."""
        self._seen(time)
        self._trouble(time, why)

    def label(self, time: float, name: str) -> None:
        """Add a label, the name of a class; count an unknown name."""
        self.counts['labels'] += 1
        number = self._numbers.get(name, UNKNOWN)
        if number == UNKNOWN:
            self.counts['unknown labels'] += 1
            self.trouble_at = time
            self.trouble = f'label {name[:40]!r} is not one of {some(list(self._numbers))}'
            return
        self._label_times.append(time)
        self._labels.append(number)
        self.settle(time)

    def settle(self, now: float) -> None:
        """Label every image whose nearest label is known by now; drop images without a label."""
        while self._pending and self._is_decided(self._pending[0], now):
            frame = self._pending[0]
            if self._tolerance is not None:
                frame.label = self._nearest(frame.time)
                if frame.label == UNKNOWN:
                    self._forget(self._pending)
                    self.counts['without a label'] += 1
                    continue
            self._arrived.append(self._pending.popleft())
            self.newest_arrived = frame.time

    def rewind(self) -> None:
        """Label or drop all pending images, and forget all labels.

        Call this method before the recording is played again, because each playback gives the
        messages the same times.
        """
        self.settle(math.inf)
        self._label_times.clear()
        self._labels.clear()

    def take(self, most: int) -> list[Frame]:
        """Return at most ``most`` of the newest arrived images; forget all other arrived images."""
        taken = list(self._arrived)[-most:]
        self.counts['never looked at'] += len(self._arrived) - len(taken)
        self._bytes -= sum(frame.picture.bytes for frame in self._arrived)
        self._arrived.clear()
        return taken

    def keep(self, frame: Frame, pixels: NDArray[np.uint8] | None, error: str = '') -> None:
        """Keep the pixels of a taken image, (channels, height, width), instead of the oldest image.

        ``pixels`` is None if the image could not be decoded; then ``error`` says why.
        """
        if pixels is None:
            self._trouble(frame.time, error)
            return
        at = self.counts['kept'] % len(self._pixels)
        self._pixels[at], self._kept_labels[at] = pixels, frame.label
        self.counts['kept'] += 1
        self.newest = frame.time

    def draw(self, count: int, generator: np.random.Generator
             ) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Return the pixels and the labels of at most ``count`` random images.

        The pixels are (images, channels, height, width).
        """
        chosen = generator.choice(len(self), min(count, len(self)), replace=False)
        return self._pixels[chosen], self._kept_labels[chosen]

    def _seen(self, time: float) -> None:
        self.counts['images'] += 1
        self.newest_image = time

    def _trouble(self, time: float, why: str) -> None:
        self.counts['refused'] += 1
        self.trouble, self.trouble_at = why, time

    def _is_decided(self, frame: Frame, now: float) -> bool:
        if self._tolerance is None or now > frame.time + self._tolerance:
            return True
        return bool(self._label_times) and self._label_times[-1] >= frame.time

    def _nearest(self, time: float) -> int:
        """Return the label nearest to a time, or UNKNOWN if that label is too far away in time."""
        after = bisect_left(self._label_times, time)
        near = [(abs(self._label_times[at] - time), self._labels[at])
                for at in (after - 1, after) if 0 <= at < len(self._labels)]
        distance, label = min(near, default=(math.inf, UNKNOWN))
        return label if self._tolerance is not None and distance <= self._tolerance else UNKNOWN

    def _forget(self, place: deque[Frame]) -> None:
        self._bytes -= place.popleft().picture.bytes
