"""Convert a sensor_msgs/Image to a model's input, and a model's outputs to lopinfer_msgs/Result."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from lopinfer_msgs import msg

from ..errors import LopinferError

CHANNELS = {'rgb8': (0, 1, 2), 'bgr8': (2, 1, 0), 'rgba8': (0, 1, 2), 'bgra8': (2, 1, 0),
            'mono8': (0, 0, 0)}
BYTES = {'rgb8': 3, 'bgr8': 3, 'rgba8': 4, 'bgra8': 4, 'mono8': 1}


def image_tensor(image: Any, size: tuple[int, int]) -> torch.Tensor:
    """Convert a ROS image to uint8 (1, 3, rows, columns) of red, green and blue; scale to ``size``.

    ``size``: (rows, columns). Raise LopinferError if the encoding is unknown or the data has the
    wrong size.
    """
    if image.encoding not in CHANNELS:
        raise LopinferError(f"image encoding must be one of {', '.join(CHANNELS)}, got "
                            f"'{image.encoding}'")
    depth = BYTES[image.encoding]
    if image.step < image.width * depth or len(image.data) != image.step * image.height \
            or not image.width * image.height:
        raise LopinferError(f'image of {image.width} x {image.height} with {len(image.data)} bytes '
                            f'in rows of {image.step} does not fit {image.encoding}')
    rows = np.frombuffer(image.data, np.uint8).reshape(image.height, image.step)
    pixels = rows[:, :image.width * depth].reshape(image.height, image.width, depth)
    chosen = np.ascontiguousarray(pixels[:, :, CHANNELS[image.encoding]].transpose(2, 0, 1))
    return scaled(torch.from_numpy(chosen)[None], size)


def scaled(images: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Scale uint8 images (n, channels, rows, columns) to ``size``: bilinear with antialiasing."""
    if tuple(images.shape[2:]) == size:
        return images
    other = torch.nn.functional.interpolate(images.float(), size, mode='bilinear', antialias=True,
                                            align_corners=False)
    return other.round().clamp(0, 255).byte()


def result_message(outputs: Sequence[torch.Tensor], header: Any, latency: float, shared: bool
                   ) -> Any:
    """Return the ROS message of a model's outputs; all tensors are converted to float32."""
    message = msg.Result(header=header, latency=latency, offloaded=shared)
    message.outputs = [msg.Tensor(shape=array('I', t.shape),
                                  values=array('f', t.float().contiguous().numpy().tobytes()))
                       for t in (o.detach().cpu() for o in outputs)]
    return message
