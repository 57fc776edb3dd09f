"""Images in messages are checked before they are used, and become pixels whatever their form."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from rog_tasks.errors import DataError
from rog_tasks.sources.pictures import ENCODINGS, LARGEST, decode, from_message
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
    ({'encoding': '32FC1'}, "encoding '32FC1' is none of rgb8"),
    ({'encoding': 'x' * 10**6}, 'xxxx'),
    ({'width': 0}, '0 x 10 pixels'), ({'height': 0}, '20 x 0'),
    ({'step': 59}, 'rows of 59 bytes'), ({'step': 61}, 'do not fit 600 bytes'),
    ({'height': 11}, 'do not fit'), ({'height': 2**32 - 1, 'step': 2**32 - 1}, 'do not fit'),
    ({'data': b''}, '0 bytes'), ({'data': bytes(LARGEST + 1)}, f'{LARGEST + 1} bytes')])
def test_a_message_that_does_not_fit_itself_is_refused(changes, words):
    with pytest.raises(DataError, match=words) as error:
        from_message(image('red', **changes), '/camera')
    assert str(error.value).startswith('/camera: ') and len(str(error.value)) < 200


def bomb(width, height):
    """A PNG that says it is larger than it is."""
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
