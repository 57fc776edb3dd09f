"""The base class of all sources of labelled images, with its settings and its report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from fleet_env.errors import PictureError
from fleet_env.pictures import Picture, decode
from numpy.typing import NDArray
from torch import Tensor

from rog_tasks.batches import Batch
from rog_tasks.errors import TaskError
from rog_tasks.sources.frames import UNKNOWN, Frames
from rog_tasks.sources.labels import Sure, Teacher
from rog_tasks.sources.spec import Spec


@dataclass(frozen=True)
class Report:
    """The state of a source, for users and monitors."""

    name: str
    level: str
    """ok, warn (something is lost), or error (it gives nothing)."""
    message: str
    values: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Wanted:
    """What a task expects of a source: names of classes, and images (channels, size, size)."""

    classes: Sequence[str]
    size: int
    channels: int
    seed: int

    def __post_init__(self) -> None:
        if isinstance(self.classes, str) or len(set(self.classes)) != len(self.classes) \
                or len(self.classes) < 2 or not all(isinstance(n, str) for n in self.classes):
            raise TaskError(f'classes are {self.classes!r}; they must be a list of at least two '
                            'different names')
        if not 1 <= self.size <= 4096 or self.channels not in (1, 3):
            raise TaskError('images must have 1 channel (grey) or 3 (colour) and size 1 to 4096 '
                            f'pixels, got {self.channels} channels and size {self.size}')

    @property
    def image(self) -> tuple[int, int, int]:
        """Shape of an image."""
        return self.channels, self.size, self.size


class Source(ABC):
    """Labelled images of one robot; made by :func:`rog_tasks.sources.open_source`."""

    def __init__(self, images: Spec, labels: Spec, wanted: Wanted) -> None:
        self._spec, self._label_spec, self._wanted = images, labels, wanted
        self._sure = Sure(labels.threshold)
        self._teacher: Teacher | None = None

    @abstractmethod
    def batches(self, rank: int, world: int, count: int) -> Iterator[Batch]:
        """Open the source, and return endless batches of at most ``count`` images.

        The images of a batch are float32 (images, channels, height, width), 0 to 1. The labels are
        int64, one per image, -1 for an image without a label. The robots divide the images of a
        folder. A recording or a topic belongs to one robot.

        :raises DataError: a file or topic is missing or invalid; the message names it, and what
            is available instead.
        """

    @abstractmethod
    def shard(self, rank: int, world: int, count: int) -> Iterator[Batch]:
        """Yield the images of robot ``rank`` of ``world`` once, in batches and in a fixed order.

        :raises TaskError: the source is a recording or a live topic, which has no shards.
        """

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross entropy of the images that have a label; 0 if no image has one.

        If the setting ``labels`` of the task is ``self``, an image without a label gets the model's
        own prediction as its label, provided that the model is sure.
        """
        if self._label_spec.kind == 'self':
            labels = self._sure.complete(logits, labels)
        total = torch.nn.functional.cross_entropy(logits, labels, ignore_index=UNKNOWN,
                                                  reduction='sum')
        return total / (labels != UNKNOWN).sum().clamp(min=1)

    def wait(self) -> None:  # noqa: B027 (only a live topic must be waited for)
        """Wait until there is an image to learn from.

        :raises SourceClosed: the run ends during the wait.
        """

    def close(self) -> None:  # noqa: B027
        """Make every waiting call raise `SourceClosed`, because the run has ended."""

    @abstractmethod
    def report(self) -> Report:
        """Return the present state of the source."""

    # -- for subclasses ---

    def _open_labels(self) -> None:
        if self._label_spec.kind == 'teacher' and self._teacher is None:
            spec = self._label_spec
            self._teacher = Teacher(spec.target, spec.weights, spec.threshold, self._wanted.image,
                                    len(self._wanted.classes))

    def _batch(self, pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> Batch:
        images = torch.from_numpy(pixels).float() / 255
        if self._teacher is not None:
            return images, self._teacher(images)
        return images, torch.from_numpy(labels)

    def _label_values(self) -> dict[str, Any]:
        kind = self._label_spec.kind
        if kind == 'self':
            asked, given = self._sure.asked, self._sure.given
        elif self._teacher is not None:
            asked, given = self._teacher.counts
        else:
            return {}
        return {f'labels asked of {kind}': asked, f'labels given by {kind}': given}

    def _generator(self, rank: int) -> np.random.Generator:
        return np.random.default_rng([self._wanted.seed % 2**63, rank, *b'source'])

    def _buffer_for(self, count: int) -> Frames:
        spec, labels = self._spec, self._label_spec
        if count > spec.keep:
            raise TaskError(f'keep must be at least the {count} images of a batch, got '
                            f'{spec.keep}; choose a larger keep')
        return Frames(self._wanted.classes, self._wanted.image, spec.keep, spec.memory * 2**20,
                      labels.tolerance if labels.kind == 'topic' else None)

    def _decode(self, picture: Picture) -> tuple[NDArray[np.uint8] | None, str]:
        """Return the pixels (channels, height, width) and ''.

        If the picture cannot be decoded, return None and the reason.
        """
        try:
            return decode(picture, self._wanted.image[1:], self._wanted.channels), ''
        except PictureError as error:
            return None, str(error)
