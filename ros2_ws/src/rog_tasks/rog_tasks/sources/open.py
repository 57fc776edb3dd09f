"""Makes a source from the texts that name its images and labels."""

import re
from collections.abc import Sequence

from rog_tasks.errors import TaskError
from rog_tasks.sources.bag import BagSource
from rog_tasks.sources.camera import CameraSource
from rog_tasks.sources.folder import FolderSource
from rog_tasks.sources.source import Source, Wanted
from rog_tasks.sources.spec import parse

_IMAGES = {'topic:': ('keep', 'memory', 'patience'), 'bag:': ('topic', 'keep', 'memory'),
           'folder:': ('split', 'memory')}
_LABELS = {'folder': (), 'topic:': ('tolerance',), 'teacher:': ('weights', 'threshold'),
           'self': ('threshold',)}
_SOURCES: dict[str, type[Source]] = {
    'topic': CameraSource, 'bag': BagSource, 'folder': FolderSource}
_TOPIC = re.compile(r'(~/|/)?[A-Za-z_]\w*(/[A-Za-z_]\w*)*', re.ASCII)


def open_source(images: str, labels: str = '', *, classes: Sequence[str], size: int = 32,
                channels: int = 3, seed: int = 0) -> Source:
    """Return the source of labelled images; do not open any topic or file yet.

    :param images: ``topic:NAME``, ``bag:PATH?topic=NAME`` or ``folder:PATH``.
    :param labels: ``folder``, ``topic:NAME``, ``teacher:MODEL?weights=PATH`` or ``self``; for
        images in folders, ``folder`` is the default. ``docs/howto/data.md`` lists all options of
        images and labels.
    :param classes: names of the classes, in the order of their numbers.
    :param size, channels: images are scaled to (channels, size, size). 3 channels mean colour, 1
        channel means grey.
    :param seed: random seed of every random choice.
    :raises TaskError: a text does not name a source; the message lists the possible texts.
    """
    given = parse(images, 'images', _IMAGES, memory=1024.0 if images.startswith('folder') else 64.0)
    meant = labels or ('folder' if given.kind == 'folder' else '')
    if not meant:
        raise TaskError(f'images {images!r} need labels: topic:NAME, teacher:MODEL?weights=PATH or '
                        'self')
    whose = parse(meant, 'labels', _LABELS, threshold=0.9 if meant.startswith('self') else 0.0)
    if (given.kind == 'folder') != (whose.kind == 'folder') and whose.kind in ('folder', 'topic'):
        raise TaskError(f'images {images!r} cannot have labels {meant!r}: those of a folder are '
                        'for images in folders, those of a topic for a topic or a bag')
    if given.kind == 'bag' and not given.topic:
        raise TaskError(f'images {images!r} need the topic: bag:PATH?topic=/camera/image_raw')
    if whose.kind == 'teacher' and not whose.weights:
        raise TaskError(f'labels {meant!r} need the file of the weights: '
                        'teacher:MODEL?weights=PATH.safetensors')
    for spec in (given, whose):
        if spec.kind == 'topic' and not _TOPIC.fullmatch(spec.target):
            raise TaskError(f'{spec.target!r} cannot be the name of a topic')
    return _SOURCES[given.kind](given, whose, Wanted(tuple(classes) if not isinstance(classes, str)
                                                     else classes, size, channels, seed))
