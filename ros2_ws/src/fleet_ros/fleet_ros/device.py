"""Which PyTorch device a setting names."""

from __future__ import annotations

from typing import Any

from fleet_env.errors import SettingError


def torch_device(name: str) -> Any:
    """Return the device called ``name``; 'auto' is cuda where there is one, else the CPU.

    :raises SettingError: when this machine has no such device.
    """
    import torch  # a node that computes has it; this package does without

    if name == 'auto':
        name = 'cuda' if torch.cuda.is_available() else 'cpu'
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:  # PyTorch without CUDA asserts
        raise SettingError(f'device is {name!r}, which cannot be used here: '
                           f'{str(error).splitlines()[0]}') from None
