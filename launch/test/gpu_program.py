"""A program that runs inferences on 'cuda' until it receives SIGINT; it does not import rrto."""

import signal

import torch


def stop(*_):
    # On Ctrl+C, the launcher sends a second SIGINT after the terminal's SIGINT: ignore it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


signal.signal(signal.SIGINT, stop)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).cuda()
try:
    with torch.no_grad():
        while True:
            model(torch.rand(2, 8).cuda()).cpu()
except KeyboardInterrupt:
    pass
