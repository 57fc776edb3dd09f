"""Tests compute on one thread: they run beside each other's processes on few cores."""

import torch

torch.set_num_threads(1)
