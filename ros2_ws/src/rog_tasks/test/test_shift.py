"""With fog and brightness, images are still valid images."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rog_tasks.shift import Shift, brighten, fog


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9),
       st.floats(0, 1), st.floats(-1, 1), st.integers(0, 99))
def test_shape_and_range_are_kept(n, c, h, w, strength, brightness, seed):
    images = torch.rand(n, c, h, w, generator=generator(seed))
    before = images.clone()
    spoilt = Shift(strength, brightness)(images, generator(seed))
    assert spoilt.shape == images.shape and spoilt.dtype == images.dtype
    assert 0 <= spoilt.min() and spoilt.max() <= 1
    assert torch.equal(images, before)


def test_brightness_is_added_and_clipped():
    images = torch.tensor([[[[0., .5, .9]]]])
    assert brighten(images, .2).flatten().tolist() == pytest.approx([.2, .7, 1])
    assert brighten(images, -.6).flatten().tolist() == pytest.approx([0, 0, .3])


def test_no_shift_changes_nothing():
    images = torch.rand(2, 1, 8, 8, generator=generator())
    assert torch.equal(Shift(0, 0)(images, generator()), images)


def test_fog_whitens_and_takes_contrast():
    images = torch.rand(50, 1, 8, 8, generator=generator())
    foggy = fog(images, .6, generator())
    assert (foggy >= images).all()
    assert foggy.std() < images.std()
    black = fog(torch.zeros(50, 3, 8, 8), .6, generator())
    assert .3 - 1e-6 <= black.min() and black.max() <= .6 + 1e-6


def test_every_image_has_its_own_fog_and_the_channels_share_it():
    black = fog(torch.zeros(2, 3, 8, 8), .6, generator())
    assert not torch.equal(black[0], black[1])
    assert torch.equal(black[0, 0], black[0, 1])


def test_the_generator_decides():
    images = torch.rand(3, 1, 8, 8, generator=generator())
    shift = Shift(.5, .1)
    assert torch.equal(shift(images, generator(4)), shift(images, generator(4)))
    assert not torch.equal(shift(images, generator(4)), shift(images, generator(5)))


@pytest.mark.parametrize('strengths', [(-.1, 0), (1.1, 0), (0, 2), (float('nan'), 0)])
def test_impossible_strengths_are_refused(strengths):
    with pytest.raises(ValueError, match='between'):
        Shift(*strengths)
