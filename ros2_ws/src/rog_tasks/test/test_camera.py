"""A live topic: images are used, lost images are reported, and a silent camera is no error.

The clock is a number that the tests set. A thread waits in real time only until a test
wakes it.
"""

import queue
import threading

import pytest
import torch
from fleet_testing import LIMIT, eventually
from rog_tasks.errors import SourceClosed, TaskError
from rog_tasks.recognition import Recognition
from rog_tasks.sources import camera
from rog_tasks.sources.camera import CameraSource
from rog_tasks.sources.source import Wanted
from rog_tasks.sources.spec import Spec
from sample_images import CLASSES, compressed, encoded, image, right, text


class Camera:
    """A source, its clock, and a thread that draws batches from the source as training does."""

    def __init__(self, labels=None, count=4, **options):
        self.now = 100.0
        labels = labels or Spec('topic', 'said', tolerance=0.5)
        self.source = CameraSource(Spec('topic', 'camera', **{'patience': 10.0, **options}), labels,
                                   Wanted(CLASSES, 8, 3, 0), lambda: self.now)
        self._batches = self.source.batches(0, 1, count)
        self._asked, self._drawn = queue.Queue(), queue.Queue()
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    def _train(self):
        try:
            while self._asked.get():
                self._drawn.put(next(self._batches))
        except SourceClosed as error:
            self._drawn.put(error)

    def ask(self):
        self._asked.put(True)

    def answer(self):
        return self._drawn.get(timeout=LIMIT)

    def draw(self):
        self.ask()
        return self.answer()

    def see(self, count=1, name='red', message=None, label=True):
        for number in range(count):
            self.now += 0.1
            self.source.on_image(message or image(name, number))
            if label:
                self.source.on_label(text(name))

    @property
    def said(self):
        report = self.source.report()
        return report.level, report.message

    def close(self):
        self.source.close()
        self._asked.put(None)
        self._thread.join(LIMIT)
        assert not self._thread.is_alive()


@pytest.fixture
def start(monkeypatch):
    monkeypatch.setattr(camera, 'LOOK', 0.01)
    made = []

    def start(*args, **options):
        made.append(Camera(*args, **options))
        return made[-1]
    yield start
    for each in made:
        each.close()


@pytest.fixture
def settle():
    """Return a function that waits until a robot reports a given level and given words."""
    def settle(robot, level, words):
        eventually(lambda: robot.said[0] == level and words in robot.said[1],
                   lambda: f'{level} and {words!r}, got {robot.said}')
    return settle


def test_batches_come_once_there_are_enough_images_with_their_labels(start, settle):
    robot = start()
    robot.ask()
    robot.see(3)
    robot.now += 1.5
    settle(robot, 'error', 'no image for 2 s on topic camera; training is paused')
    robot.see(1, 'blue')
    images, labels = robot.answer()
    assert right((images, labels)) and sorted(labels.tolist()) == [0, 1, 1, 1]
    assert robot.said == ('ok', 'images come')


def test_a_camera_that_stops_pauses_training_after_its_patience_and_goes_on(start, settle):
    robot = start()
    robot.see(6)
    robot.draw()
    robot.now += 9.5
    assert robot.said == ('warn', 'no image for 10 s on topic camera; training goes on with the 4 '
                                  'images in the buffer for 0 s')
    assert len(robot.draw()[1]) == 4
    robot.now += 1.0
    robot.ask()
    robot.now += 1.5
    settle(robot, 'error', 'no image for 12 s on topic camera; training is paused until one')
    robot.see(1)
    assert len(robot.answer()[1]) == 4
    assert robot.said[0] == 'ok'


def test_the_end_of_the_run_ends_the_wait_for_a_camera(start, settle):
    robot = start()
    robot.ask()
    settle(robot, 'error', 'no image has come')
    robot.source.close()
    assert isinstance(robot.answer(), SourceClosed)
    with pytest.raises(SourceClosed):
        robot.source.wait()


def test_what_is_missing_is_said_with_what_the_node_knows(start, settle):
    robot = start()
    robot.ask()
    robot.source.hint('nobody publishes /camera')
    settle(robot, 'error', 'no image has come on topic camera: nobody publishes /camera; training')


def test_images_without_labels_are_told_from_a_silent_camera(start, settle):
    robot = start()
    robot.ask()
    robot.see(30, label=False)
    robot.source.on_label(text('dgo'))
    settle(robot, 'error', 'images come without a label within 0.5 s of them on topic said; last '
                           "label 'dgo' is not one of blue, red; training is paused")
    assert robot.source.report().values['without a label'] > 20


@pytest.mark.parametrize('message, why', [
    (image('red', step=1), 'do not fit'), (image('red', encoding='yuv422'), "encoding 'yuv422'"),
    (compressed(b'\xff\xd8nothing'), 'cannot be decoded'),
    (compressed(encoded('red')[:99]), 'cannot be decoded')])
def test_corrupt_images_are_skipped_counted_and_named(start, settle, message, why):
    robot = start(Spec('self', ''))
    robot.see(4)
    robot.see(3, message=message)
    robot.see(4)
    assert len(robot.draw()[1]) == 4
    robot.see(2, message=message)
    robot.draw()
    level, said = robot.said
    assert level == 'warn' and why in said and said.startswith('some is refused; last camera: ')
    assert 2 <= robot.source.report().values['refused'] <= 5
    robot.see(120)
    assert robot.said[0] == 'ok'  # the last refused images are old now


def test_a_camera_that_sends_nothing_but_damage_is_an_error(start, settle):
    robot = start(Spec('self', ''))
    robot.ask()
    settle(robot, 'error', 'no image has come')
    robot.see(20, message=compressed(b'nothing'))
    settle(robot, 'error', 'images come that cannot be used; last camera: cannot be decoded')


def test_a_robot_slower_than_its_camera_loses_images_not_memory(start):
    robot = start(Spec('self', ''), keep=64, memory=1.0)
    large = image('red', width=400, height=300, step=1200, data=bytes(360_000))
    for _ in range(5):
        robot.see(100, message=large)
        report = robot.source.report()
        assert report.values['buffer (KiB)'] <= 1024
        assert len(robot.draw()[1]) == 4 if len(robot.source._buffer) else True
    assert report.values['images'] == 500 and report.values['never looked at'] > 480


def test_large_images_fill_a_batch_although_few_fit_in_memory_at_a_time(start):
    robot = start(Spec('self', ''), count=12, memory=1.0)
    robot.ask()
    large = image('red', width=400, height=300, step=1200, data=bytes(360_000))
    for _ in range(6000):
        robot.see(1, message=large)
        if not robot._drawn.empty():
            break
        threading.Event().wait(0.01)
    assert len(robot.answer()[1]) == 12


def test_a_batch_larger_than_the_buffer_is_refused():
    source = CameraSource(Spec('topic', 'x', keep=8), Spec('self', ''), Wanted(CLASSES, 8, 3, 0))
    with pytest.raises(TaskError, match='the 9 images of a batch, got 8'):
        source.batches(0, 1, 9)


def test_a_recogniser_learns_from_a_camera(monkeypatch):
    task = Recognition('topic:camera?patience=86400', CLASSES, 'topic:said', size=8,
                       model='digitnet')
    task.batch_size, source = 8, task.sources[0]
    batches = task.batches(0, 1)
    # one image per second; each image gets the label that is nearest in time
    for number in range(41):
        monkeypatch.setattr(source, '_clock', lambda now=float(number): now)
        source.on_image(image(CLASSES[number % 2], number))
        source.on_label(text(CLASSES[number % 2]))
    torch.manual_seed(0)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), .01, momentum=.9)
    for _ in range(30):
        optimizer.zero_grad()
        loss = task.loss(model, next(batches))
        loss.backward()
        optimizer.step()
    assert loss < .1
