"""A task whose sums are exact in float32, in any order; and a gate that says who may compute."""

import threading

import torch

ROWS, WIDTH = 60, 5
GATE: dict[int, threading.Semaphore] = {}  # rank -> gradients that it may compute; empty: any


class Exact:
    """60 rows of small multiples of 1/8. A gradient holds whole numbers where a weight is positive.

    With a learning rate of 1/16, no momentum, codec raw and four robots every weight stays a
    multiple of 1/64, far from what float32 rounds.
    """

    batch_size = 1

    def model(self):
        rows = (torch.arange(ROWS * WIDTH).reshape(ROWS, WIDTH) * 37 % 41 - 12) / 8
        return torch.nn.ParameterList(list(rows))

    def batches(self, rank, world):
        generator = torch.Generator().manual_seed(100 + rank)
        while True:
            yield rank, torch.randint(-5, 6, (ROWS, WIDTH), generator=generator).float()

    def loss(self, model, batch):
        rank, numbers = batch
        if rank in GATE and not GATE[rank].acquire(timeout=60):
            raise TimeoutError(f'robot {rank} was not let go on for 60 s')
        return (torch.relu(torch.stack(list(model))) * numbers).sum()

    def evaluate(self, model):
        return 0.5
