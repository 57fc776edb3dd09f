"""The program of a site for `nvflare`: a training loop with FLARE's client API, as in hello-pt."""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

import nvflare.client as flare
import torch
from adapters.task import Journal, Task


def main() -> None:
    """Train each model that the server sends, and send the trained model back."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--folder', type=Path, required=True)
    folder = parser.parse_args().folder
    torch.set_num_threads(1)
    flare.init()
    name = flare.get_site_name()
    task = Task(folder, int(name.removeprefix('robot')) - 1)
    journal, steps = Journal(folder, name, task.settings), task.settings.local_steps
    model, batches = task.model(), task.batches()
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        model.load_state_dict({key: torch.as_tensor(value)
                               for key, value in received.params.items()})
        optimizer = task.optimizer(model)
        for batch in islice(batches, steps):
            with journal.computing(len(batch[1])):
                optimizer.zero_grad()
                task.loss(model, batch).backward()
                optimizer.step()
        flare.send(flare.FLModel(params=model.state_dict(),
                                 meta={'NUM_STEPS_CURRENT_ROUND': steps}))


if __name__ == '__main__':
    main()
