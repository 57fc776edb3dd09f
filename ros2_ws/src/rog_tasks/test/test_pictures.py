"""Images in messages are checked before use, and become pixels in every supported encoding."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from rog_tasks.errors import DataError
from rog_tasks.sources.pictures import ENCODINGS, LARGEST, Picture, decode, from_message
from sample_images import compressed, encoded, image, pixels


@pytest.mark.parametrize('encoding', ENCODINGS)
@pytest.mark.parametrize('padding', [0, 7])
def test_every_encoding_shows_the_same_picture(encoding, padding):
    rgb = pixels('red', 8, 8)
    grey = np.asarray(Image.fromarray(rgb).convert('L'))[..., None]
    alpha = np.full((8, 8, 1), 9, np.uint8)
    form = {'rgb8': rgb, 'bgr8': rgb[..., ::-1], 'mono8': grey,
            'rgba8': np.concatenate((rgb, alpha), 2),
            'bgra8': np.concatenate((rgb[..., ::-1], alpha), 2)}[encoding]
    rows = np.pad(form.reshape(8, -1), ((0, 0), (0, padding)))
    message = image('red', width=8, height=8, encoding=encoding, step=rows.shape[1],
                    data=rows.tobytes())
    found = decode(from_message(message, 'x'), 8, 3)
    wanted = np.repeat(grey, 3, 2) if encoding == 'mono8' else rgb
    assert (found == wanted.transpose(2, 0, 1)).all()
    assert (decode(from_message(message, 'x'), 8, 1) == grey.transpose(2, 0, 1)).all()


@pytest.mark.parametrize('form', ['JPEG', 'PNG'])
def test_a_compressed_image_is_decoded_and_scaled(form):
    message = compressed(encoded('blue', form, width=640, height=480))
    found = decode(from_message(message, 'x'), 16, 3)
    assert found.shape == (3, 16, 16) and found.dtype == np.uint8
    assert np.abs(found.mean((1, 2)) - (20, 30, 220)).max() < 10


@pytest.mark.parametrize('changes, words', [
    ({'encoding': '32FC1'}, "encoding '32FC1' is not one of rgb8"),
    ({'encoding': 'x' * 10**6}, 'xxxx'),
    ({'width': 0}, '0 x 10 pixels'), ({'height': 0}, '20 x 0'),
    ({'step': 59}, 'rows of 59 bytes'), ({'step': 61}, 'do not fit 600 bytes'),
    ({'height': 11}, 'do not fit'), ({'height': 2**32 - 1, 'step': 2**32 - 1}, 'do not fit'),
    ({'data': b''}, 'got 0'), ({'data': bytes(LARGEST + 1)}, f'bytes, got {LARGEST + 1}')])
def test_a_message_that_does_not_fit_itself_is_refused(changes, words):
    with pytest.raises(DataError, match=words) as error:
        from_message(image('red', **changes), '/camera')
    assert str(error.value).startswith('/camera: ') and len(str(error.value)) < 200


def bomb(width, height):
    """Return a tiny PNG file that claims to have ``width`` x ``height`` pixels."""
    def part(kind, data):
        return struct.pack('>I', len(data)) + kind + data + struct.pack(
            '>I', zlib.crc32(kind + data))
    head = struct.pack('>IIBBBBB', width, height, 8, 2, 0, 0, 0)
    return b'\x89PNG\r\n\x1a\n' + part(b'IHDR', head) + part(b'IDAT', zlib.compress(b'\0')) + \
        part(b'IEND', b'')


def bitmap():
    out = io.BytesIO()
    Image.fromarray(pixels('red')).save(out, 'BMP')
    return out.getvalue()


@pytest.mark.parametrize('data', [
    b'nothing', encoded('red')[:300], encoded('red', 'PNG')[:-30], bomb(30000, 30000),
    bomb(8000, 8200), bomb(8, 8), bitmap()])
def test_damaged_files_bombs_and_other_formats_are_named(data):
    with pytest.raises(DataError, match='^/camera: cannot be decoded'):
        decode(from_message(compressed(data), '/camera'), 8, 3)


def saved(rgb, mode, form='PNG', **options):
    """Return the pixels ``rgb``, (height, width, 3), as a picture encoded in a mode of Pillow."""
    out = io.BytesIO()
    if mode == 'I;16':  # pillow does not convert 8 bits to 16 bits
        grey = np.asarray(Image.fromarray(rgb).convert('L'))
        Image.fromarray(grey.astype(np.uint16) * 257).save(out, form, **options)
    else:
        Image.fromarray(rgb).convert(mode).save(out, form, **options)
    return Picture('x', out.getvalue())


@pytest.mark.parametrize('mode, form, options', [
    ('RGB', 'PNG', {}), ('RGBA', 'PNG', {}), ('P', 'PNG', {}), ('CMYK', 'JPEG', {'quality': 95}),
    ('P', 'PNG', {'transparency': 3}), ('P', 'PNG', {'transparency': bytes(range(200))}),
    ('L', 'PNG', {}), ('LA', 'PNG', {}), ('L', 'JPEG', {}), ('I;16', 'PNG', {}),
    ('I;16', 'PNG', {'transparency': 7})])
def test_every_mode_of_a_file_shows_the_same_picture(mode, form, options):
    """The decoder returns the same picture for every mode of Pillow; for grey modes, it is grey.

    An earlier version refused a palette with transparency, and made most 16-bit pixels white.
    """
    rgb = pixels('blue', 16, 16)
    rgb[:, 8:] //= 4  # darken one half
    wanted = rgb if mode in ('RGB', 'RGBA', 'P', 'CMYK') else \
        np.repeat(np.asarray(Image.fromarray(rgb).convert('L'))[..., None], 3, 2)
    found = decode(saved(rgb, mode, form, **options), 16, 3).transpose(1, 2, 0)
    for half in (np.s_[:, :8], np.s_[:, 8:]):
        assert np.abs(found[half].mean((0, 1)) - wanted[half].mean((0, 1))).max() < 12


@pytest.mark.parametrize('orientation, corner', [
    (1, 'top left'), (2, 'top right'), (3, 'bottom right'), (4, 'bottom left'), (5, 'top left'),
    (6, 'top right'), (7, 'bottom right'), (8, 'bottom left'), (9, 'top left')])
def test_an_image_is_set_upright_as_its_exif_says(orientation, corner):
    """The decoder sets an image upright according to its Exif data.

    A camera that is held sideways does not rotate the image; it only stores the orientation.
    """
    grey = np.zeros((32, 48, 3), np.uint8)
    grey[:16, :24] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = decode(saved(grey, 'RGB', 'JPEG', exif=exif), 16, 1)[0]
    light = found > 128
    rows, columns = (np.s_[:8] if side in corner else np.s_[8:] for side in ('top', 'left'))
    assert light[rows, columns].mean() > .9 and light.sum() < 80
