"""The buffer of a camera keeps the newest images within its memory limit.

Each image gets the label that is nearest in time.
"""

import numpy as np
import pytest
from fleet_env.pictures import Picture
from fleet_testing import examples
from hypothesis import given
from hypothesis import strategies as st
from rog_tasks.errors import TaskError
from rog_tasks.sources.frames import UNKNOWN, Frame, Frames

MEMORY = 10_000


def frames(keep=4, tolerance=None, memory=MEMORY):
    return Frames(('a', 'b'), (1, 2, 2), keep, memory, tolerance)


def keep_all(buffer, most=10**6):
    taken = buffer.take(most)
    for frame in taken:
        buffer.keep(frame, np.full((1, 2, 2), int(frame.time) % 256, np.uint8))
    return [frame.time for frame in taken]


def picture(size=100):
    return Picture('x', bytes(size))


def kept(buffer):
    images, labels = buffer.draw(10**6, np.random.default_rng(1))
    return sorted(zip(images[:, 0, 0, 0].tolist(), labels.tolist(), strict=True))


def test_the_newest_replace_the_oldest_and_what_nobody_looked_at_is_counted():
    buffer = frames(keep=4)
    for time in range(10):
        buffer.add(time, picture())
    assert keep_all(buffer) == [6, 7, 8, 9] and buffer.counts['never looked at'] == 6
    buffer.add(10, picture())
    buffer.add(11, picture())
    assert keep_all(buffer, 1) == [11] and buffer.counts['never looked at'] == 7
    assert kept(buffer) == [(7, UNKNOWN), (8, UNKNOWN), (9, UNKNOWN), (11, UNKNOWN)]
    assert buffer.newest == 11 and buffer.counts['images'] == 12


def test_encoded_images_take_no_more_than_the_memory_left():
    buffer = frames(keep=100, memory=1000)
    for time in range(50):
        buffer.add(time, picture(250))
        assert buffer.bytes <= 1000
    assert keep_all(buffer) == [48, 49]
    buffer.add(50, picture(900))
    assert 'larger than the buffer' in buffer.trouble and buffer.counts['refused'] == 1
    assert not buffer.take(1)


def test_what_is_kept_must_fit_the_memory():
    with pytest.raises(TaskError, match='1000 images of 1x2x2 take .* choose a smaller keep'):
        frames(keep=1000, memory=7999)


def test_a_label_belongs_to_the_images_that_are_near_in_time():
    buffer = frames(keep=10, tolerance=1.0)
    for time in (0, 3, 4):
        buffer.add(time, picture())
    # for the image at time 0, a label would now be too late
    assert buffer.pending == 2 and buffer.counts['without a label'] == 1
    buffer.label(4.5, 'a')
    buffer.label(6.5, 'b')
    assert buffer.counts['without a label'] == 2 and keep_all(buffer) == [4]
    buffer.add(7, picture())
    buffer.settle(8.0)
    assert buffer.pending == 1  # a nearer label may still come
    buffer.settle(8.1)
    keep_all(buffer)
    assert kept(buffer) == [(4, 0), (7, 1)]


def test_a_label_that_is_no_class_is_named():
    buffer = frames(tolerance=1.0)
    buffer.label(0, 'dgo')
    assert buffer.trouble == "label 'dgo' is not one of a, b"
    assert buffer.counts['unknown labels'] == 1


def test_a_recording_that_begins_anew_has_no_labels_of_its_end():
    buffer = frames(tolerance=1.0)
    buffer.add(9, picture())
    buffer.label(9.5, 'b')
    buffer.rewind()
    buffer.add(9, picture())
    buffer.settle(20)
    assert keep_all(buffer) == [9] and buffer.counts['without a label'] == 1


def test_an_image_that_cannot_be_decoded_replaces_none():
    buffer = frames()
    buffer.add(1, picture())
    buffer.keep(buffer.take(1)[0], None, 'x: cannot be decoded')
    assert len(buffer) == 0 and buffer.newest < 0 and buffer.trouble == 'x: cannot be decoded'


@given(st.lists(st.tuples(st.sampled_from(['image', 'label a', 'label b', 'take', 'settle']),
                          st.floats(0.0, 0.4), st.integers(1, 600)), max_size=60),
       st.sampled_from([None, 0.0, 0.3, 1.0]))
@examples(200)
def test_any_sequence_stays_within_bounds_and_labels_rightly(events, tolerance):
    buffer, now, labels = frames(keep=6, tolerance=tolerance, memory=1500), 0.0, []
    for kind, wait, size in events:
        now += wait
        if kind == 'image':
            buffer.add(now, picture(size))
        elif kind == 'take':
            for frame in buffer.take(3):
                check(frame, labels, tolerance)
                buffer.keep(frame, np.zeros((1, 2, 2), np.uint8))
        elif kind == 'settle':
            buffer.settle(now)
        else:
            labels.append((now, 'ab'.index(kind[-1])))
            buffer.label(now, kind[-1])
        assert buffer.bytes <= 1500 and len(buffer) <= 6
    counts = buffer.counts
    buffer.rewind()
    left = len(buffer.take(100))
    assert counts['images'] == counts['kept'] + counts['never looked at'] + counts['refused'] + \
        counts['without a label'] + left
    assert buffer.bytes == 4 * len(buffer)


def check(frame: Frame, labels, tolerance):
    if tolerance is None:
        assert frame.label == UNKNOWN
        return
    distance = min(abs(time - frame.time) for time, _ in labels)
    assert distance <= tolerance
    assert frame.label in {n for time, n in labels if abs(time - frame.time) == distance}
