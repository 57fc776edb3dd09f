"""hivemind: robots average their models among themselves; the server only helps to find peers.

The program follows hivemind's quickstart "Decentralized Training" and its guide "Running across the
Internet". Every robot takes steps on its own model. Whenever the N robots together have trained
N * `local_steps` batches, they average their models in the background.
"""

from __future__ import annotations

import sys
import threading
import time
from itertools import islice
from pathlib import Path

import hivemind
import torch
from hivemind.compression import Float16Compression

from .task import SERVER, Journal, Task, arguments

PORT = 31337
START_LIMIT = 120.0  # seconds within which the server must write the addresses for joining
# Seconds in which robots form a group. hivemind's documentation advises 10 to 15 s over the
# internet. hivemind also uses this time as the limit for sending a chunk of 0.5 MB.
MATCHMAKING = 15.0
# Time limit of an averaging in seconds. hivemind's documentation advises about twice the
# actual time. The actual time here is 29 s: 1.2 MB to each of three other robots at 1 Mbit/s.
AVERAGING = 60.0
# Files in the folder of a process: the server's key, the server's addresses, and the number
# of batches that a robot has trained.
IDENTITY, PEERS, TRAINED = 'identity', 'peers.txt', 'trained.txt'


def main() -> None:
    """Run as the server or as a robot, as ``--role`` says."""
    options = arguments()
    if options.role == 'server':
        # With the key in the file IDENTITY, a restarted server has the same name as before.
        dht = hivemind.DHT(host_maddrs=[f'/ip4/{options.server}/tcp/{PORT}'],
                           identity_path=IDENTITY, start=True)
        Path(PEERS).write_text('\n'.join(map(str, dht.get_visible_maddrs())))
        print(f'peers join at {dht.get_visible_maddrs()}', flush=True)
        threading.Event().wait()
    train(options.folder, options.robot, options.robots, options.again)


def train(folder: Path, robot: int, robots: int, again: bool) -> None:
    """Train until the study ends this process."""
    torch.set_num_threads(1)
    task = Task(folder, robot)
    settings = task.settings
    journal = Journal(folder, f'robot{robot + 1}', settings)
    model = task.model()
    dht = hivemind.DHT(host_maddrs=['/ip4/0.0.0.0/tcp/0'],
                       initial_peers=_initial_peers(folder / 'work' / SERVER / PEERS),
                       start=True)
    half = Float16Compression()
    optimizer = hivemind.Optimizer(
        dht=dht, run_id='study', optimizer=task.optimizer(model), use_local_updates=True,
        batch_size_per_step=settings.batch_size,
        target_batch_size=robots * settings.local_steps * settings.batch_size,
        matchmaking_time=MATCHMAKING, averaging_timeout=AVERAGING,
        state_averaging_compression=half, load_state_compression=half, verbose=True)
    place = Path(TRAINED)
    trained = int(place.read_text()) if place.exists() else 0
    if again:
        optimizer.load_state_from_peers()
        journal.note(f'got the state of another robot, version {optimizer.local_epoch}')
    for count, batch in enumerate(islice(task.batches(), trained, None), trained + 1):
        before = optimizer.local_epoch
        with journal.computing(len(batch[1])):
            optimizer.zero_grad()
            task.loss(model, batch).backward()
        optimizer.step()
        if optimizer.local_epoch > before:
            journal.version(optimizer.local_epoch)
            place.write_text(str(count))
        journal.snapshot(model)


def _initial_peers(path: Path) -> list[str]:
    """Return the addresses in the file ``path``, which the server writes.

    Robots on several machines share no disk; there, a person would copy the addresses.

    :raises SystemExit: the server does not write the file within `START_LIMIT` seconds.
    """
    until = time.monotonic() + START_LIMIT
    while not path.exists() or not (found := path.read_text().split()):
        if time.monotonic() > until:
            sys.exit(f'the server must write {path} within {START_LIMIT:g} s, but did not')
        time.sleep(0.1)
    return found


if __name__ == '__main__':
    main()
