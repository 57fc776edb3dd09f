"""Folders, archives and recordings as sources of labelled images; errors name what is wrong."""

import gzip
import os
import re
from itertools import islice
from pathlib import Path

import pytest
import torch
from rog_tasks.errors import DataError, TaskError
from rog_tasks.models import MODELS
from rog_tasks.sources import open_source
from rog_tasks.sources.bag import Recording
from safetensors.torch import save_file
from sample_images import (
    CLASSES,
    class_files,
    compressed,
    encoded,
    image,
    record,
    right,
    text,
    write,
)

KINDS = ['photos', 'photos.zip', 'photos.tar', 'photos.tar.gz', 'photos.tgz']
CIFAR = Path(__file__).parents[5] / 'shared/data/cifar10/train.tar.gz'


def source(images, labels='', classes=CLASSES, **form):
    return open_source(images, labels, **{'classes': classes, 'size': 8, **form})


def folder(path, files, **options):
    return source(f'folder:{write(path, files)}', **options)


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


# -- folders and archives ---


@pytest.mark.parametrize('kind', KINDS)
def test_robots_share_the_class_folders_and_each_reads_its_own(tmp_path, kind):
    made = folder(tmp_path / kind, {f'train/{n}': d for n, d in class_files(6).items()})
    shares = [list(made.shard(rank, 3, 3)) for rank in range(3)]
    assert [sum(len(labels) for _, labels in share) for share in shares] == [4, 4, 4]
    assert all(right(batch) for share in shares for batch in share)
    images = torch.cat([images for share in shares for images, _ in share])
    assert len(images.unique(dim=0)) == 12 and images.shape == (12, 3, 8, 8)
    assert made.report().level == 'ok'


@pytest.mark.parametrize('kind', KINDS)
def test_batches_go_round_in_new_orders_the_same_for_the_seed(tmp_path, kind):
    made = folder(tmp_path / kind, class_files(6))
    first = list(islice(made.batches(0, 2, 4), 6))
    assert all(right(batch) and len(batch[1]) == 4 for batch in first)
    again = made.batches(0, 2, 4)
    again.skip(2)
    assert all(map(same, again, first[2:]))
    other = folder(tmp_path / kind, class_files(6), seed=1)
    assert not same(next(other.batches(0, 2, 4)), first[0])


def test_grey_images_and_a_part_of_the_classes(tmp_path):
    files = class_files(4) | {'dog/1.jpg': b'not looked at', 'red/notes.txt': b'', '._x.jpg': b''}
    images, labels = next(iter(folder(tmp_path, files, channels=1).shard(0, 1, 99)))
    assert images.shape == (8, 1, 8, 8) and labels.bincount().tolist() == [4, 4]


def test_each_robot_may_have_a_folder_of_its_own(tmp_path):
    for rank, name in enumerate(CLASSES):
        write(tmp_path / f'robot{rank}', class_files(3, [name]))
    for rank in range(2):
        made = source(f'folder:{tmp_path}/robot{{rank}}')
        assert next(made.batches(rank, 2, 3))[1].tolist() == [rank] * 3


@pytest.mark.parametrize('kind', KINDS)
def test_images_that_cannot_be_read_are_left_out_counted_and_named(tmp_path, kind):
    files = class_files(4) | {'red/broken.jpg': encoded('red')[:200], 'blue/empty.png': b''}
    made = folder(tmp_path / kind, files)
    batches = list(islice(made.batches(0, 1, 5), 4))
    assert sum(len(labels) for _, labels in batches) == 20 - 4 and all(map(right, batches))
    report = made.report()
    assert report.level == 'warn' and report.values['unreadable'] == 4
    assert re.search(r'(red/broken.jpg|blue/empty.png)', report.message)
    again = made.batches(0, 1, 5)
    again.skip(3)
    # batch 3 does not depend on the batches that were read before
    assert same(next(again), batches[3])


def test_a_folder_of_nothing_but_damage_ends_with_an_error(tmp_path):
    made = folder(tmp_path, {'red/1.jpg': b'x', 'blue/1.jpg': b'y'})
    with pytest.raises(DataError, match='none of 2 images can be used; last .*1.jpg: cannot be'):
        next(made.batches(0, 1, 1))


def cut(path):
    path.write_bytes(path.read_bytes()[:-len(path.read_bytes()) // 2])


@pytest.mark.parametrize('name, prepare, words', [
    ('none', lambda path: None, r'none is not there; name a folder or an archive'),
    ('empty', Path.mkdir, r'empty holds no images \(.jpg, .jpeg, .png\)'),
    ('photos.txt', Path.touch, 'is neither a folder nor an archive'),
    ('e.zip', lambda path: write(path, {}), 'holds no images'),
    ('e.tar', lambda path: write(path, {}), 'holds no images'),
    ('x.zip', lambda path: path.write_bytes(b'x' * 99), 'x.zip cannot be read'),
    ('x.tar', lambda path: path.write_bytes(b'x' * 999), 'x.tar cannot be read'),
    ('x.tgz', lambda path: path.write_bytes(b'x' * 99), 'x.tgz cannot be read'),
    ('c.zip', lambda path: cut(write(path, class_files())), 'c.zip cannot be read'),
    ('c.tar', lambda path: cut(write(path, class_files())), 'c.tar cannot be read'),
    ('c.tgz', lambda path: cut(write(path, class_files())), 'c.tgz cannot be read'),
    ('z.tar', lambda path: path.write_bytes(gzip.compress(bytes(9999))), 'z.tar cannot be read'),
    ('one', lambda path: write(path, class_files(2, ['red'])),
     'one has no images of blue; its folders are red'),
    ('other', lambda path: write(path, {'dog/1.jpg': b'', 'cat/1.jpg': b''}),
     'has no images of blue, red; its folders are cat, dog')])
def test_files_that_cannot_be_used_are_named_with_what_is_there(tmp_path, name, prepare, words):
    prepare(tmp_path / name)
    with pytest.raises(DataError, match=words) as error:
        source(f'folder:{tmp_path / name}').batches(0, 1, 2)
    assert str(tmp_path) in str(error.value)


def test_a_pipe_called_like_an_image_does_not_block(tmp_path):
    write(tmp_path, class_files(2))
    os.mkfifo(tmp_path / 'red/pipe.jpg')
    made = source(f'folder:{tmp_path}')
    assert len(list(made.shard(0, 1, 99))[0][1]) == 4
    assert 'it is not a regular file' in made.report().message


def test_a_compressed_archive_takes_no_more_memory_than_allowed(tmp_path):
    write(tmp_path / 'photos.tgz', class_files(40))
    made = source(f'folder:{tmp_path}/photos.tgz?memory=0.02')
    with pytest.raises(DataError, match='0.02 are allowed; unpack it to a folder, or raise memory'):
        made.batches(0, 1, 4)
    made.batches(0, 5, 4)  # one of five robots needs only a fifth of the archive


def test_more_robots_than_images(tmp_path):
    with pytest.raises(DataError, match='4 samples cannot be cut into 5 shards'):
        folder(tmp_path, class_files(2)).batches(0, 5, 2)


@pytest.mark.long
@pytest.mark.skipif(not CIFAR.exists(), reason=f'{CIFAR} is not on this machine')
def test_cifar_is_read_in_its_archive():
    names = ['airplane', 'automobile', 'bird', 'cat', 'deer', 'dog', 'frog', 'horse', 'ship',
             'truck']
    made = source(f'folder:{CIFAR}', classes=names, size=32)
    images, labels = next(made.batches(1, 4, 256))
    assert images.shape == (256, 3, 32, 32) and .3 < images.mean() < .6
    assert labels.bincount(minlength=10).min() > 5
    assert made.report().level == 'ok'


# -- recordings ---


def drive(count=12, label=True, sensor=image):
    """Yield the messages of a drive past blue and red walls.

    Each message is in a tuple: topic, time in seconds, and message. A label comes a little after
    its image.
    """
    for number in range(count):
        name = CLASSES[number % 2]
        yield '/cam', number * 1.0, sensor(name, number)
        if label:
            yield '/said', number * 1.0 + 0.1, text(name)


def packed(name, seed):
    return compressed(encoded(name, seed=seed))


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
@pytest.mark.parametrize('sensor', [image, packed])
def test_a_recording_is_played_with_its_labels(tmp_path, storage, sensor):
    record(tmp_path / 'bag', drive(sensor=sensor), storage)
    made = source(f'bag:{tmp_path}/bag?topic=/cam', 'topic:/said')
    batches = list(islice(made.batches(0, 3, 4), 8))
    assert all(right(batch) and len(batch[1]) == 4 for batch in batches)
    assert made.report().level == 'ok' and made.report().values['passes'] == 1
    file = next((tmp_path / 'bag').glob('*.[md][cb]*'))
    alone = source(f'bag:{file}?topic=/cam', 'topic:/said').batches(0, 3, 4)
    assert same(next(alone), batches[0])


def test_a_long_recording_passes_through_a_bounded_buffer_again_and_again(tmp_path):
    record(tmp_path / 'bag', drive(40))
    made = source(f'bag:{tmp_path}/bag?topic=/cam&keep=8&memory=1', 'topic:/said')
    batches = list(islice(made.batches(0, 1, 4), 30))
    assert all(map(right, batches)) and made.report().values['passes'] >= 2
    assert len(torch.cat([images for images, _ in batches]).unique(dim=0)) > 30
    again = source(f'bag:{tmp_path}/bag?topic=/cam&keep=8&memory=1', 'topic:/said')
    assert all(map(same, again.batches(0, 1, 4), batches))


def test_corrupt_images_of_a_recording_are_skipped_counted_and_named(tmp_path):
    events = [*drive(6), ('/cam', 10.0, image('red', encoding='32FC1')),
              ('/cam', 11.0, image('red', step=7)), ('/said', 11.0, text('dgo'))]
    record(tmp_path / 'bag', events)
    made = source(f'bag:{tmp_path}/bag?topic=/cam', 'topic:/said')
    assert len(next(made.batches(0, 1, 24))[1]) == 6
    report = made.report()
    assert report.level == 'warn' and report.values['refused'] == 2
    assert report.values['unknown labels'] == 1
    assert "label 'dgo' is not one of blue, red" in report.message


def test_damaged_messages_are_skipped_and_counted(tmp_path):
    events = list(drive(4))
    for at in (3, 5):
        events.insert(at, ('/cam', events[at][1], b'\0\1\0\0' + b'\xff' * 40))
    record(tmp_path / 'bag', events)
    made = source(f'bag:{tmp_path}/bag?topic=/cam', 'topic:/said')
    assert right(next(made.batches(0, 1, 4)))
    assert made.report().message.startswith('some cannot be used: 2 damaged messages, last ')
    assert 'Error: ' in made.report().message


def test_each_robot_may_have_a_recording_of_its_own(tmp_path):
    for rank, name in enumerate(CLASSES):
        record(tmp_path / f'robot{rank}', [('/cam', 1.0, image(name)), ('/said', 1.0, text(name))])
    made = source(f'bag:{tmp_path}/robot{{rank}}?topic=/cam', 'topic:/said')
    for rank in range(2):
        assert next(made.batches(rank, 2, 1))[1].tolist() == [rank]
    assert made.report().values['images'] == 2


@pytest.mark.parametrize('spec, labels, words', [
    ('bag?topic=/camera', 'self', r'bag has no topic /camera .*; topics of that type: /cam$'),
    ('bag?topic=/said', 'self', r'/said is of type std_msgs/msg/String, not .*: /cam$'),
    ('bag?topic=/cam', 'topic:/label', r'no topic /label .*; topics of that type: /said'),
    ('bag?topic=/cam', 'topic:/cam', r'/cam is of type sensor_msgs/msg/Image, not std_msgs'),
    ('nothing?topic=/cam', 'self', 'nothing is not there; name the folder of a rosbag2 recording'),
    ('empty?topic=/cam', 'self', 'empty has no topic /cam .*; its topics are none')])
def test_a_recording_without_the_topic_says_what_there_is(tmp_path, spec, labels, words):
    record(tmp_path / 'bag', drive(2))
    record(tmp_path / 'empty', [])
    with pytest.raises(DataError, match=words):
        source(f'bag:{tmp_path}/{spec}', labels).batches(0, 1, 2)


@pytest.mark.parametrize('labels', [
    [], [('/said', 90.0, text('red'))], [('/said', 0.0, text('dog'))]])
def test_a_recording_whose_labels_fit_no_image_says_so(tmp_path, labels):
    record(tmp_path / 'bag', sorted([*drive(3, label=False), *labels, ('/said', 95.0, text('red'))],
                                    key=lambda event: event[1]))
    made = source(f'bag:{tmp_path}/bag?topic=/cam', 'topic:/said')
    with pytest.raises(DataError, match='none of the 3 images of /cam can be used: .* 3 have no '
                                        'label within 0.5 s on /said'):
        next(made.batches(0, 1, 2))


@pytest.mark.parametrize('storage', ['mcap', 'sqlite3'])
@pytest.mark.parametrize('spoil', [
    lambda file: file.write_bytes(file.read_bytes()[:len(file.read_bytes()) // 2]),
    lambda file: file.write_bytes(b'\xff' * 5000), lambda file: file.write_bytes(b''),
    Path.unlink, lambda file: (file.parent / 'metadata.yaml').unlink(),
    lambda file: (file.parent / 'metadata.yaml').write_text('{')])
def test_a_damaged_recording_is_named(tmp_path, storage, spoil):
    record(tmp_path / 'bag', drive(60), storage)
    spoil(next(path for path in (tmp_path / 'bag').iterdir() if path.suffix != '.yaml'))
    with pytest.raises(DataError, match=r'bag cannot be read as a recording.*ros2 bag reindex'):
        next(source(f'bag:{tmp_path}/bag?topic=/cam', 'self').batches(0, 1, 2))


ROS1, ZSTD = b'#ROSBAG V2.0\n' + bytes(100), b'\x28\xb5\x2f\xfd' + bytes(100)


@pytest.mark.parametrize('name, content, says', [
    ('a.bag', ROS1, r'a\.bag is a recording of ROS 1; convert it: rosbags-convert --src \S+a\.bag '
                    r'--dst \S+/a$'),
    ('a.bag.active', ROS1, 'rosbag reindex .*, then rosbags-convert'),
    ('a.db3', ROS1, 'a recording of ROS 1'),
    ('folder/a.bag', ROS1, 'a recording of ROS 1'),
    ('a.db3.zstd', ZSTD, r'compressed by zstd; name the folder .*: zstd -d \S+a\.db3\.zstd$'),
    ('a.mcap.zstd', ZSTD, 'compressed by zstd'), ('folder/a.mcap.zstd', ZSTD, 'compressed by zstd'),
    ('a.txt', b'hello', 'is not a rosbag2 recording; name the folder'), ('a.bag', b'', 'is not a')])
def test_a_recording_of_another_kind_is_said_to_be_one(tmp_path, name, content, says):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says) as found:
        Recording(str(tmp_path / name.partition('/')[0]), {})
    assert 'ros2 bag' not in str(found.value)


# -- labels from models ---


def teacher(path, bias):
    """Write the weights of a model that gives every image the logits ``bias``; return the file."""
    model = MODELS['digitnet'](3, 2)
    for parameter in model.parameters():
        parameter.data.zero_()
    model.out.bias.data = torch.tensor(bias)
    save_file(model.state_dict(), path)
    return path


@pytest.mark.parametrize('bias, threshold, label', [
    ([0., 2.], 0, 1), ([2., 0.], .8, 0), ([2., 0.], .9, -1)])
def test_a_teacher_labels_what_it_is_sure_of(tmp_path, bias, threshold, label):
    weights = teacher(tmp_path / 'w.safetensors', bias)
    files = {f'{n}.jpg': encoded('red', seed=n) for n in range(5)}
    made = folder(tmp_path / 'photos', files,
                  labels=f'teacher:digitnet?weights={weights}&threshold={threshold}')
    assert next(made.batches(0, 1, 5))[1].tolist() == [label] * 5
    assert made.report().values['labels given by teacher'] == (5 if label >= 0 else 0)


def test_a_model_teaches_itself_where_it_is_sure():
    made = source('topic:camera', 'self?threshold=0.7')
    logits = torch.tensor([[3., 0.], [0., .1], [0., 3.]], requires_grad=True)
    loss = made.loss(logits, torch.tensor([-1, -1, 0]))
    wanted = torch.nn.functional.cross_entropy(logits[[0, 2]], torch.tensor([0, 0]))
    torch.testing.assert_close(loss, wanted)
    nothing = made.loss(logits[1:2], torch.tensor([-1]))
    nothing.backward()
    assert nothing == 0 and not logits.grad.any()


@pytest.mark.parametrize('make, words', [
    (lambda path: None, 'there is no .*w.safetensors'),
    (lambda path: path.write_bytes(b'x' * 99), 'w.safetensors is not a safetensors file'),
    (lambda path: save_file(MODELS['digitnet'](1, 2).state_dict(), path), 'has the shape')])
def test_weights_that_do_not_fit_are_named(tmp_path, make, words):
    make(tmp_path / 'w.safetensors')
    made = folder(tmp_path / 'photos', class_files(1),
                  labels=f'teacher:digitnet?weights={tmp_path}/w.safetensors')
    with pytest.raises(DataError, match=words):
        made.batches(0, 1, 1)


# -- texts that name a source ---


@pytest.mark.parametrize('images, labels, words', [
    ('/photos', '', "images must be one of topic:..., bag:..., folder:..., got '/photos'"),
    ('folder:', '', 'must be one of topic:'), ('topic', 'self', 'must be one of topic:'),
    ('folder:x?keeep=1', '', "has no option 'keeep'"),
    ('topic:x?keeep=1', 'self', "did you mean 'keep'?"),
    ('topic:x?keep=0', 'self', 'keep must be a whole number between 1 and'),
    ('topic:x?keep=1.5', 'self', 'keep must be a whole number'),
    ('topic:x?patience=nan', 'self', 'patience must be a number'),
    ('topic:x', '', 'need labels: topic:NAME'),
    ('topic:x', 'folder:', 'must be one of folder, topic'),
    ('topic:a b', 'self', "'a b' cannot be the name of a topic"),
    ('topic:x', 'folder', 'cannot have labels'), ('folder:x', 'topic:y', 'cannot have labels'),
    ('bag:x', 'self', 'need the topic'), ('topic:x', 'self?threshold=2', 'threshold must be'),
    ('topic:x', 'teacher:lenet5', 'need the file of the weights')])
def test_a_text_that_names_no_source_says_what_there_is(images, labels, words):
    with pytest.raises(TaskError, match=re.escape(words)):
        source(images, labels)


@pytest.mark.parametrize('form', [{'classes': ['a']}, {'classes': 'ab'}, {'classes': ['a', 'a']},
                                  {'classes': [1, 2]}, {'size': 0}, {'channels': 2}])
def test_a_form_of_images_that_cannot_be(form):
    with pytest.raises(TaskError):
        source('topic:x', 'self', **form)


@pytest.mark.parametrize('spec', ['bag:{}?topic=/cam', 'topic:cam'])
def test_a_method_that_deals_out_shards_needs_a_folder(tmp_path, spec):
    made = source(spec.format(record(tmp_path / 'bag', drive(2))), 'self')
    with pytest.raises(TaskError, match='needs a folder of images'):
        made.shard(0, 1, 2)
    made.batches(0, 2, 1)
    with pytest.raises(TaskError, match='a folder of images'):
        made.batches(1, 2, 1)
