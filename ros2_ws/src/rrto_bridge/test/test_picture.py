"""The picture of `rrto demo` has a line for each mode, with the inferences of this mode."""

import matplotlib.image
import pytest
from matplotlib.figure import Figure
from rrto_bridge.cli import picture
from rrto_bridge.cli.measure import WARM


@pytest.fixture
def lines(tmp_path, monkeypatch):
    """Map the label of each line to its points: [number of the inference, its time in ms]."""
    drawn = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, 'savefig', lambda self, *a, **k: (
        drawn.append(self), save(self, *a, **k)))
    every = {mode: [100.0] * WARM + [10.0, 11.0] for mode in picture.MODES}
    picture.draw(every, 10.0, tmp_path / 'demo.png')
    assert matplotlib.image.imread(tmp_path / 'demo.png').shape[1] == 1400
    return {line.get_label().partition(':')[0]: line.get_xydata().tolist()
            for line in drawn[0].axes[0].get_lines()}


def test_every_inference_of_a_mode_is_drawn_with_its_number(lines):
    assert lines['replay'] == [*([n + 1, 100.0] for n in range(WARM)), [WARM + 1, 10.0],
                               [WARM + 2, 11.0]]
    assert lines.keys() > picture.MODES.keys() - {'device-only'}


def test_native_offloading_begins_when_the_sequence_is_known(lines):
    assert lines['native'] == [[WARM + 1, 10.0], [WARM + 2, 11.0]]
