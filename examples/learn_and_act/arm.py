"""A mock arm of two joints on a table, its policy, and a script that shows it how to reach.

The arm moves without delay: a command is where its joints are next.
"""

import os
from pathlib import Path

import numpy as np
import torch
from fleet_policy.policy import Policy

RATE, TICKS = 20.0, 25        # ticks in a second, as in arm.yaml; ticks of a reach
CHUNK, PLAN = 10, 5           # actions in a chunk; ticks after which the arm asks for a new one
LENGTHS = 1.0, 0.8            # m
NEAR = 0.1                    # m; a reach succeeds if the tip ends so near to the target
FASTEST = 0.6                 # rad in a tick


def tip(joints):
    """Return where the tip is, (..., 2) in m, for joints (..., 2) in rad."""
    shoulder, elbow = joints[..., 0], joints[..., 0] + joints[..., 1]
    return np.stack([LENGTHS[0] * np.cos(shoulder) + LENGTHS[1] * np.cos(elbow),
                     LENGTHS[0] * np.sin(shoulder) + LENGTHS[1] * np.sin(elbow)], -1)


def joints_at(place):
    """Return the joints (..., 2) in rad with which the tip is at a place (..., 2)."""
    one, two = LENGTHS
    bend = np.arccos(((place**2).sum(-1) - one**2 - two**2) / (2 * one * two))
    shoulder = np.arctan2(place[..., 1], place[..., 0]) - np.arctan2(
        two * np.sin(bend), one + two * np.cos(bend))
    return np.stack([shoulder, bend], -1)


HOME = joints_at(np.array([0.0, 1.0]))


def targets(dice, count, half=None):
    """Return random places (count, 2): on the right (half 0), on the left (1), or anywhere."""
    low, high = (0.0, np.pi) if half is None else (half * np.pi / 2, (half + 1) * np.pi / 2)
    angle, far = dice.uniform(low, high, count), dice.uniform(0.6, 1.6, count)
    return np.stack([far * np.cos(angle), far * np.sin(angle)], -1)


class Network(torch.nn.Module):
    """Maps joints (B, 2) and target (B, 2) to the next joints, (B, CHUNK, 2)."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Linear(4, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU())
        self.head = torch.nn.Linear(64, CHUNK * 2)

    def forward(self, joints, target):
        """Return a chunk of positions."""
        seen = torch.cat([joints - joints.new_tensor(HOME), target], 1)
        return joints[:, None] + self.head(self.body(seen)).unflatten(1, (CHUNK, 2))


class Reach(Policy):
    """A policy that brings the tip to a target."""

    contract = 'arm.yaml'

    def model(self):
        """Return the network."""
        return Network().eval()

    def observe(self, batch):
        """Return the inputs of the model."""
        return batch['state'], batch['target']

    def actions(self, output):
        """Return the chunk."""
        return output


def moved(joints, chunk, tick):
    """Return the joints after action ``tick`` of a chunk; they are as fast as they can be."""
    return joints + np.clip(chunk[..., tick, :] - joints, -FASTEST, FASTEST)


def planned(model, joints, target):
    """Return the chunks (n, CHUNK, 2) for joints (n, 2) and targets (n, 2)."""
    with torch.no_grad():
        return model(*(torch.tensor(x, dtype=torch.float32) for x in (joints, target))).numpy()


def success(model, places):
    """Return the share of the places that the arm reaches from its home."""
    joints = np.tile(HOME, (len(places), 1))
    for tick in range(TICKS):
        if tick % PLAN == 0:
            chunk = planned(model, joints, places)
        joints = moved(joints, chunk, tick % PLAN)
    return float((np.linalg.norm(tip(joints) - places, axis=1) <= NEAR).mean())


def demonstrate(folder, name, place, dice):
    """Record an episode in which the arm goes to a place: a rosbag2 recording in ``folder``."""
    from rclpy.serialization import serialize_message
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore
    from sensor_msgs.msg import JointState
    from std_msgs.msg import Float64MultiArray
    joints, goal = HOME + dice.normal(0, 0.15, 2), joints_at(place)
    begun = Path(folder).with_name('recording') / name
    begun.parent.mkdir(parents=True, exist_ok=True)
    with Writer(begun, version=9, storage_plugin=StoragePlugin.MCAP) as writer:
        store = get_typestore(Stores.ROS2_JAZZY)
        topics = {topic: writer.add_connection(f'/{topic}', kind, typestore=store)
                  for topic, kind in (('joint_states', 'sensor_msgs/msg/JointState'),
                                      ('target', 'std_msgs/msg/Float64MultiArray'),
                                      ('commands', 'std_msgs/msg/Float64MultiArray'))}
        for tick in range(TICKS):
            command = joints + 0.3 * (goal - joints)
            sent = {'joint_states': JointState(name=['shoulder', 'elbow'],
                                               position=joints.tolist()),
                    'target': Float64MultiArray(data=place.tolist()),
                    'commands': Float64MultiArray(data=command.tolist())}
            for topic, message in sent.items():
                writer.write(topics[topic], int(1e9 * (1 + tick / RATE)),
                             serialize_message(message))
            joints = command
    Path(folder).mkdir(parents=True, exist_ok=True)
    os.replace(begun, Path(folder) / name)
