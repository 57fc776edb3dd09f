"""A recording that cannot be written any more ends with one warning, and inferences continue."""

import json
import resource
from contextlib import contextmanager
from pathlib import Path

from lopinfer_node.runtime.recording import Recording, recorded


class Computes:
    """A program of two steps, and its own run."""

    steps = range(2)

    def start(self, inputs):
        self.done = []
        return self

    def compute(self, steps):
        self.done += steps

    def piece(self, transfer):
        return b''

    def deliver(self, transfer, data):
        pass

    def outputs(self):
        return self.done

    finish_alone = outputs


@contextmanager
def largest_file(size):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def infer(program):
    run = program.start(())
    run.compute(range(len(program.steps)))
    return run.outputs()


def test_a_recording_without_room_keeps_whole_lines_and_lets_inferences_continue(tmp_path, caplog):
    path = tmp_path / 'robot'
    program = recorded(Computes(), 0, Recording(path))
    with largest_file(300):   # some lines, and a part of another one
        assert [infer(program) for _ in range(3)] == [[0, 1]] * 3
    assert infer(program) == [0, 1]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines and [line['index'] for line in lines] == ([0, 1] * 3)[:len(lines)]
    assert [(r.levelname, r.message) for r in caplog.records] == [
        ('WARNING', f'the recording {path} ends here: File too large')]


def test_a_recording_on_a_full_device_lets_inferences_continue(caplog):
    program = recorded(Computes(), 0, Recording(Path('/dev/full')))
    assert [infer(program) for _ in range(2)] == [[0, 1]] * 2
    assert [r.message for r in caplog.records] == [
        'the recording /dev/full ends here: No space left on device']
