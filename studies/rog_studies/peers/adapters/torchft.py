"""torchft: a lighthouse (torchft's coordinator) at the server and a replica on every robot.

The replicas use LocalSGD or DiLoCo over gloo.

The program follows torchft's README, its `train_diloco.py` and the training loops of
its `local_sgd_integ_test`. A robot's process is torchrun's agent, as in the README. The
agent starts this program as a worker, and starts it again after each failure. The
replicas exchange their models after every `local_steps` batches. A replica that starts
again gets the state of another replica. If there is no other replica, it continues from
the state that it has saved itself.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torchft import Manager, ProcessGroupGloo
from torchft.local_sgd import DiLoCo, LocalSGD

from .task import Journal, Task, arguments, own_address, save

LIGHTHOUSE_PORT, STORE_PORT = 29510, 29511
# Time limit of an exchange in seconds. An exchange of 2.5 MB among four robots takes 60 s on
# a link of 1 Mbit/s; torchft's default of 60 s would discard every exchange over this link.
EXCHANGE = 120.0
# Time limit in seconds of a quorum, in which the replicas agree who takes part. torchft's
# documentation advises more than the time between two exchanges, and 1 h or more for DiLoCo.
QUORUM = 3600.0
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9  # as in train_diloco.py and in the DiLoCo paper
FILE = 'kept.npz'      # file with the saved state of a robot, in the folder of its process
NEW_UTS = 0x04000000   # CLONE_NEWUTS of unshare(2): a namespace for the host name


def main() -> None:
    """Run as the server or as a robot, as ``--role`` says."""
    options = arguments((('--method', {'default': 'localsgd', 'choices': ('localsgd', 'diloco')}),
                         ('--worker', {'action': 'store_true'})))
    if options.role == 'server':
        os.execvp('torchft_lighthouse', [
            'torchft_lighthouse', '--min_replicas', '1', '--quorum_tick_ms', '100',
            '--join_timeout_ms', '10000', '--bind', f'{options.server}:{LIGHTHOUSE_PORT}'])
    if options.worker:
        train(options.folder, options.robot, options.method)
        return
    own = own_address(options.server)
    _be_a_host(own)
    os.environ['TORCHFT_LIGHTHOUSE'] = f'http://{options.server}:{LIGHTHOUSE_PORT}'
    # Replace this process by torchrun.
    os.execv(sys.executable, [
        sys.executable, '-m', 'torch.distributed.run', '--nnodes=1', '--nproc-per-node=1',
        '--max-restarts=1000', f'--master-addr={own}', f'--master-port={STORE_PORT}',
        '-m', 'adapters.torchft', '--worker', *sys.argv[1:]])


def train(folder: Path, robot: int, method: str) -> None:
    """Train until the study ends this process, or until torchft raises an error."""
    logging.basicConfig(level=logging.INFO, format='%(asctime)s %(name)s %(message)s')
    torch.set_num_threads(1)
    task = Task(folder, robot)
    journal = Journal(folder, f'robot{robot + 1}', task.settings)
    model = task.model()
    optimizer = task.optimizer(model)
    outer = torch.optim.SGD(model.parameters(), OUTER_RATE, OUTER_MOMENTUM, nesterov=True)
    optimizers = {'inner': optimizer, 'outer': outer} if method == 'diloco' else \
        {'inner': optimizer}

    def state_dict() -> dict[str, Any]:
        return {'model': model.state_dict(),
                **{name: one.state_dict() for name, one in optimizers.items()}}

    def load_state_dict(state: dict[str, Any]) -> None:
        model.load_state_dict(state['model'])
        for name, one in optimizers.items():
            one.load_state_dict(state[name])
        journal.note('got the state of another robot')

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=EXCHANGE)), min_replica_size=1,
        load_state_dict=load_state_dict, state_dict=state_dict, replica_id=f'robot{robot + 1}',
        use_async_quorum=False, timeout=timedelta(seconds=EXCHANGE),
        quorum_timeout=timedelta(seconds=QUORUM), init_sync=False)
    trained = _go_on(model, optimizers, manager)
    journal.note(f'begins at version {manager.current_step()}')
    steps = task.settings.local_steps
    exchange = LocalSGD(manager, model, optimizer, steps) if method == 'localsgd' else \
        DiLoCo(manager, [model], optimizer, outer, steps)
    with exchange:
        for count, batch in enumerate(islice(task.batches(), trained, None), trained + 1):
            before, began = manager.current_step(), time.monotonic()
            optimizer.zero_grad()
            task.loss(model, batch).backward()
            # Wait, because the study emulates a slow computer. The wait is before
            # `optimizer.step`, because torchft exchanges within this step.
            time.sleep(max(began + task.settings.pace - time.monotonic(), 0.0))
            journal.batch(len(batch[1]), time.monotonic() - began)
            optimizer.step()
            if manager.current_step() > before:
                _keep(model, optimizers, manager, count)
                journal.version(manager.current_step())
                if manager.participating_rank() == 0:
                    journal.snapshot(model)


def _go_on(model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer], manager: Manager
           ) -> int:
    """Load the state that this robot saved before it was killed, if there is one.

    Returns the number of batches that the robot had trained; 0 without a saved state.
    """
    if not Path(FILE).exists():
        return 0
    with np.load(FILE) as kept, torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.from_numpy(kept[f'value{index}']))
            for name, optimizer in optimizers.items():
                optimizer.state[parameter]['momentum_buffer'] = torch.from_numpy(
                    kept[f'{name}{index}'])
        manager.load_state_dict({name: int(kept[name]) for name in manager.state_dict()})
        return int(kept['trained'])


def _keep(model: nn.Module, optimizers: Mapping[str, torch.optim.Optimizer], manager: Manager,
          trained: int) -> None:
    arrays = {'trained': np.array(trained),
              **{name: np.array(value) for name, value in manager.state_dict().items()}}
    for index, parameter in enumerate(model.parameters()):
        arrays[f'value{index}'] = parameter.detach().numpy()
        for name, optimizer in optimizers.items():
            arrays[f'{name}{index}'] = optimizer.state[parameter]['momentum_buffer'].numpy()
    save(Path(FILE), arrays)


def _be_a_host(name: str) -> None:
    """Give this process and its children a separate host name, because robots are separate hosts.

    torchft sends the host name to the other replicas, and here all robots run on one host.

    :param name: the host name. It is the address of the robot, so others need not look it up.
    """
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_UTS):
        raise OSError(ctypes.get_errno(), 'no namespace for a host name')
    socket.sethostname(name)


if __name__ == '__main__':
    main()
