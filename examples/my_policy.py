"""A policy of your own: it computes 50 actions of two joints from a camera image.

The contract of the policy is reach.yaml. You can try the policy without a robot. The folder
of both files must be on PYTHONPATH:

    PYTHONPATH=$PWD/examples:$PYTHONPATH ros2 launch rog_bringup policy.launch.py \
        policy:=my_policy:Reach robots:=robot1 mock:=true
"""

import torch
from fleet_policy.policy import Policy


class Network(torch.nn.Module):
    """The model; robot and server can share its computation."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3 * 48 * 64, 50 * 2)

    def forward(self, image):
        """Return a chunk, float32 (1, 50, 2), for an image, uint8 (1, 3, 48, 64)."""
        return self.linear(image.flatten(1) / 255).unflatten(1, (50, 2))


class Reach(Policy):
    """A policy that moves shoulder and elbow according to the image of a camera above the table."""

    contract = 'reach.yaml'                  # in this folder; the argument `contract` replaces it

    def model(self):
        """Return the network; load your weights into it here."""
        torch.manual_seed(0)                 # gives all machines equal random weights
        return Network().eval()

    def observe(self, batch):
        """Return the inputs of the model."""
        return (batch['image.top'],)

    def actions(self, output):
        """Return the chunk: 50 actions of 2 numbers."""
        return output
