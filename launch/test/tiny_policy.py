"""The smallest policy for tests of launch files."""

import torch
from fleet_policy.policy import Policy


class Tiny(Policy):
    """Moves two joints a little."""

    contract = {
        'rate': 20.0,
        'observations': {'state': {'topic': 'joint_states', 'names': ['a', 'b'],
                                   'type': 'sensor_msgs/msg/JointState'}},
        'actions': {'arm': {'topic': 'commands', 'type': 'std_msgs/msg/Float64MultiArray',
                            'size': 2}}}

    def model(self):
        return torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Tanh(),
                                   torch.nn.Unflatten(1, (32, 2))).eval()

    def observe(self, batch):
        return batch['state']

    def actions(self, output):
        return output
