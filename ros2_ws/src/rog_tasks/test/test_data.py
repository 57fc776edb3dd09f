"""Data sets load, or say what is missing."""

import sys

import numpy as np
import pytest
import torch
from rog_tasks.data import ImageData, cifar100, digits, fed_cifar100, image_folder
from rog_tasks.errors import DataError


def test_digits_are_split_evenly_over_the_classes():
    data = digits(3)
    assert data.train_images.shape == (1437, 1, 8, 8) and data.test_images.shape == (360, 1, 8, 8)
    assert data.train_images.min() == 0 and data.train_images.max() == 1
    assert torch.bincount(data.test_labels).min() >= 34
    assert torch.equal(data.train_labels, digits(3).train_labels)
    assert not torch.equal(data.train_labels, digits(4).train_labels)


def test_cifar_100_is_read_from_its_binary_version(tmp_path):
    rng = np.random.default_rng(0)
    folder = tmp_path / 'cifar-100-binary'
    folder.mkdir()
    for part, n in (('train', 5), ('test', 2)):
        records = rng.integers(0, 256, (n, 3074), dtype=np.uint8)
        records[:, 1] = np.arange(n) + 90
        records.tofile(folder / f'{part}.bin')
    data = cifar100(str(tmp_path))
    assert data.train_images.shape == (5, 3, 32, 32) and data.classes == 100
    assert data.train_labels.tolist() == [90, 91, 92, 93, 94]
    assert data.test_images[1].flatten()[5] == records[1, 7] / np.float32(255)


def test_a_cut_off_file_is_refused(tmp_path):
    (tmp_path / 'train.bin').write_bytes(b'\0' * 3000)
    with pytest.raises(DataError, match='3000 bytes'):
        cifar100(str(tmp_path))


@pytest.mark.parametrize('loader', [cifar100, image_folder])
def test_a_missing_data_set_is_named_with_its_place(loader, tmp_path):
    with pytest.raises(DataError, match=str(tmp_path)):
        loader(str(tmp_path / 'nowhere'))


def test_fed_cifar_100_is_read_client_by_client(tmp_path):
    h5py = pytest.importorskip('h5py')
    for part in ('train', 'test'):
        with h5py.File(tmp_path / f'fed_cifar100_{part}.h5', 'w') as h5:
            for client, label in (('1', 7), ('0', 3)):
                h5[f'examples/{client}/image'] = np.zeros((2, 32, 32, 3), np.uint8)
                h5[f'examples/{client}/label'] = np.full(2, label)
    assert fed_cifar100(str(tmp_path)).train_labels.tolist() == [3, 3, 7, 7]


def test_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, 'h5py', None)
    monkeypatch.setitem(sys.modules, 'PIL', None)
    with pytest.raises(DataError, match='pip install h5py'):
        fed_cifar100(str(tmp_path))
    with pytest.raises(DataError, match='pip install pillow'):
        image_folder(str(tmp_path))


def test_folders_of_images_are_classes(tmp_path):
    image = pytest.importorskip('PIL.Image')
    for part in ('train', 'test'):
        for name, colour in (('cat', (255, 0, 0)), ('ant', (0, 0, 255))):
            (tmp_path / part / name).mkdir(parents=True)
            image.new('RGB', (20, 10), colour).save(tmp_path / part / name / 'a.png')
    data = image_folder(str(tmp_path), size=16)
    assert data.train_images.shape == (2, 3, 16, 16) and data.classes == 2
    assert data.train_images[0].mean((1, 2)).tolist() == [0, 0, 1]
    (tmp_path / 'test' / 'ant' / 'b.png').write_text('no image')
    with pytest.raises(DataError, match='b.png is not an image'):
        image_folder(str(tmp_path))


@pytest.mark.parametrize('images, labels, words', [
    (torch.zeros(2, 8, 8), torch.zeros(2, dtype=torch.int64), 'must be'),
    (torch.zeros(2, 1, 8, 8), torch.zeros(3, dtype=torch.int64), 'must be'),
    (torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.int64), 'n > 0'),
    (torch.zeros(2, 1, 8, 8), torch.zeros(2), 'float32 and int64'),
    (torch.zeros(2, 1, 8, 8), torch.tensor([0, 5]), 'between 0 and 4'),
])
def test_data_of_the_wrong_form_is_refused(images, labels, words):
    with pytest.raises(DataError, match=words):
        ImageData(images, labels, images, labels, 5)
