"""Tests of the codecs: every bit comes back, damaged bytes are refused, the choice pays."""

import itertools

import numpy as np
import pytest
import torch
from fleet_compute import inlets
from fleet_compute.inlets import (
    CHANGE,
    NAMES,
    PICTURE,
    PLANES,
    SPARSE,
    TABLE,
    UNSIGNED,
    CodecError,
    Frames,
    Inlet,
    Inlets,
    Layout,
    decode,
    encode,
    layout_of,
)
from hypothesis import given
from hypothesis import strategies as st


def encoded(inlet, elements, layout, rate):
    """Return the elements as one that crosses a link again and again is sent."""
    link = Inlets(lambda: rate)
    link._inlets['x'] = inlet
    return link.encoded('x', elements, layout)


def same(elements, layout):
    """Encode with every codec; return the codecs that gave fewer bytes."""
    found = []
    for codec in NAMES:
        data = encode(codec, elements, layout)
        if data is not None:
            assert len(data) < elements.nbytes
            back = decode(data, elements.nbytes)
            assert back.dtype == np.uint8 and back.flags.writeable
            assert back.tobytes() == elements.tobytes(), NAMES[codec]
            found.append(codec)
    return found


@st.composite
def tensors(draw):
    """Elements with few or many values, zeros, NaNs with a payload, -0.0; of any shape."""
    item = draw(st.sampled_from([1, 2, 4, 8]))
    shape = draw(st.lists(st.integers(1, 24), min_size=1, max_size=5))
    random = np.random.default_rng(draw(st.integers(0, 2 ** 32)))
    count = int(np.prod(shape))
    values = random.integers(0, 256, (draw(st.sampled_from([1, 2, 200, 256, 257, 5000])), item),
                             np.uint8).view(UNSIGNED[item]).reshape(-1)
    elements = values[random.integers(0, len(values), count)]
    elements[random.random(count) < draw(st.sampled_from([0.0, 0.3, 0.95, 1.0]))] = 0
    return elements, layout_of(shape, len(shape) in (4, 5) and draw(st.booleans()))


@given(tensors())
def test_every_codec_gives_every_bit_back(case):
    same(*case)


def picture(*shape, seed=0):
    """Return a smooth picture with some noise, uint8 (rows, columns, 3)."""
    y, x = np.mgrid[:shape[0], :shape[1]]
    noise = np.random.default_rng(seed).normal(0, 1, (*shape, 3))
    plain = np.stack([x + y, x - y + 99, 2 * x], -1) * 100 / max(shape)
    return (plain + 60 + noise).clip(0, 255).astype(np.uint8)


PHOTO = picture(120, 160)
NORMALISED = ((torch.from_numpy(PHOTO).permute(2, 0, 1)[None].float() / 255
               - torch.tensor([.485, .456, .406]).view(1, 3, 1, 1))
              / torch.tensor([.229, .224, .225]).view(1, 3, 1, 1))


@pytest.mark.parametrize(('tensor', 'codec', 'most'), [
    (torch.from_numpy(PHOTO), PICTURE, .6),
    (torch.from_numpy(PHOTO).permute(2, 0, 1).contiguous(), PICTURE, .6),
    (NORMALISED, TABLE, .2),
    (NORMALISED.to(memory_format=torch.channels_last), TABLE, .2),
    (NORMALISED.double(), TABLE, .1), (NORMALISED.bfloat16(), TABLE, .35),
    (torch.randn(1, 64, 30, 30, generator=torch.Generator().manual_seed(0)).relu(), SPARSE, .5),
    (torch.arange(5000), PLANES, .3), (torch.rand(64, 64) > .9, PLANES, .2),
    (torch.zeros(1000), PLANES, .05)])
def test_what_models_send_gets_much_smaller(tensor, codec, most, quick):
    last = tensor.ndim == 4 and not tensor.is_contiguous()
    form = torch.channels_last if last else torch.contiguous_format
    flat = tensor.contiguous(memory_format=form).as_strided((tensor.numel(),), (1,))
    elements = flat.view(torch.uint8).numpy().view(UNSIGNED[tensor.dtype.itemsize])
    layout = layout_of(tensor.shape, last)
    assert codec in same(elements, layout)
    assert len(encode(codec, elements, layout)) <= most * elements.nbytes
    inlet = Inlet()
    sent = encoded(inlet, elements, layout, 1e6)
    assert len(sent) <= len(encode(codec, elements, layout)) * 1.05 and inlet.ratio <= most


def test_floating_point_keeps_signs_of_zeros_and_what_a_nan_carries():
    odd = np.array([0, 1 << 31, 0x7fc00001, 0xffc0beef, 0x7f800000, 1], np.uint32)
    elements = np.tile(odd, 500)
    assert same(elements, layout_of([3000])) == [TABLE, SPARSE, PLANES]


@pytest.mark.parametrize('elements', [
    np.zeros(0, np.uint8), np.zeros(100, np.uint8),
    np.random.default_rng(0).integers(0, 256, 4096, np.uint8)])
def test_what_no_codec_makes_smaller_is_sent_as_it_is(elements):
    assert not same(elements, layout_of(elements.shape))
    assert bytes(encoded(Inlet(), elements, layout_of(elements.shape), 1e6)) == elements.tobytes()


@pytest.mark.parametrize('rate', [0.0, float('inf'), float('nan'), 1e12])
def test_where_the_link_is_faster_than_any_codec_nothing_is_encoded(rate):
    elements = np.zeros(1 << 16, np.uint32)
    assert len(encoded(Inlet(), elements, layout_of([1 << 16]), rate)) == elements.nbytes


def test_an_inlet_follows_what_it_carries_and_the_rate_of_its_link():
    inlet, layout = Inlet(), layout_of([1, 64, 30, 30])
    zeros = np.zeros(64 * 900, np.uint32)
    noise = np.random.default_rng(1).integers(0, 2 ** 32, 64 * 900, np.uint32)
    assert len(encoded(inlet, zeros, layout, 1e6)) < 0.01 * zeros.nbytes
    for _ in range(3):
        sent = encoded(inlet, noise, layout, 1e6)
    assert len(sent) == noise.nbytes and not inlet.codec
    assert len(encoded(inlet, zeros, layout, 1e5)) < 0.01 * zeros.nbytes


NORMAL = NORMALISED.numpy().reshape(-1).view(np.uint32), layout_of(NORMALISED.shape)


@pytest.fixture
def clock(monkeypatch):
    """Let each codec take so many seconds for each byte; return these by codec."""
    speed, now = dict.fromkeys(NAMES, 1e-9), [0.0]

    def timed(codec, elements, layout):
        now[0] += speed[codec] * elements.nbytes
        return encode(codec, elements, layout)
    monkeypatch.setattr(inlets, 'encode', timed)
    monkeypatch.setattr(inlets.time, 'thread_time', lambda: now[0])
    speed['now'] = lambda: now[0]
    speed['more'] = lambda seconds: now.__setitem__(0, now[0] + seconds)
    return speed


def sizes(inlet, count, rate=1e8, case=NORMAL):
    """Return the bytes sent for each byte of `count` transfers."""
    return [len(encoded(inlet, *case, rate)) / case[0].nbytes for _ in range(count)]


def test_what_a_codec_takes_here_counts_from_the_first_transfer(clock):
    clock.update(dict.fromkeys(NAMES, 1e-7))      # a slow machine, on which raw is faster
    assert sizes(Inlet(), 40) == [1] * 40


def test_a_codec_of_a_machine_that_was_busy_for_a_while_comes_back(clock):
    inlet = Inlet()
    assert max(sizes(inlet, 5)) < .2
    clock.update(dict.fromkeys(NAMES, 1e-7))
    busy = sizes(inlet, 20)
    assert busy[-1] == 1 and busy.count(1) > 10    # long before codecs are compared again
    clock.update(dict.fromkeys(NAMES, 1e-9))
    assert sizes(inlet, inlets.AGAIN)[-1] < .2


def test_the_first_call_of_a_process_does_not_count(clock, monkeypatch):
    monkeypatch.setattr(inlets, '_called', set())
    called = set()

    def cold(codec, elements, layout):
        data = timed(codec, elements, layout)
        if codec not in called:
            called.add(codec)
            clock['more'](1e-7 * elements.nbytes)
        return data
    timed = inlets.encode
    monkeypatch.setattr(inlets, 'encode', cold)
    assert max(sizes(Inlet(), 5)) < .2


@pytest.mark.parametrize('paused', NAMES)
def test_a_moment_in_which_the_machine_is_busy_does_not_decide_what_is_planned(
        clock, monkeypatch, paused):
    usual, left = inlets.share(*NORMAL, 1e6), [paused]

    def paused_once(codec, elements, layout):
        if codec in left:
            left.remove(codec)
            clock['more'](1)
        return timed(codec, elements, layout)
    timed = inlets.encode
    monkeypatch.setattr(inlets, 'encode', paused_once)
    assert inlets.share(*NORMAL, 1e6) == usual < .3
    assert not left


def test_comparing_takes_little_of_the_time_on_the_link_however_its_rate_jumps(clock):
    """As over bad Wi-Fi: one comparison takes a tenth of the time of a transfer."""
    clock.update(dict.fromkeys(NAMES, 1e-8))
    noise = np.random.default_rng(1).integers(0, 2 ** 32, NORMAL[0].size, np.uint32)
    inlet, rates = Inlet(), [1e7, 3e7] * 40
    encoded(inlet, noise, NORMAL[1], rates[0])
    began = clock['now']()
    for rate in rates:
        assert len(encoded(inlet, noise, NORMAL[1], rate)) == noise.nbytes
    assert clock['now']() - began <= 0.02 * sum(noise.nbytes / rate for rate in rates)


def test_a_codec_that_fits_a_part_of_a_tensor_only_does_not_keep_others_from_it(clock):
    tensor = NORMALISED.clone()
    tensor[:, :, :5] += torch.rand(3, 5, 160, generator=torch.Generator().manual_seed(0))
    case = tensor.numpy().reshape(-1).view(np.uint32), NORMAL[1]
    part, layout = inlets._sample(*case)
    assert encode(TABLE, part, layout) is not None and encode(TABLE, *case) is None
    assert sizes(Inlet(), 5, 1e6, case)[1:] == [len(encode(PLANES, *case)) / case[0].nbytes] * 4


def test_the_middle_of_a_picture_does_not_stand_for_its_edges():
    elements = np.random.default_rng(0).integers(0, 2 ** 32, (3, 224, 224), np.uint32)
    elements[:, 90:134] = 0
    part, _ = inlets._sample(elements.reshape(-1), layout_of(elements.shape))
    assert part.nbytes <= elements.nbytes / 7
    assert np.mean(part == 0) == pytest.approx(np.mean(elements == 0), abs=.1)


def test_small_tensors_do_not_change_what_is_done_with_large_ones(clock):
    small, large = Inlet(), Inlet()
    clock.update(dict.fromkeys(NAMES, 1e-7))
    sizes(small, 40, 1e6, (np.zeros(1 << 9, np.uint32), layout_of([1 << 9])))
    clock.update(dict.fromkeys(NAMES, 1e-9))
    assert max(sizes(large, 3)) < .2


def test_a_link_keeps_few_inlets_however_many_shapes_a_program_sends():
    link = Inlets(lambda: 1e6)
    for count in range(1000, 1000 + 2 * inlets.MOST):
        link.encoded(count, np.zeros(count, np.uint8), layout_of([count]))
    assert len(link._inlets) == inlets.MOST and count in link._inlets


def encoded_ones():
    elements = NORMALISED.numpy().reshape(-1).view(np.uint32)
    sparse = np.where(np.arange(elements.size) % 3, 0, elements).astype(np.uint32)
    cases = [(TABLE, elements, layout_of(NORMALISED.shape)), (PLANES, elements, layout_of([1])),
             (SPARSE, sparse, layout_of([1])),
             (PICTURE, PHOTO.reshape(-1), layout_of(PHOTO.shape))]
    return [(encode(*case), case[1].nbytes) for case in cases]


ENCODED = encoded_ones()


@given(st.sampled_from(ENCODED), st.data())
def test_damaged_bytes_are_refused_or_give_the_right_number_of_bytes(case, draw):
    data, nbytes = bytearray(case[0]), case[1]
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, min(len(data), 2000) - 1) | st.integers(0, len(data) - 1))
        data[at] ^= draw.draw(st.integers(1, 255))
    cut = draw.draw(st.just(len(data)) | st.integers(0, len(data)))
    try:
        found = decode(data[:cut], nbytes)
    except CodecError:
        return
    assert found.nbytes == nbytes


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data):
    with pytest.raises(CodecError):
        decode(data, 4096)


def test_weights_are_decoded_only_as_they_are_encoded():
    """A part of a model with the file of a picture would keep the server's answers waiting."""
    for data, nbytes in ENCODED:
        if data[0] == PLANES:
            assert inlets.lengthened(data, nbytes) == decode(data, nbytes).data
        else:
            with pytest.raises(CodecError, match='weights must be encoded as planes'):
                inlets.lengthened(data, nbytes)
    with pytest.raises(CodecError):
        inlets.lengthened(b'', 9)
    assert inlets.lengthened(b'weights', 7) == b'weights'


def test_a_claim_of_much_memory_is_refused_before_memory_is_taken():
    data, nbytes = ENCODED[0]
    for wrong in (nbytes - 4, nbytes + 4, 1 << 60):
        with pytest.raises(CodecError, match='bytes in all'):
            decode(data, wrong)
    huge = inlets._HEADER.pack(PLANES, 4, 0, 1, 1, 1, 1 << 40) + inlets._PART.pack(0, 1 << 40)
    with pytest.raises(CodecError, match='must follow'):
        decode(huge, 1 << 42)


def test_a_tensor_of_another_shape_than_its_layout_is_not_encoded():
    elements = np.zeros(100_000, np.uint8)
    for layout in (Layout(3, 3, 7, False), Layout(3, 3, 7, True)):
        assert encode(PICTURE, elements, layout) is None
        assert len(encoded(Inlet(), elements, layout, 1e6)) == elements.nbytes


@given(st.integers(0, 2 ** 32 - 1), st.integers(128, 5000), st.booleans())
def test_rounded_elements_are_those_of_bfloat16(seed, count, small):
    """Also NaN with any payload, infinite, subnormal and -0.0; but what is finite stays finite."""
    bits = np.random.default_rng(seed).integers(0, 2 ** 32, count, np.uint32)
    special = np.array([0x7F800000, 0xFF800000, 0x7F800001, 0xFFFFFFFF, 0x80000000, 1, 0x7F7FFFFF],
                       np.uint32)
    bits[:len(special)] = special
    elements = (bits & np.uint32(0xFFF00000)) if small else bits
    link = Inlets(lambda: 1e6, rounded=True)
    data = link.encoded('x', elements, layout_of([count]), floats=True)
    assert len(data) < 24 + 2 * count + 1
    exact = torch.from_numpy(elements.copy()).view(torch.float32)
    want, most = exact.bfloat16().float(), torch.finfo(torch.bfloat16).max
    want[exact.isfinite()] = want[exact.isfinite()].clamp(-most, most)
    got = torch.from_numpy(decode(data, elements.nbytes)).view(torch.float32)
    assert torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0))
    assert torch.equal(got.isnan(), want.isnan())
    assert torch.equal(got.isnan() | torch.signbit(got), want.isnan() | torch.signbit(want))


def test_only_float32_is_rounded_and_only_by_request():
    bits = np.random.default_rng(0).integers(0, 2 ** 32, 5000, np.uint32)
    for link, floats in ((Inlets(lambda: 1e6), True), (Inlets(lambda: 1e6, rounded=True), False)):
        assert link.encoded('x', bits, layout_of([5000]), floats=floats) == bits.tobytes()


def frames(count, noise, seed=0):
    """Return what a camera that stands still sees, uint8 (rows, columns, 3)."""
    random, still = np.random.default_rng(seed), picture(120, 160, seed=1).astype(np.int16)
    return [(still + random.normal(0, noise, still.shape)).clip(0, 255).astype(np.uint8)
            for _ in range(count)]


@given(st.lists(st.sampled_from(['answered', 'lost on the way', 'answer lost', 'none']),
                max_size=12), st.sampled_from([0.0, 1.0, 40.0]), st.integers(0, 99))
def test_pictures_come_as_they_were_whatever_is_lost(fates, noise, seed):
    link, there, changes = Inlets(lambda: 1e6, changes=True), Frames(), 0
    for number, (fate, frame) in enumerate(zip(fates, frames(len(fates), noise, seed),
                                               strict=True), 1):
        if fate == 'none':      # the robot computes alone
            link.note(0)
            continue
        elements = frame.reshape(-1)
        data = bytes(link.encoded('x', elements, layout_of(frame.shape)))
        want, changes = frame.tobytes(), changes + (len(data) < frame.nbytes and data[0] == CHANGE)
        elements[:] = 0         # the camera's next picture is in the same memory
        if fate != 'lost on the way':
            found = data if len(data) == len(want) else decode(
                data, len(want), lambda n: there.base('x', n)).tobytes()
            assert found == want
            there.keep(number, 'x', found)
        link.note(number if fate == 'answered' else 0)
    after = sum(fate != 'none' for former, fate in itertools.pairwise(fates)
                if former == 'answered')
    assert changes == (after if noise < 2 else 0)


def test_a_change_of_a_picture_that_is_not_there_is_refused():
    link, there, (one, two) = Inlets(lambda: 1e6, changes=True), Frames(), frames(2, 0.0)
    layout = layout_of(one.shape)
    link.encoded('x', one.reshape(-1), layout)
    link.note(7)
    data = link.encoded('x', two.reshape(-1), layout)
    assert data[0] == CHANGE and len(data) < two.nbytes / 50
    with pytest.raises(CodecError, match='those of request 7 are not'):
        decode(data, two.nbytes)
    there.keep(7, 'x', one.tobytes())
    for other in (6, 8, 9):
        there.keep(other, 'x', one.tobytes())
    with pytest.raises(CodecError, match='those of request 7 are not'):
        decode(data, two.nbytes, lambda n: there.base('x', n))
    for wrong in (one.reshape(-1)[:-1], one.reshape(-1) ^ np.uint8(1)):
        with pytest.raises(CodecError):
            decode(data, two.nbytes, lambda n, wrong=wrong: wrong)
    assert decode(data, two.nbytes, lambda n: one.reshape(-1)).tobytes() == two.tobytes()
