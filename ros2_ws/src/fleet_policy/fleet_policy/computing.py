"""Threads that compute actions, so that the control loop does not wait.

Each place, the robot or the server, has one thread.
"""

from __future__ import annotations

import copy
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from fleet_compute.pictures import decoded, placed
from fleet_env.errors import PictureError
from lopinfer_node.api import OffloadedModel
from lopinfer_node.followed import FollowedModel
from torch.utils import _pytree as pytree

from .contract import Contract
from .core.chunks import Actions
from .core.machine import Infer
from .core.places import ROBOT
from .errors import DataFault
from .observer import batch_of, flaw_of
from .policy import Policy, chunk_of, inputs_of

CLOSING = 0.5   # seconds that a thread may take to finish its inference when the place is closed

Network = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Answer:
    """The answer to a request: n actions of d numbers (n, d), or the reason why there are none.

    ``where``: where the actions were computed. ``fault``: what is wrong with the policy.
    ``failure``: why the place could not compute. ``flaw``: why a message could not be decoded.
    """

    request: int
    actions: Actions | None = None
    where: str = ''
    fault: str = ''
    failure: str = ''
    flaw: DataFault | None = None


class Computing:
    """Computes chunks at one place (the robot or the server), one chunk after the other.

    :param network: function of the model's inputs that returns the model's output.
    :param where: function that returns where the last inference was computed.
    :param answer: function that is called with each answer, in this place's thread.
    :param awaited: function of a request's number that returns whether an answer is still
        expected. If not, the request is not computed.
    :param most: maximum number of requests that wait.
    """

    def __init__(self, name: str, policy: Policy, contract: Contract, network: Network,
                 where: Callable[[], str], answer: Callable[[Answer], None],
                 awaited: Callable[[int], bool], most: int = 1) -> None:
        self._name, self._policy, self._contract = name, policy, contract
        self._network, self._where, self._answer = network, where, answer
        self._awaited = awaited
        self._waiting: queue.Queue[tuple[Infer, dict[str, Any]] | None] = queue.Queue(most)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f'policy {name}', daemon=True)
        self._thread.start()

    def ask(self, infer: Infer, values: dict[str, Any]) -> bool:
        """Queue a request; return False if the place is still busy with earlier requests."""
        try:
            self._waiting.put_nowait((infer, values))
        except queue.Full:
            return False
        return True

    def close(self) -> None:
        """Stop computing; if the thread does not end within `CLOSING`, its results are ignored."""
        self._closing.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            pass   # the thread is busy: it checks `_closing` after its inference
        self._thread.join(CLOSING)

    def _run(self) -> None:
        while not self._closing.is_set():
            work = self._waiting.get()
            if work is not None and self._awaited(work[0].request):
                answer = self._compute(*work)
                if not self._closing.is_set():
                    self._answer(answer)

    def _compute(self, infer: Infer, values: dict[str, Any]) -> Answer:
        number = infer.request
        try:
            batch = batch_of(self._contract, values)
        except DataFault as error:
            return Answer(number, flaw=error)
        try:
            inputs = inputs_of(self._policy, batch, infer.prefix, self._contract.size)
        except Exception as error:   # the user's code may raise any exception
            if isinstance(error, PictureError) and (flaw := flaw_of(batch)) is not None:
                return Answer(number, flaw=flaw)
            return Answer(number, fault=_text('observe', error))
        try:
            with torch.no_grad():
                output = self._network(*inputs)
        except Exception as error:
            if isinstance(error, PictureError) and (flaw := flaw_of(batch)) is not None:
                return Answer(number, flaw=flaw)
            if self._name == ROBOT:
                return Answer(number, fault=_text('model', error))
            return Answer(number, failure=f'{type(error).__name__}: {str(error)[:200]}')
        try:
            return Answer(number, chunk_of(self._policy, output), self._where())
        except Exception as error:
            return Answer(number, fault=_text('actions', error))


def _text(method: str, error: Exception) -> str:
    return f'the policy raised in {method}: {type(error).__name__}: {str(error)[:200]}'


def on_device(network: Network, device: torch.device, files: bool = False) -> Network:
    """Return a network that takes and returns CPU tensors, for one that computes on `device`.

    ``files``: whether the network takes pictures that are not decoded.
    """
    def moving(*inputs: torch.Tensor) -> Any:
        inputs = inputs if files else decoded(inputs)
        output = network(*(placed(x, device) for x in inputs))
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, output)
    return moving


def there(current: Callable[[], torch.nn.Module], device: torch.device) -> Network:
    """Return a network that computes on another device with a copy of the present model."""
    model: torch.nn.Module | None = None
    copied: Network | None = None

    def network(*inputs: torch.Tensor) -> Any:
        nonlocal model, copied
        if (now := current()) is not model or copied is None:
            model, copied = now, on_device(copy.deepcopy(now).to(device), device)
        return copied(*inputs)
    return network


def slowed(network: Network, factor: float) -> Network:
    """Return a network that takes ``factor`` times as long, to emulate a slower robot."""
    if factor == 1.0:
        return network

    def slow(*inputs: torch.Tensor) -> Any:
        began = time.monotonic()
        output = network(*inputs)
        time.sleep((factor - 1.0) * (time.monotonic() - began))
        return output
    return slow


def by_lopinfer(shared: OffloadedModel | FollowedModel) -> tuple[Network, Callable[[], str]]:
    """Return LOPInfer's network, and a function that returns where the last inference ran."""
    before = [0]

    def network(*inputs: torch.Tensor) -> Any:
        before[0] = _offloaded(shared)
        return shared(*inputs)

    def where() -> str:
        return 'shared' if _offloaded(shared) > before[0] else ROBOT
    return network, where


def _offloaded(shared: OffloadedModel | FollowedModel) -> int:
    return 0 if shared.report is None else shared.report.offloaded
