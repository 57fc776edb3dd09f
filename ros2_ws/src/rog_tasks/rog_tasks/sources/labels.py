"""Labels images with probable predictions of a teacher or of the trained model."""

import torch
from fleet_env.errors import VersionError
from fleet_env.weights import load_weights as load_state
from torch import Tensor, nn

from rog_tasks.errors import DataError, TaskError
from rog_tasks.models import build_model
from rog_tasks.sources.frames import UNKNOWN


class Sure:
    """Labels an image with its most probable class, if that class is probable enough.

    :param threshold: minimum probability of the class, 0 to 1.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self.asked = self.given = 0

    def complete(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return ``labels``, with each UNKNOWN label replaced by the most probable class.

        An UNKNOWN label stays if ``logits`` make that class less probable than the threshold.
        """
        probability, guess = logits.detach().softmax(1).max(1)
        unknown = labels == UNKNOWN
        sure = unknown & (probability >= self._threshold)
        self.asked += int(unknown.sum())
        self.given += int(sure.sum())
        return torch.where(sure, guess, labels)


class Teacher:
    """A trained model that labels images.

    :param model: a key of :data:`rog_tasks.models.MODELS`, or ``package.module:Class``.
    :param weights: the weights of the model: a version, a run, or a file of a state_dict; see
        :func:`fleet_env.weights.load_weights`.
    :param threshold: minimum probability, 0 to 1, with which the most probable class
        becomes the label of an image.
    :param image: shape (channels, height, width) of the images.
    :param classes: number of classes.
    :raises TaskError: the model cannot be made, the weights do not fit the model, or the
        model does not fit the images or the number of classes.
    """

    def __init__(self, model: str, weights: str, threshold: float, image: tuple[int, int, int],
                 classes: int) -> None:
        self._model = build_model(model, {}, image[0], classes, 'teacher')
        load_weights(self._model, weights)
        self._model.eval()
        self._sure = Sure(threshold)
        with torch.no_grad():
            try:
                shape = tuple(self._model(torch.zeros(1, *image)).shape)
            except RuntimeError as error:
                raise TaskError(f'teacher {model!r} does not accept images of '
                                f'{"x".join(map(str, image))}: {error}') from error
        if shape != (1, classes):
            raise TaskError(f'teacher {model!r} gives {shape} for one image; there are {classes} '
                            'classes')

    @property
    def counts(self) -> tuple[int, int]:
        """Number of images that the teacher was given, and number of labels that it gave."""
        return self._sure.asked, self._sure.given

    def __call__(self, images: Tensor) -> Tensor:
        """Return the label of each image, UNKNOWN where the teacher is not sure."""
        with torch.inference_mode():
            logits = self._model(images)
        return self._sure.complete(logits.clone(), torch.full((len(images),), UNKNOWN))


def load_weights(model: nn.Module, path: str) -> None:
    """Fill a model, in place, from a version, a run, or a file of a state_dict.

    :raises DataError: there is no such file, it cannot be read, or its tensors do not fit the
        model. The message names the file, and the first tensor that does not fit.
    """
    try:
        load_state(model, path)
    except VersionError as error:
        raise DataError(str(error)) from error
