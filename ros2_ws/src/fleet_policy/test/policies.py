"""Small policies for tests, and their contract."""

from __future__ import annotations

import torch
from fleet_policy.policy import Policy

CONTRACT = {
    'rate': 20.0,
    'observations': {
        'top': {'topic': 'camera_top', 'type': 'sensor_msgs/msg/Image', 'height': 24, 'width': 32},
        'state': {'topic': 'joint_states', 'type': 'sensor_msgs/msg/JointState',
                  'names': ['a', 'b', 'c']}},
    'actions': {
        'arm': {'topic': 'arm', 'type': 'std_msgs/msg/Float64MultiArray', 'size': 2},
        'wheels': {'topic': 'cmd_vel', 'type': 'geometry_msgs/msg/Twist', 'kind': 'velocity',
                   'fields': ['linear.x', 'angular.z']}}}
LENGTH = 40


class Net(torch.nn.Module):
    """Maps an image and joints to a chunk (1, LENGTH, 4)."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.look = torch.nn.Conv2d(3, 4, 3, 2)
        self.act = torch.nn.Linear(4 + 3, LENGTH * 4)

    def forward(self, image, state):
        seen = self.look(image.float() / 255).relu().mean((2, 3))
        return self.act(torch.cat([seen, state], 1)).reshape(1, LENGTH, 4).tanh()


class Small(Policy):
    """A policy without faults."""

    contract = CONTRACT

    def model(self):
        return Net().eval()

    def observe(self, batch):
        return batch['top'], batch['state']

    def actions(self, output):
        return output


class Sabotaged(Small):
    """A policy that works until `trouble` is set; `trouble` says what goes wrong then."""

    trouble = ''

    def observe(self, batch):
        if self.trouble == 'observe':
            raise RuntimeError('no idea')
        return super().observe(batch)

    def actions(self, output):
        if self.trouble == 'nan':
            output = output.clone()
            output[0, 3, 1] = float('nan')
        return output[:, :, :3] if self.trouble == 'shape' else output


class Misfit(Small):
    """A policy whose model was made for other inputs than those of the contract."""

    def model(self):
        class Joints(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(7, 8)

            def forward(self, top, state):
                return self.linear(state)
        return Joints().eval()


class NoFile(Small):
    """A policy that lacks a file."""

    def __init__(self):
        open('/no/such/statistics.json')


class WrongSize(Small):
    """A policy whose actions have one number too few."""

    def actions(self, output):
        return output[:, :, :3]


class Inpainting(Small):
    """A policy that inpaints: its chunks begin with the planned actions from `prefix`."""

    chunk = LENGTH

    class Model(Net):
        def forward(self, image, state, prefix, count):
            made = super().forward(image, state)
            planned = torch.arange(LENGTH)[None, :, None] < count[:, None, None]
            return torch.where(planned, prefix, made)

    def model(self):
        return self.Model().eval()

    def observe(self, batch):
        return *super().observe(batch), batch['prefix'], batch['prefix_count']
