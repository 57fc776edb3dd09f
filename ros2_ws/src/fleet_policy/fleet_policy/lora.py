"""Low-rank adapters (LoRA): to each weight of a model, which stays, a trained product is added."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

# The weights that get an adapter, by the kind of their layer.
ADAPTED = {nn.Linear: ('weight',),
           nn.MultiheadAttention: ('in_proj_weight', 'q_proj_weight', 'k_proj_weight',
                                   'v_proj_weight')}


class Adapter(nn.Module):
    """Adds ``b @ a`` to a weight (n, m); ``a``: (rank, m), random; ``b``: (n, rank), 0."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        n, m = weight.shape
        rank = min(rank, n, m)
        self.a = nn.Parameter(torch.randn(rank, m).to(weight) / m ** 0.5)
        self.b = nn.Parameter(weight.new_zeros(n, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """Return the weight with what was learned."""
        return weight + self.b @ self.a


def adapt(model: nn.Module, rank: int) -> set[str]:
    """Give the layers of a model adapters, and return the names of their parameters.

    These are linear layers, and the projections of attention, but no weight that several layers
    share. The model's `state_dict()` stays that of the model without adapters, with the sums as
    weights. One that is loaded becomes what the adapters add to; they add 0 then.
    """
    layers = list(model.modules())
    owners = Counter(id(p) for layer in layers for p in layer._parameters.values())
    made = set[int]()
    for layer in layers:
        for name in (name for kind, names in ADAPTED.items() if isinstance(layer, kind)
                     for name in names):
            weight = layer._parameters.get(name)
            if weight is None or owners[id(weight)] > 1:
                continue
            adapter = Adapter(weight.detach(), rank)
            register_parametrization(layer, name, adapter)
            layer._register_state_dict_hook(_merged(name))
            layer._register_load_state_dict_pre_hook(_begun(name), with_module=True)
            made |= {*map(id, adapter.parameters())}
    return {name for name, parameter in model.named_parameters() if id(parameter) in made}


def _merged(name: str) -> Callable[..., None]:
    def hook(layer: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
        inner = f'{prefix}parametrizations.{name}.'
        for key in [key for key in state if key.startswith(inner)]:
            del state[key]
        state[prefix + name] = getattr(layer, name).detach()
    return hook


def _begun(name: str) -> Callable[..., None]:
    def hook(layer: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
        if prefix + name in state:
            inner, adapter = f'{prefix}parametrizations.{name}.', layer.parametrizations[name][0]
            state |= {f'{inner}original': state.pop(prefix + name), f'{inner}0.a': adapter.a,
                      f'{inner}0.b': torch.zeros_like(adapter.b)}
    return hook
