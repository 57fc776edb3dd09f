"""The loop and the image formats that all contestants of bench_calls.py share.

This module needs only numpy, Pillow and PyTorch.

A client infers one image after the other until its process is ended. It prints for each
inference:

- the monotonic time at which the inference ends, and its duration in seconds
- whether the server took part
- bytes up, bytes down and round trips so far; they are 0 if the client does not count
  them
- the largest error relative to the largest element of the output

After the first inference the client pauses for `FIRST` seconds, so that the bench can
record the cost of this inference.
"""

from __future__ import annotations

import io
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

QUALITY = 90        # quality of JPEG
FIRST = 0.5         # pause after the first inference, in seconds
# a picture of each camera: uint8 (rows, columns, 3), or a JPEG as the camera gives it
Pictures = list[Any]
Infer = Callable[[Pictures], np.ndarray]      # returns the model's output


def run(infer: Infer, folder: str, period: float,
        told: Callable[[], tuple[bool, int, int, int]] = lambda: (True, 0, 0, 0)) -> None:
    """Run inferences that begin ``period`` seconds after each other.

    If an inference takes longer than ``period``, the next one begins when it ends. ``told``:
    function that returns whether the server took part, and the bytes up, bytes down and round
    trips so far.
    """
    images, want = pictures_of(folder), np.load(Path(folder, 'outputs.npy'))
    for k in itertools.count():
        began = time.monotonic()
        try:
            got = infer(images[k % len(images)])
        except Exception as error:   # the call is lost: the program ends, as a user's program would
            print(f'ended: {type(error).__name__}: {error}', flush=True)
            return
        ended = time.monotonic()
        right = want[k % len(images)]
        print(ended, ended - began, *map(int, told()),
              float(np.abs(got - right).max() / np.abs(right).max()), flush=True)
        time.sleep(max(0.0 if k else FIRST, began + period - time.monotonic()))


def pictures_of(folder: str) -> list[Pictures]:
    """Return the pictures of all inferences: JPEGs if the bench has written these."""
    images = np.load(Path(folder, 'images.npy'))
    return [[path.read_bytes() if (path := Path(folder, f'{k}_{c}.jpg')).exists() else image
             for c, image in enumerate(images[k])] for k in range(len(images))]


def encoder(form: str, slowdown: float) -> Callable[[Any], Any]:
    """Return a function that encodes a picture in the form that a client sends.

    With 'jpeg' the function returns a JPEG, and takes as long as on a robot that is slower by the
    factor ``slowdown``. With 'raw' it returns what it gets.
    """
    def encode(image: np.ndarray) -> bytes:
        began = time.thread_time()
        data = jpeg(image)
        time.sleep((time.thread_time() - began) * (slowdown - 1))
        return data
    return encode if form == 'jpeg' else lambda image: image


def jpeg(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, 'JPEG', quality=QUALITY)
    return file.getvalue()


def picture(data: Any) -> np.ndarray:
    """Return the image that a client has sent as a JPEG or as an array."""
    return np.asarray(Image.open(io.BytesIO(data))) if isinstance(data, bytes) else data


def server_of(folder: str) -> Callable[[dict[str, Any]], np.ndarray]:
    """Return a function that runs a server's model on one thread.

    The function maps the data that a client sends, by camera, to the output of the model.
    """
    import torch
    torch.set_num_threads(1)
    model = torch.export.load(Path(folder, 'model.pt2')).module()

    def answer(data: dict[str, Any]) -> np.ndarray:
        images = [torch.from_numpy(picture(data[name]).transpose(2, 0, 1)[None].copy())
                  for name in sorted(data)]
        with torch.inference_mode():
            return model(*images).numpy()
    answer(named(pictures_of(folder)[0]))
    return answer


def named(pictures: Pictures) -> dict[str, Any]:
    """Return pictures by the name of their camera."""
    return {f'camera{k}': data for k, data in enumerate(pictures)}
