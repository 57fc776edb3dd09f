"""The task for images of real robots: its initial model, its accuracy, and its errors."""

import math

import pytest
import torch
from rog_tasks.errors import TaskError
from rog_tasks.recognition import Recognition
from rog_tasks.task import load_task
from safetensors.torch import save_file
from sample_images import CLASSES, class_files, write

SMALL = {'classes': list(CLASSES), 'size': 8, 'model': 'digitnet'}


def task(images='topic:camera', labels='self', **options):
    return load_task('rog_tasks.recognition:Recognition',
                     {'images': images, 'labels': labels, **SMALL, **options})


def test_all_machines_have_the_same_model_and_only_robots_open_the_images(tmp_path):
    one, other = task(), task(f'folder:{tmp_path}/not/there', '')
    before = torch.get_rng_state()
    for a, b in zip(one.model().parameters(), other.model().parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(before, torch.get_rng_state())
    assert math.isnan(one.evaluate(one.model()))
    with pytest.raises(TaskError, match='not/there is not there'):
        other.batches(0, 1)


@pytest.mark.parametrize('kind', ['photos', 'photos.tar.gz'])
def test_it_begins_with_what_it_learns_from_a_folder(tmp_path, kind):
    photos = f'folder:{write(tmp_path / kind, class_files(8))}'
    made = task(start=f'{photos}?epochs=20', test=photos)
    model = made.model()
    before = made.evaluate(model)
    made.pretrain(model)
    assert before < 1 and made.evaluate(model) == 1.0


def test_it_begins_with_given_weights(tmp_path):
    weights = Recognition('topic:x', labels='self', seed=5, **SMALL)
    (tmp_path / 'run/models/1').mkdir(parents=True)
    save_file(weights.model().state_dict(), tmp_path / 'run/models/1/model.safetensors')
    for place in ('run', 'run/models/1', 'run/models/1/model.safetensors'):
        made = task(start=f'weights:{tmp_path}/{place}')
        model = made.model()
        made.pretrain(model)
        assert all(map(torch.equal, model.parameters(), weights.model().parameters()))


@pytest.mark.parametrize('options, words', [
    ({'classes': 'ab'}, 'classes are'), ({'model': 'nothing'}, 'nothing'),
    ({'start': 'photos'}, "start must be one of weights:..., folder:..., got 'photos'"),
    ({'test': 'bag:x'}, "test must be one of folder:..., got 'bag:x'"),
    ({'test_limit': 0}, 'test_limit'),
    ({'test': 'folder:/not/there'}, '/not/there is not there'),
    ({'size': 4, 'model': 'lenet5'}, 'does not accept images of 3x4x4')])
def test_options_that_cannot_be_are_named(options, words):
    with pytest.raises(TaskError, match=words):
        task(**options).model()


def test_a_model_is_not_measured_by_damaged_images(tmp_path):
    photos = write(tmp_path / 'photos', class_files(2) | {'red/x.jpg': b'nothing'})
    with pytest.raises(TaskError, match='photos must be whole: .*red/x.jpg: cannot be decoded'):
        task(test=f'folder:{photos}')


def test_a_model_is_measured_by_different_images_up_to_a_limit(tmp_path):
    photos = f'folder:{write(tmp_path / "photos", class_files(5))}'
    for limit in (3, 1000):
        seen = []

        class Counting(torch.nn.Module):
            def forward(self, images):
                seen.extend(images.unbind())
                return torch.zeros(len(images), 2)
        task(test=photos, test_limit=limit).evaluate(Counting())
        assert len(seen) == min(limit, 10) == len(torch.stack(seen).unique(dim=0))
