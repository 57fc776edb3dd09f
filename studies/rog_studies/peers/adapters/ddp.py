"""Plain PyTorch: DistributedDataParallel over gloo, in torchrun's elastic mode.

The program follows PyTorch's tutorials "Fault-tolerant Distributed Training with torchrun" and
"Multinode training". A robot's process is torchrun's elastic agent. Whenever the group of robots
changes, the agent starts this program again as a worker. The server holds the store by which the
robots find each other. Every robot saves its training state on its own disk. After each start of
the workers, all robots continue from the newest state that any of them has saved.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .task import Journal, Task, arguments, own_address, save

PORT = 29400
# seconds after which an exchange fails; gloo's default (30 min) is longer than a run
SILENCE = 120.0
KEEP_EVERY = 10.0  # seconds between two saves of a robot's own state
FILE = 'kept.npz'  # file with the saved state of a robot, in the folder of its process


def main() -> None:
    """Run as the server or as a robot, as ``--role`` says."""
    options = arguments((('--worker', {'action': 'store_true'}),))
    if options.role == 'server':
        store = dist.TCPStore(options.server, PORT, is_master=True, wait_for_workers=False)
        print(f'the store listens on {store.host}:{store.port}', flush=True)
        threading.Event().wait()
    elif options.worker:
        train(options.folder, options.robot)
    else:
        # Replace this process by the elastic agent.
        os.execv(sys.executable, [
            sys.executable, '-m', 'torch.distributed.run', f'--nnodes=1:{options.robots}',
            '--nproc-per-node=1', '--max-restarts=1000', '--rdzv-backend=c10d',
            f'--rdzv-endpoint={options.server}:{PORT}', '--rdzv-id=study',
            '--rdzv-conf=is_host=0', f'--local-addr={own_address(options.server)}',
            '-m', 'adapters.ddp', '--worker', *sys.argv[1:]])


def train(folder: Path, robot: int) -> None:
    """Train until the study ends this process, or an exchange fails."""
    torch.set_num_threads(1)
    dist.init_process_group('gloo', timeout=timedelta(seconds=SILENCE))
    task = Task(folder, robot)
    journal = Journal(folder, f'robot{robot + 1}', task.settings)
    journal.note(f'rank {dist.get_rank()} of {dist.get_world_size()}')
    model = task.model()
    optimizer = task.optimizer(model)
    step = _newest_of_all(model, optimizer)
    backward_s = _backward_seconds(task, model)
    parallel = DistributedDataParallel(model)
    saved = time.monotonic()
    for batch in islice(task.batches(), step, None):
        began = time.monotonic()
        loss = task.loss(parallel, batch)
        # Wait, because the study emulates a slow computer. The wait is before `backward`, because
        # `backward` begins the exchange with the other robots.
        time.sleep(max(began + task.settings.pace - backward_s - time.monotonic(), 0.0))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        journal.batch(len(batch[1]), task.settings.pace)
        if dist.get_rank() == 0:
            journal.version(step)
            journal.snapshot(model)
        if time.monotonic() > saved + KEEP_EVERY:
            _keep(model, optimizer, step)
            saved = time.monotonic()


def _backward_seconds(task: Task, model: nn.Module) -> float:
    """Return the seconds of one backward pass on this machine.

    `train` shortens its wait by this time.
    """
    loss = task.loss(model, next(task.batches()))
    began = time.monotonic()
    loss.backward()
    took = time.monotonic() - began
    model.zero_grad()
    return took


def _newest_of_all(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load on every robot the newest state that any robot has saved: model and momentum.

    Returns the number of training steps that this state contains; 0 if no robot has saved a
    state.
    """
    step = torch.zeros(1, dtype=torch.int64)
    velocity = [torch.zeros_like(p) for p in model.parameters()]
    if Path(FILE).exists():
        with np.load(FILE) as kept, torch.no_grad():
            step[0] = int(kept['step'])
            for index, parameter in enumerate(model.parameters()):
                parameter.copy_(torch.from_numpy(kept[f'value{index}']))
                velocity[index].copy_(torch.from_numpy(kept[f'velocity{index}']))
    steps = [torch.zeros_like(step) for _ in range(dist.get_world_size())]
    dist.all_gather(steps, step)
    newest = max(range(len(steps)), key=lambda rank: int(steps[rank]))
    for tensor in (step, *(p.data for p in model.parameters()), *velocity):
        dist.broadcast(tensor, newest)
    if step:
        for parameter, values in zip(model.parameters(), velocity, strict=True):
            optimizer.state[parameter]['momentum_buffer'] = values
    return int(step)


def _keep(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    arrays = {'step': np.array(step)}
    for index, parameter in enumerate(model.parameters()):
        arrays[f'value{index}'] = parameter.detach().numpy()
        arrays[f'velocity{index}'] = optimizer.state[parameter]['momentum_buffer'].numpy()
    save(Path(FILE), arrays)


if __name__ == '__main__':
    main()
