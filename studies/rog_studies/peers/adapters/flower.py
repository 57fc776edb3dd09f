"""Flower: a SuperLink at the server, a SuperNode on every robot, FedAvg or FedAdam.

The program follows Flower's guide "Run Flower with the Deployment Engine" and its example
quickstart-pytorch. In a round, every node trains `local_steps` batches. A round lasts at
most its computing time plus `EXCHANGE` seconds, and one node may be missing, so slow and
failed clients do not block the round. The server app saves its model after every round.
If the server restarts, its database still holds the nodes; without the database, the
server would refuse them. The study then submits the run again, and the run continues from
the saved model.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from .task import SERVER, Journal, Task, arguments, save

PORT = 8000             # port of the SuperLink, for nodes and for `flwr run`
ROUNDS = 1_000_000      # more rounds than a run can make; the study ends the run
ETA = 0.003             # FedAdam's server learning rate
EXCHANGE = 120.0  # seconds for the transfers of a round; `ddp` and `torchft` allow the same time
SUBMIT_LIMIT = 180.0    # seconds within which the SuperLink must accept the run
KEPT = 'model.npz'      # file with the saved model, in the folder of the server's process
APP = '''[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "study"
version = "1.0.0"
description = "The task of the study"
license = "Apache-2.0"
dependencies = ["flwr>=1.42.0", "torch"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "study"

[tool.flwr.app.components]
serverapp = "adapters.flower:server_app"
clientapp = "adapters.flower:client_app"

[tool.flwr.app.config]
folder = "{folder}"
kept = "{kept}"
robots = {robots}
strategy = "{strategy}"
'''
server_app = ServerApp()
client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on this robot's next batches."""
    torch.set_num_threads(1)
    robot, folder = int(context.node_config['partition-id']), Path(context.run_config['folder'])
    task = Task(folder, robot)
    journal = Journal(folder, f'robot{robot + 1}', task.settings)
    model = task.model()
    model.load_state_dict(message.content['arrays'].to_torch_state_dict())
    optimizer, steps = task.optimizer(model), task.settings.local_steps
    trained = int(context.state['place']['batches']) if 'place' in context.state else 0
    samples, losses = 0, 0.0
    for batch in islice(task.batches(), trained, trained + steps):
        with journal.computing(len(batch[1])):
            optimizer.zero_grad()
            loss = task.loss(model, batch)
            loss.backward()
            optimizer.step()
        samples += len(batch[1])
        losses += float(loss.detach())
    context.state['place'] = ConfigRecord({'batches': trained + steps})
    content = RecordDict({'arrays': ArrayRecord(model.state_dict()), 'metrics': MetricRecord(
        {'train_loss': losses / steps, 'num-examples': samples})})
    return Message(content=content, reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run rounds until the study ends the run."""
    config = context.run_config
    folder, kept = Path(config['folder']), Path(config['kept'])
    task = Task(folder)
    journal = Journal(folder, SERVER, task.settings)
    model = task.model()
    if kept.exists():
        with np.load(kept) as values:
            model.load_state_dict({name: torch.from_numpy(values[name]) for name in values})
        journal.note('goes on with the saved model')
    # If one robot is missing, the others continue.
    least = max(int(config['robots']) - 1, 1)
    nodes = {'fraction_train': 1.0, 'fraction_evaluate': 0.0, 'min_train_nodes': least,
             'min_available_nodes': least}
    strategy = FedAdam(eta=ETA, **nodes) if config['strategy'] == 'fedadam' else FedAvg(**nodes)

    def after_round(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        if number:
            state = arrays.to_torch_state_dict()
            journal.version(number)
            journal.snapshot(state)
            save(kept, {name: t.numpy() for name, t in state.items()})
        return None

    settings = task.settings
    strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=ROUNDS,
                   timeout=settings.local_steps * settings.pace + EXCHANGE,
                   evaluate_fn=after_round)


def main() -> None:
    """Run as the server or as a robot, as ``--role`` says."""
    options = arguments((('--strategy', {'default': 'fedavg', 'choices': ('fedavg', 'fedadam')}),))
    os.environ['FLWR_TELEMETRY_ENABLED'] = '0'
    if options.role == 'robot':
        os.execvp('flower-supernode', [
            'flower-supernode', '--insecure', '--superlink', f'{options.server}:{PORT}',
            '--node-config', f'partition-id={options.robot} num-partitions={options.robots}'])
    app = Path('app').absolute()
    shutil.copytree(Path(__file__).parent, app / 'adapters', dirs_exist_ok=True,
                    ignore=shutil.ignore_patterns('__pycache__'))
    (app / 'pyproject.toml').write_text(APP.format(
        folder=options.folder, kept=Path(KEPT).absolute(), robots=options.robots,
        strategy=options.strategy))
    home = Path(os.environ['HOME']) / '.flwr'
    home.mkdir(exist_ok=True)
    (home / 'config.toml').write_text(
        f'[superlink]\ndefault = "study"\n\n[superlink.study]\naddress = "{options.server}:'
        f'{PORT}"\ninsecure = true\n')
    link = subprocess.Popen([
        'flower-superlink', '--insecure', '--host', '0.0.0.0', '--port', str(PORT),
        '--database', str(Path('superlink.db').absolute()),
        '--disable-runtime-dependency-installation'])
    signal.signal(signal.SIGTERM, lambda *_: link.terminate())
    _submit(app, link)
    sys.exit(link.wait())


def _submit(app: Path, link: subprocess.Popen) -> None:
    """Submit the run again and again until the SuperLink accepts it.

    Print the run's log until the run ends.
    """
    until = time.monotonic() + SUBMIT_LIMIT
    while link.poll() is None:
        # `flwr run` ends when the run ends. Its exit code is 0 if all rounds are over, and another
        # code if the run was refused or has failed.
        done = subprocess.run(['flwr', 'run', str(app), 'study', '--stream'])
        if done.returncode == 0:
            return
        if time.monotonic() > until:
            sys.exit(f'the SuperLink must take the run within {SUBMIT_LIMIT:g} s, but did not; '
                     'flwr run says above why')
        time.sleep(1.0)


if __name__ == '__main__':
    main()
