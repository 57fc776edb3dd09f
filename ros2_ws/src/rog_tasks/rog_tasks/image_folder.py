"""A user's own data set: JPEG and PNG files in one folder per class, or in archives.

The images are decoded once and kept in the user's cache directory under a digest of their content.
Hidden files are ignored. No other image is left out silently, because the data set is a basis for
measurements: if an image cannot be read, an error names it.
"""

import hashlib
import sys
from pathlib import Path

import numpy as np
import torch
from fleet_env.errors import PictureError
from fleet_env.pictures import decode
from numpy.typing import NDArray

from rog_tasks.cache import Progress, Tensors, cached, digest
from rog_tasks.errors import DataError, some
from rog_tasks.image_data import ImageData
from rog_tasks.sources.files import ARCHIVES, Files

_VERSION = '2'  # version of the cached content


def image_folder(root: str = 'data', size: int = 32, memory: float = 2048.0) -> ImageData:
    """Load colour images from class folders; scale them to ``size`` x ``size`` pixels.

    :param root: folder that holds ``train`` and ``test``. Each of them is a folder or an
        archive: ``.tar``, ``.tar.gz``, ``.tgz``, ``.zip``. The class of an image is the
        folder that holds the image.
    :param memory: maximum total size, in MiB, of all decoded images; also of the encoded
        images of one compressed tar.
    :raises DataError: something is missing or invalid: ``train`` or ``test``, a class, a
        file that is not an image, or a link in an archive. The message names it.
    """
    if not 1 <= size <= 4096:
        raise DataError(f'size must be 1 to 4096 pixels, got {size}')
    if not memory > 0:
        raise DataError(f'memory must be more than 0 MiB, got {memory:g}')
    parts = {part: Files(str(_find(root, part)), memory * 2**20) for part in ('train', 'test')}
    classes = _classes(parts)
    needed = sum(len(files.names) for files in parts.values()) * 3 * size * size
    if needed > memory * 2**20:
        raise DataError(f'the images of {root} take {needed / 2**20:.0f} MiB decoded, {memory:g} '
                        'are allowed; choose a smaller size, or raise memory')
    content = digest(_VERSION, str(size), *(_content(files) for files in parts.values()))
    found = cached('images', content, lambda: {
        name: tensor for part, files in parts.items()
        for name, tensor in _decoded(part, files, classes, size).items()})
    return ImageData(found['train_images'], found['train_labels'], found['test_images'],
                     found['test_labels'], len(classes), content)


def _find(root: str, part: str) -> Path:
    names = [part, *(part + suffix for suffix in ARCHIVES)]
    found = [path for path in (Path(root) / name for name in names) if path.exists()]
    if len(found) != 1:
        what = f'both {found[0].name} and {found[1].name}' if found else f'no {part}'
        raise DataError(f'{Path(root).absolute()} holds {what}; it needs one of '
                        f'{", ".join(names)}, with a folder for each class')
    return found[0]


def _classes(parts: dict[str, Files]) -> list[str]:
    """Return the sorted names of the classes, which ``train`` and ``test`` must both have."""
    there = {part: {files.class_of(name) for name in files.names} for part, files in parts.items()}
    for part, files in parts.items():
        loose = [name for name in files.names if '/' not in name]
        if loose:
            raise DataError(f'{loose[0]} in {files.path} must be in a folder, which is the class '
                            'of its images')
        folders = {name.rpartition('/')[0] for name in files.names}
        for other in files.others:
            if other.rpartition('/')[0] in folders:
                raise DataError(f'{other} in {files.path} is not an image (JPEG or PNG), but lies '
                                'among images; remove it')
        missing = sorted(set.union(*there.values()) - there[part])
        if missing:
            raise DataError(f'{files.path} holds no images of {some(missing)}')
    classes = sorted(there['train'])
    if len(classes) < 2:
        raise DataError(f'{parts["train"].path} must hold at least two classes, got only '
                        f'{classes[0]}; give each class a folder')
    return classes


def _content(files: Files) -> str:
    """Return the digest of an archive, or of the names and contents of a folder's images."""
    if files.path.is_file():
        with files.path.open('rb') as stream:
            whole = hashlib.sha256()
            while part := stream.read(2**20):
                whole.update(part)
            return whole.hexdigest()
    return digest(*(part for name in files.names for part in (name, files.read(name).data)))


def _decoded(part: str, files: Files, classes: list[str], size: int) -> Tensors:
    numbers = {name: number for number, name in enumerate(classes)}
    print(f'reading the {len(files.names)} images of {files.path}', file=sys.stderr, flush=True)
    pixels: NDArray[np.uint8] = np.empty((len(files.names), 3, size, size), np.uint8)
    files.hold(files.names)     # takes long for an archive, and is no step of the progress
    progress = Progress(f'reading the images of {files.path}', len(files.names))
    for index, name in enumerate(files.names):
        try:
            pixels[index] = decode(files.read(name), (size, size), 3)
        except PictureError as error:
            raise DataError(str(error)) from error
        progress.step()
    labels = [numbers[files.class_of(name)] for name in files.names]
    return {f'{part}_images': torch.from_numpy(pixels), f'{part}_labels': torch.tensor(labels)}
