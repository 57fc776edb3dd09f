"""Images in messages are checked before use, and become pixels in every supported encoding."""

import io
import struct
import warnings
import zlib

import numpy as np
import pytest
from fleet_env import pictures as fleet_pictures
from fleet_env.errors import PictureError
from fleet_env.pictures import (
    ENCODINGS,
    LARGEST,
    MOST_SCANS,
    Picture,
    decode,
    decode_depth,
    from_message,
)
from PIL import Image
from sample_images import compressed, encoded, image, pixels


@pytest.mark.parametrize('encoding', ENCODINGS)
@pytest.mark.parametrize('padding', [0, 7])
@pytest.mark.parametrize('big', [0, 1])
def test_every_encoding_shows_the_same_picture(encoding, padding, big):
    rgb = pixels('red', 6, 8)
    grey = np.asarray(Image.fromarray(rgb).convert('L'))[..., None]
    alpha = np.full((8, 6, 1), 9, np.uint8)
    # 8UC3 and 8UC4 do not name their channels; OpenCV's order is blue, green, red.
    channels = {'8UC1': 'mono', '8UC3': 'bgr', '8UC4': 'bgra'}.get(
        encoding, encoding.rstrip('0123456789'))
    form = grey if channels == 'mono' else rgb if channels.startswith('rgb') else rgb[..., ::-1]
    form = np.concatenate((form, alpha), 2) if channels.endswith('a') else form
    if encoding.endswith('16'):  # the lower 8 bits are noise
        form = (form.astype(np.uint16) * 256 + 77).astype('>u2' if big else '<u2').view(np.uint8)
    rows = np.pad(form.reshape(8, -1), ((0, 0), (0, padding)))
    message = image('red', width=6, height=8, encoding=encoding, step=rows.shape[1],
                    is_bigendian=big, data=rows.tobytes())
    found = decode(from_message(message, 'x'), (8, 6), 3)
    wanted = np.repeat(grey, 3, 2) if channels == 'mono' else rgb
    assert (found == wanted.transpose(2, 0, 1)).all()
    assert (decode(from_message(message, 'x'), (8, 6), 1) == grey.transpose(2, 0, 1)).all()


@pytest.mark.parametrize('form', ['JPEG', 'PNG'])
def test_a_compressed_image_is_decoded_and_scaled(form):
    message = compressed(encoded('blue', form, width=640, height=480))
    found = decode(from_message(message, 'x'), (24, 16), 3)
    assert found.shape == (3, 24, 16) and found.dtype == np.uint8
    assert np.abs(found.mean((1, 2)) - (20, 30, 220)).max() < 10


@pytest.mark.parametrize('changes, words', [
    ({'encoding': '32FC1'}, "encoding '32FC1' is not one of rgb8"),
    ({'encoding': 'x' * 10**6}, 'xxxx'),
    ({'width': 0}, '0 x 10 pixels'), ({'height': 0}, '20 x 0'),
    ({'step': 59}, 'rows of 59 bytes'), ({'step': 61}, 'do not fit 600 bytes'),
    ({'height': 11}, 'do not fit'), ({'height': 2**32 - 1, 'step': 2**32 - 1}, 'do not fit'),
    ({'data': b''}, 'got 0'), ({'data': bytes(LARGEST + 1)}, f'bytes, got {LARGEST + 1}')])
def test_a_message_that_does_not_fit_itself_is_refused(changes, words):
    with pytest.raises(PictureError, match=words) as error:
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
    with pytest.raises(PictureError, match='^/camera: cannot be decoded'):
        decode(from_message(compressed(data), '/camera'), (8, 8), 3)


def scans(count, between=b''):
    """Return a JPEG of several scans that show nothing new, and other bytes before its end."""
    out = io.BytesIO()
    Image.new('L', (256, 256), 128).save(out, 'JPEG', progressive=True, quality=1)
    parts = out.getvalue().split(b'\xff\xda')
    last = b'\xff\xda' + parts[-1].removesuffix(b'\xff\xd9')
    return out.getvalue()[:-2] + between + last * (count - len(parts) + 1) + b'\xff\xd9'


def test_a_few_bytes_do_not_take_long_by_many_scans():
    comment = b'\xff\xfe\xff\xff' + b'\xff\xda' * 32766 + b'\0'
    for data in (scans(MOST_SCANS), scans(20, comment) + b'\xff\xda' * 200):
        assert decode(Picture('x', data), None, 1).shape == (1, 256, 256)
    hidden = b'\xff\x01\xff\xff'      # not a length: that marker has none
    for between in (b'', comment, hidden, b'\xff' * 9, b'\xff\0'):
        with pytest.raises(PictureError, match='more than 100 scans'):
            decode(Picture('x', scans(MOST_SCANS + 1, between)), None, 1)


def test_threads_that_decode_leave_the_warnings_of_the_process_as_they_are():
    before, one, two = list(warnings.filters), *(fleet_pictures._named(Picture('x', b''))
                                                 for _ in range(2))
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    two.__exit__(None, None, None)
    assert warnings.filters == before


@pytest.mark.filterwarnings('error')
def test_warnings_of_pillow_are_no_errors():
    palette = Image.fromarray(pixels('red')).convert('P')
    out = io.BytesIO()
    palette.save(out, 'PNG', transparency=bytes(range(256)))
    assert decode(Picture('x', out.getvalue()), None, 3).shape[0] == 3


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
    found = decode(saved(rgb, mode, form, **options), (16, 16), 3).transpose(1, 2, 0)
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
    picture = saved(grey, 'RGB', 'JPEG', exif=exif)
    light = decode(picture, (16, 24), 1)[0] > 128
    rows = np.s_[:8] if 'top' in corner else np.s_[8:]
    columns = np.s_[:12] if 'left' in corner else np.s_[12:]
    assert light[rows, columns].mean() > .9 and light.sum() < 120
    whole = decode(picture, None, 3)
    assert whole.shape == ((3, 48, 32) if 5 <= orientation <= 8 else (3, 32, 48))


def test_depths_keep_all_16_bits_and_other_images_are_refused():
    depths = np.array([[0, 1, 256], [65535, 5000, 77]], np.uint16)
    out = io.BytesIO()
    Image.fromarray(depths).save(out, 'PNG')
    assert (decode_depth(Picture('x', out.getvalue())) == depths).all()
    with pytest.raises(PictureError, match='x is not a depth image, a grey PNG of 16 bits'):
        decode_depth(saved(pixels('red'), 'L'))
