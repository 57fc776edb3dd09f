"""The robot's side: the robot alone, LOPInfer's `offload`, or an ordinary program.

The ordinary program runs under `rrto run`.

    python our_side.py alone FOLDER SLOWDOWN PERIOD
    python our_side.py lopinfer FOLDER SLOWDOWN PERIOD TRACE DELAY EPOCH
    rrto run OPTION ... -- python our_side.py rrto FOLDER SLOWDOWN PERIOD

FOLDER contains, among other files, model.pt, which is the module that `model_of`
returns. In all three cases the elements of an image are bytes, as cameras give them; JPEGs are
decoded on the robot, and LOPInfer may send them as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fleet_env.emulated.shaped import ShapedLink
from fleet_env.links.trace import read_trace
from fleet_env.vision import import_torchvision
from loop import Pictures, picture, pictures_of, run
from lopinfer_node.model import zoo
from lopinfer_node.model.pictures import MEAN, STD, OfImages
from lopinfer_node.runtime.slow import Pause, computing_time

sys.path.append(str(Path(__file__).parents[3] / 'ros2_ws/src/fleet_policy/bench'))
from act import JOINTS, Act  # noqa: E402


class Map(torch.nn.Module):
    """A segmentation model that returns its map instead of a dict."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.model(image)['out']


class Cameras(torch.nn.Module):
    """The ACT-like policy, with joints that do not move."""

    def __init__(self) -> None:
        super().__init__()
        self.act = Act().eval()
        self.register_buffer('state', torch.zeros(1, JOINTS))

    def forward(self, top: torch.Tensor, wrist: torch.Tensor) -> torch.Tensor:
        return self.act(top, wrist, self.state)


def model_of(name: str) -> torch.nn.Module:
    """Return a model of torchvision, or the ACT-like policy, with random weights.

    The model normalises the images itself.
    """
    if name == 'act':
        return Cameras().eval()
    model = zoo.load(name)
    dense = type(model).__module__.startswith('torchvision.models.segmentation')
    return OfImages(Map(model) if dense else model, MEAN, STD)


def tensors(pictures: Pictures) -> list[torch.Tensor]:
    return [torch.from_numpy(picture(data).transpose(2, 0, 1)[None].copy()) for data in pictures]


def slowed(infer: Callable[..., Any], slowdown: float, here: Callable[[], bool] = lambda: True
           ) -> Callable[..., Any]:
    """Return ``infer``, slowed down to the speed of the robot.

    ``here``: function that returns whether this machine has computed the inference. Inferences that
    this machine has not computed are not slowed down.
    """
    def slow(pictures: Pictures) -> Any:
        began = computing_time()
        got = infer(pictures)
        if here():
            Pause(slowdown).after(computing_time() - began, at_once=True)
        return got
    return slow


def alone(model: torch.nn.Module, folder: str, slowdown: float, period: float) -> None:
    run(slowed(lambda pictures: model(*tensors(pictures)).numpy(), slowdown), folder, period,
        lambda: (False, 0, 0, 0))


class CountingLink(ShapedLink):
    """A link that counts the sent bytes."""

    sent = 0

    def send(self, nbytes: int, *others: Any, **more: Any) -> None:
        self.sent += nbytes
        super().send(nbytes, *others, **more)


def lopinfer(model: torch.nn.Module, folder: str, slowdown: float, period: float, trace: str,
             delay: str, epoch: str) -> None:
    import lopinfer_node
    from lopinfer_node.ros.client_shell import ClientOptions
    from lopinfer_node.runtime.planner import TablePlanner
    link = CountingLink(read_trace(trace) if trace else None, float(delay), float(epoch))
    offloaded = 0

    def decode(pictures: Pictures) -> list[torch.Tensor]:
        return [lopinfer_node.picture(data) for data in pictures] \
            if isinstance(pictures[0], bytes) else tensors(pictures)
    decoded, options = slowed(decode, slowdown), ClientOptions(
        TablePlanner(slowdown=slowdown), link=link, slowdown=slowdown)
    with lopinfer_node.offload(model, example=tuple(decode(pictures_of(folder)[0])),
                               options=options) as shared:
        def told() -> tuple[bool, int, int, int]:
            nonlocal offloaded
            report = shared.report
            before, offloaded = offloaded, report.offloaded
            return offloaded > before, link.sent, report.bytes_down, 0
        run(lambda pictures: shared(*decoded(pictures)).numpy(), folder, period, told)
        print(shared.reason, file=sys.stderr)


def rrto(model: torch.nn.Module, folder: str, slowdown: float, period: float) -> None:
    from rrto_bridge.program.remote import Hook  # imported only to count bytes and round trips
    model = model.to('cuda')

    def port() -> Any:
        return Hook.dispatch.__self__.connection.engine.port

    def here() -> bool:
        return not hasattr(port(), 'stream')

    def told() -> tuple[bool, int, int, int]:
        if here():
            return False, 0, 0, 0
        stream = port().stream
        return True, stream.sender.bytes, stream.receiver.bytes, port().machine.round_trips
    def infer(pictures: Pictures) -> Any:
        return model(*(x.to('cuda') for x in tensors(pictures))).cpu().numpy()
    run(slowed(infer, slowdown, here), folder, period, told)


if __name__ == '__main__':
    torch.set_num_threads(1)
    import_torchvision()   # import torchvision: model.pt refers to its classes
    side, folder_, slowdown_, period_, *rest = sys.argv[1:]
    with torch.no_grad():
        {'alone': alone, 'lopinfer': lopinfer, 'rrto': rrto}[side](
            torch.load(Path(folder_, 'model.pt'), weights_only=False), folder_, float(slowdown_),
            float(period_), *rest)
