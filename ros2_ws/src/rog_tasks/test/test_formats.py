"""Data sets are read in their published formats; a file in another format is refused."""

import gzip
import sys

import numpy as np
import pytest
from rog_tasks.data import LOADERS
from rog_tasks.errors import DataError
from rog_tasks.formats import cifar10, cifar100, fashion_mnist, fed_cifar100, mnist


def idx(values):
    """Return the content of an IDX file that holds ``values``, a uint8 array."""
    shape = np.array(values.shape, '>u4').tobytes()
    return bytes((0, 0, 8, values.ndim)) + shape + values.tobytes()


IMAGES = np.random.default_rng(0).integers(0, 256, (4, 28, 28), dtype=np.uint8)
LABELS = np.array([9, 0, 3, 3], np.uint8)


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the four files of MNIST: 4 images for training and 4 for testing."""
    for part in ('train', 't10k'):
        (tmp_path / f'{part}-images-idx3-ubyte').write_bytes(idx(IMAGES))
        (tmp_path / f'{part}-labels-idx1-ubyte').write_bytes(idx(LABELS))
    return tmp_path


@pytest.mark.parametrize('loader', [mnist, fashion_mnist])
def test_mnist_is_read_from_its_idx_files(folder, loader):
    data = loader(str(folder))
    assert data.train_images.shape == (4, 1, 28, 28) and data.classes == 10
    assert data.test_labels.tolist() == [9, 0, 3, 3]
    assert np.array_equal(data.train_images[2, 0].numpy(), IMAGES[2] / np.float32(255))


def test_mnist_is_read_packed_and_below_the_folder(folder):
    below = folder / 'MNIST' / 'raw'
    below.mkdir(parents=True)
    for file in list(folder.glob('*-ubyte')):
        (below / f'{file.name}.gz').write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert mnist(str(folder)).train_labels.tolist() == LABELS.tolist()


IMAGE_FILE, LABEL_FILE = 'train-images-idx3-ubyte', 'train-labels-idx1-ubyte'


@pytest.mark.parametrize('name, content, words', [
    (IMAGE_FILE, b'', 'does not begin like'),
    (IMAGE_FILE, idx(IMAGES)[:10], 'does not begin like'),
    (IMAGE_FILE, idx(LABELS), 'with 3 dimensions'),
    (IMAGE_FILE, b'\0\0\x0d' + idx(IMAGES)[3:], 'does not begin like'),
    (IMAGE_FILE, idx(IMAGES)[:-1], '4x28x28 bytes and holds 3135'),
    (IMAGE_FILE, idx(IMAGES) + b'0', 'holds more'),
    (IMAGE_FILE, idx(IMAGES[:0]), '0x28x28'),
    (IMAGE_FILE, idx(IMAGES)[:4] + b'\xff' * 12 + b'123', 'holds 3 bytes'),
    (IMAGE_FILE, idx(IMAGES[:3]), '4 labels and .* 3 images'),
    (LABEL_FILE, idx(LABELS + 1), 'the label 10; there are 0 to 9'),
])
def test_a_damaged_idx_file_is_refused_by_name(folder, name, content, words):
    (folder / name).write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        mnist(str(folder))
    assert str(folder / name) in str(caught.value)


@pytest.mark.parametrize('damage', [lambda packed: packed[:-9], lambda packed: b'no gzip',
                                    lambda packed: packed[:20] + b'\xff' * 9 + packed[29:]])
def test_a_damaged_packed_file_is_refused_by_name(folder, damage):
    file = folder / IMAGE_FILE
    packed = gzip.compress(file.read_bytes())
    file.unlink()
    (folder / f'{IMAGE_FILE}.gz').write_bytes(damage(packed))
    with pytest.raises(DataError, match=f'{IMAGE_FILE}.gz cannot be read'):
        mnist(str(folder))


def test_two_data_sets_below_one_folder_are_not_guessed_between(folder):
    (folder / 'FashionMNIST').mkdir()
    (folder / 'FashionMNIST' / IMAGE_FILE).write_bytes(idx(IMAGES))
    with pytest.raises(DataError, match='name the folder of MNIST'):
        mnist(str(folder))


def cifar_records(labels, bytes_of_labels):
    rng = np.random.default_rng(len(labels))
    records = rng.integers(0, 256, (len(labels), bytes_of_labels + 3072), dtype=np.uint8)
    records[:, bytes_of_labels - 1] = labels
    return records


@pytest.fixture
def cifar(tmp_path):
    """Return a folder that contains the six files of CIFAR-10."""
    folder = tmp_path / 'cifar-10-batches-bin'
    folder.mkdir()
    for number in range(1, 6):
        cifar_records([number, 0], 1).tofile(folder / f'data_batch_{number}.bin')
    cifar_records([7], 1).tofile(folder / 'test_batch.bin')
    return tmp_path


def test_cifar_10_is_read_from_its_binary_version(cifar):
    data = cifar10(str(cifar))
    assert data.train_images.shape == (10, 3, 32, 32) and data.classes == 10
    assert data.train_labels.tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    record = cifar_records([7], 1)[0]
    assert data.test_labels.tolist() == [7]
    assert data.test_images[0, 2, 31, 31] == record[-1] / np.float32(255)


def test_a_cifar_10_file_that_is_missing_cut_off_or_another_is_refused(cifar):
    file = cifar / 'cifar-10-batches-bin' / 'data_batch_3.bin'
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(DataError, match='data_batch_3.bin: 6145 bytes'):
        cifar10(str(cifar))
    file.write_bytes(b'\x63' + content[1:])
    with pytest.raises(DataError, match='data_batch_3.bin holds the label 99'):
        cifar10(str(cifar))
    file.unlink()
    with pytest.raises(DataError, match='data_batch_3.bin is not in'):
        cifar10(str(cifar))


def test_cifar_100_is_read_from_its_binary_version(tmp_path):
    folder = tmp_path / 'cifar-100-binary'
    folder.mkdir()
    for part, n in (('train', 5), ('test', 2)):
        records = cifar_records(np.arange(n) + 90, 2)
        records.tofile(folder / f'{part}.bin')
    data = cifar100(str(tmp_path))
    assert data.train_images.shape == (5, 3, 32, 32) and data.classes == 100
    assert data.train_labels.tolist() == [90, 91, 92, 93, 94]
    assert data.test_images[1].flatten()[5] == records[1, 7] / np.float32(255)


def test_a_cut_off_file_is_refused(tmp_path):
    (tmp_path / 'train.bin').write_bytes(b'\0' * 3000)
    (tmp_path / 'test.bin').write_bytes(b'\0' * 3074)
    with pytest.raises(DataError, match='train.bin: 3000 bytes'):
        cifar100(str(tmp_path))


@pytest.mark.parametrize('name', ['mnist', 'fashion_mnist', 'cifar10', 'cifar100', 'image_folder'])
def test_a_missing_data_set_is_named_with_its_place(name, tmp_path):
    with pytest.raises(DataError, match=str(tmp_path)):
        LOADERS[name](str(tmp_path / 'nowhere'))


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
    with pytest.raises(DataError, match='pip install h5py'):
        fed_cifar100(str(tmp_path))
