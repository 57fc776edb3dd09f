"""Data sets that need no file are correct, and data sets of a wrong form are refused."""

import sys
from importlib.metadata import PackageNotFoundError

import pytest
import torch
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rog_tasks.data import ImageData, digits
from rog_tasks.errors import DataError
from rog_tasks.shapes import shapes


def test_digits_are_split_evenly_over_the_classes():
    data = digits(3)
    assert data.train_images.shape == (1437, 1, 8, 8) and data.test_images.shape == (360, 1, 8, 8)
    assert data.train_images.min() == 0 and data.train_images.max() == 1
    assert torch.bincount(data.test_labels).min() >= 34
    assert torch.equal(data.train_labels, digits(3).train_labels)
    assert not torch.equal(data.train_labels, digits(4).train_labels)


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch):
    def missing(name):
        raise PackageNotFoundError(name)
    monkeypatch.setattr('rog_tasks.data.version', missing)
    with pytest.raises(DataError, match='pip install scikit-learn'):
        digits()


def test_digits_are_read_by_scikit_learn_once(tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    first = digits(3)
    for module in ('sklearn', 'sklearn.datasets', 'sklearn.model_selection'):
        monkeypatch.setitem(sys.modules, module, None)
    again = digits(3)
    assert torch.equal(first.train_images, again.train_images)
    assert torch.equal(first.test_labels, again.test_labels)
    with pytest.raises(ImportError):
        digits(4)


@examples(15)
@given(st.integers(2, 12), st.integers(12, 80), st.integers(12, 40), st.integers(8, 33),
       st.integers(1, 3), st.integers(0, 2**31 - 1))
def test_shapes_of_any_size_are_evenly_dealt_and_follow_the_seed(classes, train, test, size,
                                                                 channels, seed):
    data, again = (shapes(train, test, size, channels, classes, seed) for _ in range(2))
    assert data.train_images.shape == (train, channels, size, size)
    assert data.test_images.shape == (test, channels, size, size)
    assert 0 <= data.train_images.min() and data.train_images.max() <= 1
    for labels in (data.train_labels, data.test_labels):
        counts = torch.bincount(labels, minlength=classes)
        assert counts.max() - counts.min() <= 1 and counts.min() >= 1
    assert torch.equal(data.train_images, again.train_images)
    assert torch.equal(data.test_labels, again.test_labels)
    other = shapes(train, test, size, channels, classes, seed + 1)
    assert not torch.equal(data.train_images, other.train_images)


def test_shapes_are_not_told_apart_by_the_nearest_mean():
    """The data set `shapes` cannot be solved by choosing the class with the nearest mean image.

    In contrast to the digits, each class has several forms, which resemble forms of other classes.
    """
    data = shapes(3000, 1000)
    images, truth = data.train_images.flatten(1), data.test_labels
    means = torch.stack([images[data.train_labels == label].mean(0) for label in range(10)])
    nearest = torch.cdist(data.test_images.flatten(1), means).argmin(1)
    assert .1 < (nearest == truth).float().mean() < .6


@pytest.mark.parametrize('options', [{'classes': 1}, {'test': 9}, {'size': 7}, {'channels': 0},
                                     {'train': 0}])
def test_shapes_that_cannot_be_are_refused(options):
    with pytest.raises(DataError, match='are needed'):
        shapes(**options)


@pytest.mark.parametrize('images, labels, words', [
    (torch.zeros(2, 8, 8), torch.zeros(2, dtype=torch.int64), 'must be'),
    (torch.zeros(2, 1, 8, 8), torch.zeros(3, dtype=torch.int64), 'must be'),
    (torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64), 'n > 0'),
    (torch.zeros(2, 1, 8, 8), torch.zeros(2), 'uint8 or float32 and int64'),
    (torch.zeros(2, 1, 8, 8), torch.tensor([0, 5]), 'between 0 and 4'),
])
def test_data_of_the_wrong_form_is_refused(images, labels, words):
    with pytest.raises(DataError, match=words):
        ImageData(images, labels, images, labels, 5)
