"""The GPU of this machine, for programs whose device 'cuda' is a server's (`rrto run`).

Such a program computes on its own GPU in another process, with the environment `own_environment`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from glob import glob

VISIBLE = 'CUDA_VISIBLE_DEVICES'
HIDES_ALL = ('', '-1')   # values of `VISIBLE` by which a program hides all devices
SETTINGS = 'RRTO_SETTINGS'   # environment variable by which a process gets the server's device
# Environment variable with the value of `VISIBLE` outside `rrto run`; missing if it was not set.
OWN_VISIBLE = 'RRTO_OWN_VISIBLE'
# Environment variable for tests: a device that takes the place of this machine's GPU.
OWN_DEVICE = 'RRTO_OWN_DEVICE'
# Files of the drivers of GPUs: NVIDIA's, those of a Jetson, AMD's, and that of WSL.
_DRIVERS = ('/dev/nvidia[0-9]*', '/dev/nvhost-gpu', '/dev/nvgpu*', '/dev/kfd', '/dev/dxg')


def own_gpu() -> str:
    """Return the device with which a process may use this machine's GPU; '' if there is none.

    Only a process that tries the GPU knows whether PyTorch can use it.
    """
    import torch  # imported here, because only nodes that compute have PyTorch installed

    if device := os.environ.get(OWN_DEVICE):
        return device
    there = (torch.version.cuda or torch.version.hip) is not None \
        and os.environ.get(OWN_VISIBLE) not in HIDES_ALL and any(map(glob, _DRIVERS))
    return 'cuda' * there


def own_environment() -> dict[str, str]:
    """Return an environment in which 'cuda' is this machine's GPU again."""
    # If the variable were missing, the process would get the settings of `rrto run` again.
    environment = {**os.environ, SETTINGS: ''}
    environment.pop(VISIBLE, None)
    if OWN_VISIBLE in environment:
        environment[VISIBLE] = environment[OWN_VISIBLE]
    return environment


def start_process(module: str, descriptor: int, device: str, environment: dict[str, str]
                  ) -> subprocess.Popen[bytes]:
    """Start `python -m module descriptor device PARENT` with an open file, for this machine's GPU.

    The process has a POSIX session of its own: Ctrl+C reaches only this process, which then ends
    it by `end_process`. Raises OSError if the process cannot be started.
    """
    return subprocess.Popen(
        [sys.executable, '-m', 'fleet_env.start', module, str(descriptor), device,
         str(os.getpid())],
        pass_fds=[descriptor], env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, start_new_session=True)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End a process of `start_process`; do not wait for one that hangs in the driver."""
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)
