"""The programs that are compared: our suite with several methods, and the peers.

Each peer has its own Python environment, because the requirements of peers conflict.

pip makes an environment once. The environment stays in the user's cache directory; the name of
its folder contains a digest of the requirements. Nothing of this suite is installed in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fleet_env.durable import cache_folder
from rog_core.errors import ConfigError, RogError

# the version in constraints.txt of this suite; a CPU build if pip finds one
TORCH = 'torch==2.13.0'
LIMIT = 1200.0            # maximum seconds that pip may take
READY = 'ready.json'      # a file in a finished environment; it maps a package to its version
OURS = 'rog'              # our suite with the method of the fleet file ``outdoor``
_LINES = 12               # an error shows this many lines from the end of pip's output
# Texts in pip's output if pip reaches no registry that has the package.
_UNREACHABLE = ('No matching distribution', 'Could not find a version', 'ConnectionError',
                'Temporary failure in name resolution', 'Max retries exceeded', 'timed out')


class EnvironmentFault(RogError):
    """A peer's environment cannot be made.

    ``unreachable``: whether the reason is that pip reached no registry.
    """

    def __init__(self, text: str, unreachable: bool = False) -> None:
        super().__init__(text)
        self.unreachable = unreachable


@dataclass(frozen=True)
class Peer:
    """A program with which the study compares this suite.

    ``adapter``: name of its module in `adapters`. ``requirements``: packages with their exact
    versions, for pip. ``options``: further arguments of the adapter. ``what``: description of the
    program, for tables.
    """

    name: str
    adapter: str
    requirements: tuple[str, ...]
    what: str
    options: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Digest of the requirements and of the version of Python."""
        text = json.dumps([*self.requirements, sys.version_info[:2]])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Method:
    """Settings with which our suite is run: ``training.sync`` and ``training.codec``."""

    sync: str
    codec: str = 'onebit'


METHODS = {OURS: Method('rsp:20+pipeline+sparse'),
           'rog-local': Method('rsp:4+pipeline+sparse+local=8'),
           'rog-diloco': Method('diloco:8:2+rate=0.7+momentum=0.5+quorum=2+grace=1', 'e3m0')}
_FLOWER = (TORCH, 'numpy==2.4.6', 'flwr==1.42.0')
_NVFLARE = (TORCH, 'numpy==2.4.6', 'nvflare==2.9.0')
_TORCHFT = (TORCH, 'numpy==2.4.6', 'torchft==0.2.0')
PEERS = {peer.name: peer for peer in (
    Peer('ddp', 'ddp', (TORCH, 'numpy==2.4.6'), 'PyTorch DDP over gloo, elastic (torchrun)'),
    Peer('flower', 'flower', _FLOWER, 'Flower, FedAvg'),
    Peer('flower-fedadam', 'flower', _FLOWER, 'Flower, FedAdam', ('--strategy', 'fedadam')),
    Peer('nvflare', 'nvflare', _NVFLARE, 'NVIDIA FLARE, FedAvg'),
    Peer('nvflare-fedbuff', 'nvflare', _NVFLARE, 'NVIDIA FLARE, FedBuff',
         ('--workflow', 'fedbuff')),
    Peer('hivemind', 'hivemind', (TORCH, 'numpy==2.4.6', 'hivemind==1.1.12'),
         'hivemind, averaging among the robots'),
    Peer('torchft', 'torchft', _TORCHFT, 'torchft, LocalSGD over gloo'),
    Peer('torchft-diloco', 'torchft', _TORCHFT, 'torchft, DiLoCo over gloo',
         ('--method', 'diloco')))}


def chosen(names: list[str]) -> list[str]:
    """Return the names of the programs to run, our suite first; all names if ``names`` is empty.

    :raises ConfigError: one of the names is not the name of a program.
    """
    known = [*METHODS, *PEERS]
    for name in names:
        if name not in known:
            raise ConfigError(f'--only must name some of {", ".join(known)}, got {name!r}')
    return [name for name in known if not names or name in names]


def cache() -> Path:
    """Return the directory that holds the environments."""
    return cache_folder('rog') / 'peers'


def environment(peer: Peer, log: Path, tell: Callable[[str], None] = lambda text: None) -> Path:
    """Return the Python of a peer's environment; make the environment if there is none.

    :param log: file to which pip's output is added.
    :param tell: function that is called with a line of text before pip begins; pip takes minutes.
    :raises EnvironmentFault: pip failed; the message has the last lines of its output.
    """
    # Peers with the same adapter and the same requirements share an environment.
    place = cache() / f'{peer.adapter}-{peer.digest}'
    python = place / 'bin' / 'python'
    if (place / READY).exists():
        return python
    tell(f'{peer.name}: pip makes its environment: {", ".join(peer.requirements)}')
    shutil.rmtree(place, ignore_errors=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    _run(peer, [sys.executable, '-m', 'venv', str(place)], log)
    _run(peer, [str(python), '-m', 'pip', 'install', '--no-input', *peer.requirements], log)
    done = _run(peer, [str(python), '-m', 'pip', 'list', '--format', 'json'], log)
    versions = {one['name']: one['version'] for one in json.loads(done)}
    (place / READY).write_text(json.dumps(versions, indent=1, sort_keys=True) + '\n')
    return python


def versions(python: Path) -> dict[str, str]:
    """Return the packages in an environment that `environment` has made: name -> version."""
    found: dict[str, str] = json.loads((python.parent.parent / READY).read_text())
    return found


def _run(peer: Peer, command: list[str], log: Path) -> str:
    """Run a command, add its output to the log, and return its standard output."""
    # Remove the variables through which Python would find the packages of ROS and of this suite; a
    # peer must not import these packages.
    clean = {name: value for name, value in os.environ.items()
             if name not in ('PYTHONPATH', 'PYTHONHOME', 'VIRTUAL_ENV')}
    try:
        done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise EnvironmentFault(f'{peer.name}: `{" ".join(command)}` must end within {LIMIT:g} s, '
                               f'but did not; its output: {log}') from None
    with log.open('a') as file:
        file.write(f'$ {" ".join(command)}\n{done.stdout}{done.stderr}')
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        raise EnvironmentFault(
            f'{peer.name}: `{" ".join(command)}` failed; all that it said is in {log}, the end:\n'
            + '\n'.join(said[-_LINES:]), any(text in done.stderr for text in _UNREACHABLE))
    return done.stdout
