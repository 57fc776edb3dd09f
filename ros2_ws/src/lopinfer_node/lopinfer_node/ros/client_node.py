"""The client as a ROS 2 node: it receives images and publishes the model's results."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any

import torch
from fleet_compute.pictures import picture_of, placed, typical
from fleet_env.errors import PictureError
from fleet_env.pictures import from_message
from fleet_ros.device import torch_device
from fleet_ros.middleware import several
from fleet_ros.parameters import declare
from fleet_ros.services import bound_parameters
from lopinfer_msgs.msg import Result
from rclpy.node import Node
from sensor_msgs.msg import CompressedImage, Image
from torch.utils._pytree import tree_leaves

from .. import qos
from ..api import offload
from ..errors import ModelError
from ..model import zoo
from ..model.pictures import OfImages
from ..model.precision import Precision
from ..parameters import ClientSettings
from ..runtime.planner import TablePlanner
from .client_shell import ClientOptions
from .convert import result_message

ENDS = 10.0   # maximum seconds for which the node waits for its last inference when it ends


class ClientNode(Node):
    """Computes the model for the newest image of its topic; skips older images.

    The results go to topic `lopinfer/result`. `parameters.ClientSettings` declares the parameters.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__('lopinfer_client', **options)
        bound_parameters(self)
        self.error = ''              # why the node ended; '' if there was no error
        self.settings = s = declare(self, ClientSettings)
        if s.threads:
            torch.set_num_threads(s.threads)
        self.size = (s.height, s.width)
        self._device = torch_device(s.device)
        # Servers prepare their models with this precision. With another one, such as TF32, this
        # robot's model would be another model, which the robot would have to send.
        Precision().use()
        # these can fail, so they come before the trace, which takes long
        link, recording = s.shaped_link(), s.open_recording()
        example = typical(*self.size, s.image_transport == 'compressed')
        self._opened = ExitStack()
        self.shared = self._opened.enter_context(offload(
            zoo.load(s.model, s.pretrained, s.weights).to(self._device),
            example=placed(example, self._device),
            robot=self.get_namespace().strip('/'),
            options=ClientOptions(
                TablePlanner(s.method, latency=s.link_delay, slowdown=s.slowdown), s.server,
                s, link, recording=recording, slowdown=s.slowdown, access=s.security),
            follow=s.followed(), within=lambda model: OfImages(
                model, s.mean, s.std).to(self._device)))
        if self.shared.report is None:
            self._opened.close()
            raise ModelError(self.shared.reason)
        self._newest: tuple[Any, float] | None = None   # newest unused image, time of its arrival
        self._there = threading.Condition()
        self._closing = False
        self._results = self.create_publisher(Result, 'lopinfer/result', qos.RESULT)
        kind, topic = (Image, 'image') if s.image_transport == 'raw' else (
            CompressedImage, self.resolve_topic_name('image') + '/compressed')
        self._type = f'sensor_msgs/msg/{kind.__name__}'
        self._topic = self.create_subscription(
            kind, topic, self._on_image, qos.IMAGE).topic_name
        self._thread = threading.Thread(target=self._run, name='inference', daemon=True)
        self._thread.start()
        self.get_logger().info(f'{s.model}: waiting for images')

    def destroy_node(self) -> None:
        """Stop the threads, then release the node."""
        with self._there:
            self._closing = True
            self._there.notify()
        self._thread.join(ENDS)
        self._opened.close()
        super().destroy_node()

    def _on_image(self, image: Any) -> None:
        if many := several(self, self._topic, (self._type,)):
            self.get_logger().warning(f'{many}: is one of them of another robot?',
                                      throttle_duration_sec=10.0)
        with self._there:
            self._newest = image, time.monotonic()
            self._there.notify()

    def _run(self) -> None:
        try:
            while (newest := self._next()) is not None:
                self._infer(*newest)
        except Exception as error:
            self.error = f'inference failed: {type(error).__name__}: {error}'
            raise

    def _next(self) -> tuple[Any, float] | None:
        with self._there:
            self._there.wait_for(lambda: self._newest is not None or self._closing)
            newest, self._newest = self._newest, None
            return None if self._closing else newest

    def _infer(self, image: Any, came: float) -> None:
        former = self.shared.report     # each version that is taken up has one of its own
        before = former.offloaded if former else 0
        try:
            x = picture_of(from_message(image, self._topic), self.size)
            results = self.shared(placed(x, self._device))
        except PictureError as error:
            self.get_logger().warning(str(error), throttle_duration_sec=5.0)
            return
        outputs = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        report = self.shared.report
        self._results.publish(result_message(
            outputs, image.header, time.monotonic() - came,
            report is not None and report.offloaded > (before if report is former else 0)))
