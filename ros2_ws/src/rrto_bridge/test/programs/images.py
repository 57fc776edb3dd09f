"""A node that subscribes to images and publishes the results of a model."""

import array

import rclpy
import torch
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from results import COUNT, DEVICE, show
from sensor_msgs.msg import Image
from torch import nn


class Looker(Node):
    def __init__(self):
        super().__init__('looker')
        torch.manual_seed(9)
        self.model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(),
                                   nn.Linear(144, 2)).to(DEVICE)
        self.seen = 0
        self.create_subscription(Image, 'image', self.on_image, 10)

    @torch.no_grad()
    def on_image(self, message):
        pixels = torch.frombuffer(message.data, dtype=torch.uint8).view(8, 8, 3)
        image = pixels.permute(2, 0, 1).float().div(255).unsqueeze(0)
        show('images', self.model(image.to(DEVICE)).cpu())
        self.seen += 1


rclpy.init()
looker, camera = Looker(), Node('camera')
publisher = camera.create_publisher(Image, 'image', 10)
executor = SingleThreadedExecutor()
executor.add_node(looker)
executor.add_node(camera)
while publisher.get_subscription_count() < 1:
    executor.spin_once(timeout_sec=0.1)
for k in range(COUNT):
    data = array.array('B', torch.randint(256, (192,), dtype=torch.uint8).tolist())
    publisher.publish(Image(height=8, width=8, encoding='rgb8', step=24, data=data))
    while looker.seen <= k:
        executor.spin_once(timeout_sec=0.1)
executor.shutdown()
rclpy.shutdown()
