"""Images in class folders or archives are decoded once.

If a file is not an image, the error names this file.
"""

import io
import os
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest
import torch
from PIL import Image
from rog_tasks import image_folder as module
from rog_tasks.cache import cached
from rog_tasks.cruda import Cruda
from rog_tasks.errors import DataError
from rog_tasks.image_data import as_float
from rog_tasks.image_folder import image_folder
from sample_images import class_files, encoded, write

FORMS = ('{}', '{}.tar', '{}.tar.gz', '{}.tgz', '{}.zip')


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Redirect the user's cache directory to an empty folder; return its subfolder `rog`."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / 'cache'))
    return tmp_path / 'cache' / 'rog'


def made(tmp_path, form='{}.tar.gz', train=None, test=None):
    """Write a data set of two classes, and return its folder.

    By default, each class has 6 images for training and 2 for testing.
    """
    root = tmp_path / 'data'
    root.mkdir(exist_ok=True)
    for part, files in (('train', class_files(6) if train is None else train),
                        ('test', class_files(2) if test is None else test)):
        path = root / form.format(part)
        path.mkdir() if form == '{}' else None
        write(path, {f'{part}/{name}': data for name, data in files.items()})
    return str(root)


def bomb(side):
    """Return a PNG file of a few bytes that claims to have ``side`` x ``side`` pixels."""
    out = io.BytesIO()
    Image.new('1', (1, 1)).save(out, 'PNG')
    data = bytearray(out.getvalue())
    data[16:24] = side.to_bytes(4, 'big') * 2
    data[29:33] = zlib.crc32(bytes(data[12:29])).to_bytes(4, 'big')
    return bytes(data)


@pytest.mark.parametrize('form', FORMS)
def test_folders_and_archives_are_one_data_set(form, tmp_path):
    data = image_folder(made(tmp_path, form), size=8)
    assert data.classes == 2 and data.train_images.shape == (12, 3, 8, 8)
    assert data.train_images.dtype == torch.uint8
    assert data.train_labels.tolist() == [0] * 6 + [1] * 6  # 0 is blue, 1 is red
    assert data.test_labels.tolist() == [0, 0, 1, 1]
    images = as_float(data.train_images)
    assert 0 <= images.min() and images.max() <= 1
    assert ((images[:, 0].mean((1, 2)) > .5) == data.train_labels.bool()).all()


def test_images_are_decoded_once(tmp_path, monkeypatch):
    root = made(tmp_path)
    first = image_folder(root, size=8)
    monkeypatch.setattr(module, 'decode', None)  # makes decoding impossible
    again = image_folder(root, size=8)
    assert torch.equal(first.train_images, again.train_images)
    assert first.digest == again.digest
    with pytest.raises(TypeError):
        image_folder(root, size=9)  # images of another size are cached separately


def test_other_content_is_another_data_set(tmp_path):
    (tmp_path / 'one').mkdir()
    (tmp_path / 'two').mkdir()
    one = image_folder(made(tmp_path / 'one', '{}'), size=8)
    two = image_folder(made(tmp_path / 'two', '{}', train={
        **class_files(6), 'red/000.jpg': encoded('blue')}), size=8)
    assert one.digest != two.digest and not torch.equal(one.train_images, two.train_images)


def test_a_damaged_cache_is_made_anew(tmp_path, cache):
    root = made(tmp_path)
    images = image_folder(root, size=8).train_images.clone()
    file, = (cache / 'images').glob('*.safetensors')
    for damaged in (file.read_bytes()[:100], file.read_bytes()[:-1] + b'\xff', b''):
        # unlink first: overwriting the file would change the tensors that are mapped from it
        file.unlink()
        file.write_bytes(damaged)
        assert torch.equal(image_folder(root, size=8).train_images, images)


@pytest.mark.parametrize('place', ['/proc/nowhere', 'a file'])
def test_where_nothing_can_be_kept_it_is_made_each_time_and_said(place, tmp_path, monkeypatch,
                                                                 capsys):
    (tmp_path / 'a file').touch()
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path / place))
    for _ in range(2):
        found = cached('weights', 'key', lambda: {'a': torch.ones(2)})
        assert torch.equal(found['a'], torch.ones(2))
        error = capsys.readouterr().err
        assert error.count('\n') == 1 and 'set XDG_CACHE_HOME' in error
        assert f'{tmp_path / place}/rog/weights' in error


def test_a_cache_that_cannot_be_written_to_costs_only_time(cache, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr('safetensors.torch.save_file', full)
    assert torch.equal(cached('weights', 'key', lambda: {'a': torch.ones(2)})['a'], torch.ones(2))
    assert 'No space left' in capsys.readouterr().err


def test_a_failure_leaves_nothing_in_the_cache(cache):
    with pytest.raises(ZeroDivisionError):
        cached('things', 'key', lambda: 1 / 0)
    assert not [path for path in cache.rglob('*') if path.is_file() and path.suffix != '.lock']
    assert torch.equal(cached('things', 'key', lambda: {'a': torch.ones(2)})['a'], torch.ones(2))


def link(kind, target):
    """Return a tar member that is a link."""
    member = tarfile.TarInfo('train/red/link.png')
    member.type, member.linkname = kind, target
    return member


@pytest.mark.parametrize('form', FORMS)
@pytest.mark.parametrize('name, data, words', [
    ('red/no.jpg', b'no image', r'red/no.jpg.*cannot be decoded'),
    ('red/notes.txt', b'notes', r'red/notes.txt.*is not an image'),
    ('red/empty.png', b'', r'red/empty.png.*0 bytes'),
    ('red/cut.png', encoded('red', 'PNG')[:60], r'red/cut.png.*cannot be decoded'),
    ('red/bomb.png', bomb(60_000), r'red/bomb.png.*cannot be decoded.*pixels'),
])
def test_what_is_no_image_is_refused_by_name(form, name, data, words, tmp_path, cache):
    root = made(tmp_path, form, train={**class_files(2), name: data})
    with pytest.raises(DataError, match=words):
        image_folder(root, size=8)
    assert not list(cache.rglob('*.safetensors'))


@pytest.mark.parametrize('train, test, words', [
    ({}, None, 'train.tar.gz holds no images'),
    (None, {}, 'test.tar.gz holds no images'),
    (class_files(3, ['red']), class_files(3, ['red']), 'at least two classes, got only red'),
    (class_files(3), class_files(3, ['red']), 'test.tar.gz holds no images of blue'),
    (class_files(3, ['red']), class_files(3), 'train.tar.gz holds no images of blue'),
])
def test_a_data_set_that_lacks_something_is_refused(train, test, words, tmp_path):
    with pytest.raises(DataError, match=words):
        image_folder(made(tmp_path, train=train, test=test), size=8)


@pytest.mark.parametrize('name', ['../evil.png', 'train/red/../../../evil.png', '/tmp/evil.png',
                                  '..\\evil.png'])
@pytest.mark.parametrize('form', FORMS[1:])
def test_a_name_that_leads_out_of_the_archive_is_refused(form, name, tmp_path):
    root = made(tmp_path, form)
    write(Path(root) / form.format('train'), {name: encoded('red', 'PNG')})
    with pytest.raises(DataError, match=r'evil.png.*leads out of the archive'):
        image_folder(root)


@pytest.mark.parametrize('kind', [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize('form', ['w', 'w:gz'])
def test_a_link_in_a_tar_is_refused(kind, form, tmp_path):
    root = Path(made(tmp_path))
    (root / 'train.tar.gz').unlink()
    with tarfile.open(root / ('train.tar' if form == 'w' else 'train.tar.gz'), form) as archive:
        archive.addfile(link(kind, '/etc/passwd'))
    with pytest.raises(DataError, match=r'red/link.png.*is a link'):
        image_folder(str(root))


def test_a_link_in_a_zip_is_refused(tmp_path):
    root = made(tmp_path, '{}.zip')
    with zipfile.ZipFile(Path(root) / 'train.zip', 'a') as archive:
        info = zipfile.ZipInfo('train/red/link.png')
        info.external_attr = 0o120777 << 16
        archive.writestr(info, '/etc/passwd')
    with pytest.raises(DataError, match=r'red/link.png.*is a link'):
        image_folder(root)


def test_an_archive_that_is_cut_off_is_refused(tmp_path):
    root = Path(made(tmp_path))
    whole = (root / 'train.tar.gz').read_bytes()
    (root / 'train.tar.gz').write_bytes(whole[:len(whole) // 2])
    with pytest.raises(DataError, match=r'train.tar.gz cannot be read.*is it whole'):
        image_folder(str(root))


def test_what_is_not_there_or_there_twice_is_refused(tmp_path):
    with pytest.raises(DataError, match=r'holds no train; it needs one of train, train.tar'):
        image_folder(str(tmp_path))
    root = made(tmp_path)
    os.mkdir(Path(root) / 'train')
    with pytest.raises(DataError, match=r'both train and train.tar.gz'):
        image_folder(root)


def test_memory_is_bounded(tmp_path):
    root = made(tmp_path)
    with pytest.raises(DataError, match=r'MiB decoded.*smaller size'):
        image_folder(root, size=64, memory=0.1)


@pytest.mark.parametrize('memory', [0, -1.0, float('nan')])
def test_memory_that_is_none_is_refused(memory, tmp_path):
    with pytest.raises(DataError, match='memory must be more than 0 MiB, got'):
        image_folder(made(tmp_path), size=8, memory=memory)


@pytest.mark.parametrize('form', FORMS)
def test_what_lies_in_a_hidden_folder_is_no_class(form, tmp_path):
    """Files in a hidden folder belong to no class.

    For example, Jupyter notebooks leave copies of files in the folder .ipynb_checkpoints. An
    earlier version made a class of this folder.
    """
    hidden = {'.ipynb_checkpoints/000.png': encoded('red', 'PNG'),
              '.ipynb_checkpoints/notes.txt': b'', 'red/.thumbnails/0.png': b''}
    data = image_folder(made(tmp_path, form, {**class_files(6), **hidden},
                             {**class_files(2), **hidden}), size=8)
    assert data.classes == 2 and len(data.train_images) == 12


def test_folders_that_are_linked_are_read_and_none_twice(tmp_path):
    """The loader follows links to folders, and reads no image twice.

    An earlier version silently left out linked folders.
    """
    root = Path(made(tmp_path, '{}'))
    (root / 'train' / 'train' / 'red').rename(tmp_path / 'elsewhere')
    (root / 'train' / 'train' / 'red').symlink_to(tmp_path / 'elsewhere')
    for name, target in (('up', root), ('across', tmp_path / 'other')):
        (root / 'train' / 'train' / name).symlink_to(target)
    (tmp_path / 'other').mkdir()
    (tmp_path / 'other' / 'back').symlink_to(root / 'train')
    data = image_folder(str(root), size=8)
    assert data.train_labels.tolist() == [0] * 6 + [1] * 6


def test_names_of_folders_may_have_any_bytes(tmp_path):
    """The loader accepts class folders whose names are not valid UTF-8.

    In an earlier version, names in Latin-1 raised a UnicodeEncodeError.
    """
    root = Path(made(tmp_path, '{}'))
    for part in ('train', 'test'):
        (root / part / part / 'red').rename(os.fsdecode(os.fsencode(root / part) + b'/t\xfcr'))
    assert image_folder(str(root), size=8).classes == 2


def test_of_two_files_of_one_name_the_last_counts(tmp_path):
    """If an archive has two files of the same name, only the last file counts.

    Tools that change an archive append the new file and keep the old file. An earlier version
    counted both files of a zip.
    """
    root = made(tmp_path, '{}.zip')
    with zipfile.ZipFile(Path(root) / 'train.zip', 'a') as archive, \
            pytest.warns(UserWarning, match='Duplicate'):
        archive.writestr('train/red/000.jpg', encoded('red', 'PNG', 7))
    assert len(image_folder(root, size=8).train_images) == 12


@pytest.mark.parametrize('name', ['loose.png', 'red\\loose.png'])
@pytest.mark.parametrize('form', FORMS)
def test_an_image_in_no_folder_is_refused_by_name(form, name, tmp_path):
    root = made(tmp_path, form)
    write(Path(root) / form.format('train'), {**class_files(2), name: encoded('red')})
    with pytest.raises(DataError, match=r'loose.png in .*train.* must be in a folder'):
        image_folder(root, size=8)


class Counted(torch.nn.Module):
    """A tiny recogniser that counts how often it is trained."""

    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(3, 2)

    def forward(self, images):
        Counted.steps += self.training
        return self.out(images.mean((2, 3)))


def pretrained(root, **options):
    task = Cruda(data='image_folder', data_options={'root': root, 'size': 8},
                 model='test_image_folder:Counted', **options)
    model, Counted.steps = task.model(), 0
    task.pretrain(model)
    return [p.clone() for p in model.parameters()], Counted.steps


def test_a_model_is_pretrained_once_and_kept(tmp_path):
    root = made(tmp_path)
    first, steps = pretrained(root, pretrain_epochs=3)
    assert steps == 3
    again, steps = pretrained(root, pretrain_epochs=3)
    assert steps == 0 and all(map(torch.equal, first, again))
    assert pretrained(root, pretrain_epochs=4)[1] == 4
    assert pretrained(root, pretrain_epochs=3, seed=1)[1] == 3
    assert pretrained(root, pretrain_epochs=3, seed=7, pretrain_seed=1)[1] == 0


def test_a_part_of_the_test_images_has_all_classes(tmp_path):
    """A limited set of test images still contains images of all classes.

    The images are sorted by class, so the first four images all have the same class.
    """
    task = Cruda(data='image_folder', data_options={'root': made(tmp_path, test=class_files(8))},
                 pretrain_epochs=0, test_limit=4)

    class Red(torch.nn.Module):
        def forward(self, images):
            return torch.tensor([[0.0, 1.0]]).expand(len(images), 2)
    assert task.evaluate_clean(Red()) == .5


def test_cruda_adapts_to_images_of_a_folder(tmp_path):
    task = Cruda(data='image_folder', data_options={'root': made(tmp_path), 'size': 16},
                 model='convmlp', pretrain_epochs=0, split='place')
    task.batch_size = 4
    model = task.model()
    images, labels = next(task.batches(1, 2))
    assert images.dtype == torch.float32 and images.shape == (4, 3, 16, 16) and len(labels) == 4
    assert images.min() >= .12  # the shift adds this brightness
    assert task.loss(model, (images, labels)).isfinite() and 0 <= task.evaluate(model) <= 1
    assert sum(len(labels) for _, labels in task.shard(0, 2)) == 6
