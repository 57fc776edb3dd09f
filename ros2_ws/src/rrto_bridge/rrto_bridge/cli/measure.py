"""`python -m rrto_bridge.cli.measure MODEL SIZE COUNT [native]`: time the inferences of one model.

This is an ordinary program. With `native`, it must run under `rrto run`, and it runs the
model's code only in the first `WARM` inferences. Afterwards it only sends each input to the server
and receives the output, like an application that is written for the server.
"""

from __future__ import annotations

import inspect
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from fleet_env.vision import import_torchvision

# Number of first inferences that do not count in the median and the worst time; the client finds
# the sequence in them.
WARM = 8


def load(name: str) -> torch.nn.Module:
    """Return the model `name`: 'small', which this function defines, or a model of torchvision."""
    torch.manual_seed(0)
    if name == 'small':
        layers = [torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.ReLU())
                  for _ in range(24)]
        return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 2), *layers, torch.nn.Flatten(),
                                   torch.nn.LazyLinear(10))
    if (package := import_torchvision()) is None:
        raise SystemExit(f"rrto: '{name}' is a model of torchvision, which is not installed")
    try:
        build = package.models.get_model_builder(name)
    except ValueError:
        raise SystemExit(f"rrto: unknown model '{name}': choose small or a torchvision model, for "
                         'example resnet18') from None
    without = {key: None for key in inspect.signature(build).parameters
               if key in ('weights', 'weights_backbone')}  # so that nothing is downloaded
    model: torch.nn.Module = build(**without)
    return model


def native(device: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that replays the recorded sequence for an image, in one round trip."""
    from ..protocol.actions import Finish, Start
    from ..protocol.tensors import pack, unpack
    engine = device.connection.engine
    sequence, machine = engine.defined, engine.machine
    run = 1 << 40
    torch.zeros(1, device='cuda').item()   # ends the replay of the last inference

    def infer(image: torch.Tensor) -> torch.Tensor:
        nonlocal run
        run += 1
        base = machine.allocate(sequence.slots)
        machine.ask(Start(run, sequence.number, base, (pack(image)[1],), ()))
        machine.flush()
        value = engine.settle(machine.await_value(run, 0))
        machine.ask(Finish(run, ()))
        return unpack(*value.value)

    return infer


def main(arguments: list[str]) -> None:
    """Print one line of JSON: median, worst and all times of inferences in ms.

    ``every_ms`` also contains the times of the first `WARM` inferences. The median and the worst
    time are computed without them.
    """
    name, size, count = arguments[0], int(arguments[1]), int(arguments[2])
    torch.set_num_threads(1)
    place = 'cuda' if torch.cuda.is_available() else 'cpu'
    model = load(name).eval()
    image = torch.rand(1, 3, size, size)
    with torch.no_grad():
        model(image)

        def forward(image: torch.Tensor) -> torch.Tensor:
            out: Any = model(image.to(place))
            found: torch.Tensor = (out['out'] if isinstance(out, dict) else out).cpu()
            return found

        infer: Callable[[torch.Tensor], torch.Tensor] = forward
        model.to(place)
        every = []
        for number in range(WARM + count):
            if number == WARM and arguments[3:] == ['native']:
                from ..program.remote import Hook
                infer = native(Hook.dispatch.__self__)
            image = torch.rand(1, 3, size, size)
            began = time.perf_counter()
            infer(image)
            every.append((time.perf_counter() - began) * 1e3)
    times = every[WARM:]
    print(json.dumps({'median_ms': statistics.median(times), 'worst_ms': max(times),
                      'every_ms': every}))


if __name__ == '__main__':
    main(sys.argv[1:])
