"""Tests of pictures that cross a link as files: the pixels are those of the robot, or it hears."""

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from fleet_compute import pictures
from fleet_compute.inlets import (
    AGAIN,
    ALIKE,
    FILE,
    CodecError,
    Inlets,
    OtherPixels,
    decode,
    layout_of,
    share,
)
from fleet_compute.pictures import (
    Undecoded,
    decoded,
    file_of,
    picture_of,
    placed,
    same,
    tensor_of,
    typical,
)
from fleet_env.errors import PictureError
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


@given(st.sampled_from([('RGB', 'JPEG'), ('L', 'JPEG'), ('CMYK', 'JPEG'), ('RGB', 'PNG'),
                        ('P', 'PNG'), ('I;16', 'PNG')]),
       st.integers(1, 8), st.sampled_from([1, 3]), st.booleans(),
       st.sampled_from([None, (64, 48), (96, 200)]))
def test_a_picture_that_is_not_decoded_is_the_decoded_one(kind, orientation, channels, reverse,
                                                          size):
    encoded = file(120, 90, *kind, orientation)
    whole = tensor_of(encoded, size, channels, reverse)
    picture = picture_of(encoded, size, channels, reverse)
    assert picture.shape == whole.shape and picture.dtype == whole.dtype
    assert picture.device == whole.device and picture.numel() == whole.numel()
    assert isinstance(picture, Undecoded) and picture._made is None
    assert file_of(picture).body == file_of(whole).body
    assert torch.equal(picture, whole)


USES = [lambda x: x.float() / 255, lambda x: x[:, :, 1:, ::2], lambda x: torch.stack([x, x + 1]),
        lambda x: torch.from_numpy(x.numpy()), lambda x: torch.from_numpy(np.asarray(x).copy()),
        copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x)), lambda x: torch.tensor(x.tolist()),
        lambda x: torch.nn.functional.interpolate(x.float(), scale_factor=2),
        lambda x: torch.ops.aten.add.Tensor(x, 1), lambda x: x.clone().detach(),
        lambda x: x.add_(1), lambda x: x.to('cpu', torch.float64).sum(), lambda x: x.view(-1)[3:5],
        lambda x: torch.cat(list(x)), lambda x: torch.vmap(lambda y: y * 2)(x[None]),
        lambda x: torch.jit.trace(lambda y: y * 2, torch.zeros_like(x))(x),
        lambda x: torch.fx.symbolic_trace(torch.nn.ReLU())(x), lambda x: torch.clone(input=x)]


@pytest.mark.parametrize('use', USES)
@pytest.mark.parametrize('mode', [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.filterwarnings('ignore::DeprecationWarning')
def test_whatever_is_done_with_a_picture_is_done_with_its_pixels(use, mode):
    picture, whole = picture_of(file(32, 40)), tensor_of(file(32, 40))
    with mode():
        got = use(picture)
        assert type(got) is torch.Tensor and torch.equal(got, use(whole))
        assert torch.equal(picture, whole)     # also where it was changed
    assert (file_of(picture) is None) == (file_of(whole) is None)


def test_a_picture_stays_undecoded_on_the_cpu_only():
    picture = picture_of(file(32, 40))
    assert placed(picture, torch.device('cpu')) is picture
    assert decoded({'a': [picture]})['a'][0] is picture.decoded
    other = picture_of(file(32, 40))
    with pytest.raises((RuntimeError, AssertionError)):
        placed(other, torch.device('cuda'))     # there is none, but it was tried with pixels
    assert other._made is not None


def test_the_buffer_of_a_camera_may_be_used_again():
    buffer = bytearray(file(32, 40).data)
    picture = picture_of(Picture('camera', buffer))
    buffer[:] = bytes(len(buffer))
    assert torch.equal(picture, tensor_of(file(32, 40)))


def test_a_file_that_does_not_end_is_refused_at_once():
    data = file(64, 80).data
    with pytest.raises(PictureError):
        picture_of(Picture('cut', data[:-200]))
    with pytest.raises(PictureError):
        picture_of(Picture('other', b'GIF89a'))
    within = picture_of(Picture('damaged', file(64, 80, form='PNG').data[:200] + file(
        64, 80, form='PNG').data[-100:]))
    with pytest.raises(PictureError, match='damaged'):
        within.float()


def request(link, number, encoded, key='x'):
    """Send a picture of which the link decides whether it is decoded; return what is sent."""
    picture = picture_of(encoded)
    data = link.file(key, file_of(picture), picture.numel(), False)
    if data is None:
        data = link.encoded(key, picture.numpy().reshape(-1), layout_of(picture.shape),
                            file_of(picture))
    link.note(number)
    return bytes(data), picture


def test_files_of_a_kind_that_is_proved_are_not_decoded_by_the_robot():
    link = Inlets(lambda: RATE)
    kinds = []
    for k in range(2 * AGAIN + 1):
        data, picture = request(link, k + 1, file(64, 80, seed=k))
        kinds.append(data[0])
        assert (data[0] == ALIKE) == (picture._made is None)
        assert decode(data, picture.numel()).tobytes() == picture.numpy().tobytes()
    assert kinds[0] == FILE and kinds[1] == ALIKE       # and now and then they are proved again
    assert kinds.count(FILE) == 3 and kinds[AGAIN] == FILE
    assert request(link, 1, file(64, 96))[0][0] == FILE     # another kind
    assert request(link, 2, file(64, 96))[0][0] == ALIKE


@pytest.mark.parametrize('doubt', ['no answer', 'other pixels', 'another server'])
def test_a_kind_is_proved_by_an_answer_of_this_server(doubt):
    link = Inlets(lambda: RATE)
    request(link, 0 if doubt == 'no answer' else 1, file(64, 80))
    if doubt == 'other pixels':
        link.files = False
    elif doubt == 'another server':
        link.restart()
    assert request(link, 2, file(64, 80))[0][0] != ALIKE


def test_a_kind_is_proved_again_after_a_request_without_an_answer():
    link = Inlets(lambda: RATE)
    assert [request(link, answered, file(64, 80))[0][0] for answered in (1, 2, 0, 4, 5)] == [
        FILE, ALIKE, ALIKE, FILE, ALIKE]


def test_a_damaged_file_of_a_proved_kind_is_no_reason_to_send_pixels():
    link, whole = Inlets(lambda: RATE), file(64, 80, form='PNG')
    request(link, 1, whole)
    data = link.file('x', file_of(picture_of(whole)), 64 * 80 * 3, False)
    assert data[0] == ALIKE
    damaged = bytearray(data)
    damaged[len(damaged) // 2] ^= 255
    with pytest.raises(CodecError) as raised:
        decode(damaged, 64 * 80 * 3)
    assert type(raised.value) is CodecError


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
def test_damaged_files_are_refused(quick, data):
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


def test_a_usual_picture_takes_as_many_bytes_as_a_photograph(quick):
    pixels, jpeg = typical(224, 224), typical(224, 224, as_file=True)
    assert pixels.shape == jpeg.shape == (1, 3, 224, 224) and pixels.dtype == jpeg.dtype
    assert file_of(pixels) is None and torch.equal(pixels, typical(224, 224))
    layout = layout_of(pixels.shape)
    assert .4 < share(pixels.numpy().reshape(-1), layout, 4e6) < .7
    assert share(jpeg.numpy().reshape(-1), layout, 4e6, file_of(jpeg)) < .25
