"""Try a model in a separate process before a server serves the model.

A robot may send a model that needs too much memory or time, or that crashes the process
in which it runs. In a trial, such a model ends only the trial's process, not the
server. After a successful trial, the server reserves the memory that the trial has
used.

    python -m lopinfer_node.runtime.trial FOLDER DEVICE THREADS MEMORY LONGEST SERVER

prints one JSON object: either
{"loaded": bytes, "request": bytes, "plan": bytes, "profile": {...}}
or {"error": text}. MEMORY and LONGEST are the arguments of `Trier`. SERVER is
the process id of the server; the trial ends when the server ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fleet_compute.weights import FOLDER, Weights
from fleet_env.command import never_collect_what_is_loaded
from fleet_ros.device import limit_memory, warm_up
from fleet_ros.ending import die_with

from ..errors import ModelError, ProfileError
from ..model.files import load
from ..model.traced import Traced
from ..planning.plan import SERVER, Plan
from ..planning.profile import Profile
from .measure import SHARES, measure
from .program import Program

LOADING = 300.0    # maximum seconds to read and check a model; enough on a busy machine
# seconds that the measurement should take at most; a slow model is measured fewer times
MEASURING = 30.0
TURNS = 9          # maximum number of passes over the model for each entry of `SHARES`
# the memory limit of the trial's process exceeds `memory` by at least this many bytes
ROOM = 64 << 20
MAX_TEXT = 1000    # maximum characters of an error text, which may contain long names


@dataclass(frozen=True)
class Trial:
    """Profile of a model, and the memory that the model takes on the server.

    ``loaded``: bytes of the loaded model. ``request``, ``plan``: additional bytes for each request
    and for each plan.
    """

    profile: Profile
    loaded: int
    request: int
    plan: int

    def save(self, path: Path) -> None:
        """Write the trial to a file, as the JSON object that the module's docstring describes."""
        path.write_text(json.dumps({'loaded': self.loaded, 'request': self.request,
                                    'plan': self.plan, 'profile': self.profile.as_json()}) + '\n')

    @classmethod
    def load(cls, path: Path) -> Trial:
        """Read the file that `save` has written; raise ProfileError if it is invalid."""
        try:
            return cls._of(json.loads(path.read_text(encoding='utf-8')))
        except (OSError, ValueError, RecursionError) as error:
            raise ProfileError(f'{path}: {error}') from error

    @classmethod
    def _of(cls, state: Any) -> Trial:
        try:
            sizes = [state['loaded'], state['request'], state['plan']]
            profile = Profile.from_json(state['profile'])
        except (KeyError, TypeError) as error:
            raise ProfileError(f'no result of a trial: {error}') from error
        if not all(type(size) is int and size >= 0 for size in sizes):
            raise ProfileError(f'no result of a trial: sizes {sizes}')
        return cls(profile, *sizes)


class Trier:
    """Tries models, one at a time; ``close`` from another thread ends the running trial.

    ``memory``: maximum bytes of a model and one request together. ``longest``: maximum seconds of
    one inference.
    """

    def __init__(self, device: str, memory: int, longest: float) -> None:
        self.device, self.memory, self.longest = device, memory, longest
        self._process: subprocess.Popen[str] | None = None
        self._closed = False

    def __call__(self, folder: Path) -> Trial:
        """Try a model; raise ModelError if it cannot be read or needs too much memory or time."""
        command = [sys.executable, '-m', 'fleet_env.start', __name__, str(folder), self.device,
                   str(torch.get_num_threads()), str(self.memory), str(self.longest),
                   str(os.getpid())]
        # The process gets a separate POSIX session, so it does not receive the user's Ctrl+C.
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              text=True, start_new_session=True) as process:
            self._process = process
            if self._closed:
                process.kill()
            *stages, last = process.communicate()[0].splitlines() or ['']
        if process.returncode == -signal.SIGALRM:
            raise ModelError(f'one inference takes more than {self.longest:g} s' if stages or last
                             else f'it was not loaded within {LOADING:g} s')
        try:
            state = json.loads(last)
            if 'error' not in state:
                return Trial._of(state)
        except (ValueError, TypeError, ProfileError):
            raise ModelError(f'it ended the process that tried it (status {process.returncode})'
                             ) from None
        raise ModelError(state['error'])

    def close(self) -> None:
        """End the running trial, and make every later trial end at once."""
        self._closed = True
        if self._process is not None:
            self._process.kill()


def main(arguments: list[str]) -> int:
    """Run a trial in this process, and print its result."""
    die_with(int(arguments[5]))
    folder, device = Path(arguments[0]), torch.device(arguments[1])
    memory, longest = int(arguments[3]), float(arguments[4])
    torch.set_num_threads(int(arguments[2]))
    warm_up(device)
    warm_up(torch.device('meta'))     # load 70 MB of code before the model's memory is measured
    never_collect_what_is_loaded()
    limit_memory(device, memory + max(ROOM, memory // 4))
    try:
        result = _try(folder, device, memory, longest)
    except MemoryError:
        result = {'error': _too_large(memory)}
    except Exception as error:   # every error counts as an error of the model
        text = str(error)
        result = {'error': _too_large(memory) if 'memory' in text else text[:MAX_TEXT]}
    print(json.dumps(result), flush=True)
    return 0


def _try(folder: Path, device: torch.device, memory: int, longest: float) -> dict[str, Any]:
    before = _memory(device)[0]
    signal.setitimer(signal.ITIMER_REAL, LOADING)
    traced = load(folder, Weights(folder=folder.parent / FOLDER), str(device))
    if traced.digest != folder.name:
        raise ModelError(f'its files are those of {traced.digest}')
    loaded = _memory(device)[0]
    print('loaded', flush=True)
    signal.setitimer(signal.ITIMER_REAL, longest)
    traced.tape.precision.use()
    profile = _measured(traced, longest)
    signal.setitimer(signal.ITIMER_REAL, 0)
    model, request = max(0, loaded - before), max(0, _memory(device)[1] - loaded)
    if model + request > memory:
        raise ModelError(_too_large(memory))
    return {'loaded': model, 'request': request, 'plan': _plan_bytes(traced),
            'profile': profile.as_json()}


def _measured(traced: Traced, longest: float) -> Profile:
    began = time.monotonic()
    measure(traced, 1, 0, (1.0,))
    turns = int(MEASURING / (2 * len(SHARES) * max(time.monotonic() - began, 1e-6)))
    turns = min(TURNS, max(turns, 1))
    signal.setitimer(signal.ITIMER_REAL, 4 * len(SHARES) * turns * longest)
    return measure(traced, max(turns - 2, 1), min(2, turns - 1))


def _plan_bytes(traced: Traced) -> int:
    """Return how many bytes a plan needs.

    The result is the memory of an example: a plan that divides each divisible operator in the
    middle.
    """
    whole = [n.is_global or n.extent == 1 for n in traced.graph.nodes]
    cuts = np.where(whole, 0, traced.graph.extents // 2)
    tracemalloc.start()
    plan = Plan.of_cuts(traced.graph, cuts, cuts)
    kept = Program(traced, plan, SERVER)
    nbytes = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    del kept
    return nbytes


def _too_large(memory: int) -> str:
    return (f'it and one request of it take more than the {memory >> 20} MiB that the server has '
            'for models (its parameter memory)')


def _memory(device: torch.device) -> tuple[int, int]:
    """Return the bytes that this process uses now on the device, and the maximum so far."""
    if device.type == 'cuda':
        return torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
    status = Path('/proc/self/status').read_text()
    now, most = (int(status.split(f'{name}:')[1].split()[0]) << 10 for name in ('VmRSS', 'VmHWM'))
    return now, most


if __name__ == '__main__':
    raise SystemExit(main(sys.argv[1:]))
