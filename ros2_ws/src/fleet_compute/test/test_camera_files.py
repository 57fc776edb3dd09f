"""Tests of pictures that cross a link as files: the pixels are those of the robot, or it hears."""

import io

import numpy as np
import pytest
import torch
from fleet_compute import pictures
from fleet_compute.inlets import (
    FILE,
    CodecError,
    Inlets,
    OtherPixels,
    decode,
    layout_of,
    share,
)
from fleet_compute.pictures import file_of, same, tensor_of, typical
from fleet_env.pictures import Picture
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile

RATE = 1e6


def file(rows, columns, mode='RGB', form='JPEG', orientation=1, seed=0):
    """Return an encoded picture of noise that is smooth."""
    channels = len(Image.new(mode, (1, 1)).getbands())
    small = np.random.default_rng(seed).integers(0, 256, (5, 7, channels), np.uint8)
    image = Image.fromarray(small[..., 0] if channels == 1 else small, mode if channels != 1 else
                            'L').resize((columns, rows), Image.Resampling.BICUBIC)
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = io.BytesIO()
    image.save(data, form, exif=exif)
    return Picture('a picture', data.getvalue())


def sent(tensor, form=torch.contiguous_format, rate=RATE, files=True):
    """Return what is sent for a tensor, and its bytes in the order of memory."""
    mixed = form is not torch.contiguous_format
    elements = tensor.permute(*((0, 2, 3, 1) if mixed else (0, 1, 2, 3))).contiguous().numpy()
    elements, layout = elements.reshape(-1), layout_of(tensor.shape, mixed)
    data = Inlets(lambda: rate).encoded('x', elements, layout, file_of(tensor) if files else None)
    return data, elements.tobytes()


@given(st.sampled_from([('RGB', 'JPEG'), ('L', 'JPEG'), ('CMYK', 'JPEG'), ('RGB', 'PNG'),
                        ('RGBA', 'PNG'), ('L', 'PNG')]),
       st.integers(1, 8), st.sampled_from([1, 3]), st.booleans(),
       st.sampled_from([None, (64, 48), (96, 200)]),
       st.sampled_from([torch.contiguous_format, torch.channels_last]))
def test_the_other_side_gets_the_pixels_from_the_file(kind, orientation, channels, reverse, size,
                                                      form):
    tensor = tensor_of(file(120, 90, *kind, orientation), size, channels, reverse)
    assert tensor.shape[:2] == (1, channels) and (size is None or tensor.shape[2:] == size)
    data, elements = sent(tensor, form if channels > 1 else torch.contiguous_format)
    assert (bytes(data) if len(data) == len(elements) else
            decode(data, len(elements)).tobytes()) == elements


def test_the_file_is_sent_where_it_takes_less_time():
    tensor = tensor_of(file(480, 640))
    assert sent(tensor)[0][0] == FILE
    without, _ = sent(tensor, files=False)
    assert without[0] != FILE and len(without) > 3 * len(sent(tensor)[0])
    large = tensor_of(file(1200, 1600, seed=1), (32, 32))    # its file has more bytes than pixels
    assert len(file(1200, 1600, seed=1).data) > 32 * 32 * 3 and sent(large)[0][0] != FILE
    assert len(sent(tensor, rate=1e9)[0]) == tensor.nbytes


def test_a_changed_tensor_has_no_file():
    tensor = tensor_of(file(64, 64))
    assert file_of(tensor) is not None and file_of(tensor.clone()) is None
    assert file_of(same(tensor, tensor.clone())).body == file_of(tensor).body
    tensor[0, 0, 0, 0] ^= 1
    assert file_of(tensor) is None and file_of(same(tensor, tensor.clone())) is None
    with torch.inference_mode():    # here changes are not counted
        assert file_of(tensor_of(file(64, 64))) is None


def test_other_pixels_are_noticed(monkeypatch):
    """A server with another library, and a file that is not that of the tensor, are noticed."""
    tensor = tensor_of(file(64, 80))
    data, elements = sent(tensor)
    original = pictures.decode
    monkeypatch.setattr(pictures, 'decode', lambda *a: original(*a) ^ np.uint8(1))
    with pytest.raises(OtherPixels, match='another version of Pillow'):
        decode(data, len(elements))
    monkeypatch.undo()
    changed = tensor.numpy()
    changed[0, 0, 0, 0] ^= 1        # numpy's changes are not counted
    data, elements = sent(tensor)
    with pytest.raises(OtherPixels):
        decode(data, len(elements))


def test_a_file_that_only_the_robot_decodes_is_noticed(monkeypatch):
    """Else each request of this camera would fail; many programs set this variable of Pillow."""
    whole = file(64, 80).data
    monkeypatch.setattr(ImageFile, 'LOAD_TRUNCATED_IMAGES', True)
    data, elements = sent(tensor_of(Picture('a picture', whole[:-2])))
    monkeypatch.undo()
    assert data[0] == FILE
    with pytest.raises(OtherPixels, match='must be decoded here, too.*truncated'):
        decode(data, len(elements))


def test_a_side_that_decodes_differently_gets_pixels():
    link, tensor = Inlets(lambda: RATE), tensor_of(file(64, 80))
    given = ('x', tensor.numpy().reshape(-1), layout_of(tensor.shape), file_of(tensor))
    assert link.encoded(*given)[0] == FILE
    link.files = False
    assert link.encoded(*given)[0] != FILE


@given(st.data())
def test_damaged_files_are_refused(data):
    tensor = tensor_of(file(40, 30))
    whole, elements = sent(tensor)
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= data.draw(st.integers(1, 255))
    damaged = damaged[:data.draw(st.integers(0, len(damaged)))]
    try:
        assert decode(damaged, len(elements)).tobytes() == elements
    except CodecError:
        pass


def test_a_file_that_claims_many_pixels_is_refused():
    data = io.BytesIO()
    Image.new('L', (5000, 4000)).save(data, 'PNG')
    for side in (64, 2000):     # 64 x 64 are few of 20 megapixels, and these are many
        assert file_of(tensor_of(Picture('large', data.getvalue()), (side, side), 1)) is None
    whole, elements = sent(tensor_of(file(64, 64, 'L'), None, 1))
    with pytest.raises(CodecError, match='5000 x 4000 pixels; at most'):
        decode(whole[:29] + data.getvalue(), len(elements))


def test_a_usual_picture_takes_as_many_bytes_as_a_photograph():
    pixels, jpeg = typical(224, 224), typical(224, 224, as_file=True)
    assert pixels.shape == jpeg.shape == (1, 3, 224, 224) and pixels.dtype == jpeg.dtype
    assert file_of(pixels) is None and torch.equal(pixels, typical(224, 224))
    layout = layout_of(pixels.shape)
    assert .4 < share(pixels.numpy().reshape(-1), layout, 4e6) < .7
    assert share(jpeg.numpy().reshape(-1), layout, 4e6, file_of(jpeg)) < .25
