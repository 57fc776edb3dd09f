"""Runs the policy as a managed node: sensors in, actions out, at the rate of the contract."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from fleet_compute.pictures import placed
from fleet_models import Follower, Replacing
from fleet_ros.alarm import Alarm
from fleet_ros.device import is_cuda_remote, own_device
from fleet_ros.managed import ManagedNode
from fleet_ros.middleware import publishers, several
from fleet_ros.own_gpu import own_environment, own_gpu
from fleet_ros.parameters import declare
from lopinfer_node.api import offload
from lopinfer_node.followed import FollowedModel
from lopinfer_node.ros.client_shell import ClientOptions
from lopinfer_node.runtime.client import Settings
from lopinfer_node.runtime.planner import TablePlanner
from rclpy.clock import Clock, ClockType
from rclpy.duration import Duration

from . import qos
from .actions import Writer
from .computing import Answer, Computing, Network, by_lopinfer, on_device, slowed, there
from .core.machine import SAFE, STARVED, Command, PolicyMachine
from .core.places import ROBOT, SERVER
from .errors import DataFault, PolicyError
from .messages import message_class
from .observer import Observer, batch_of
from .own_gpu import OwnGpu
from .parameters import PolicySettings
from .policy import chunk_of, example, inputs_of, load_contract, load_policy, named_failures
from .report import diagnosis, values_of

STATUS_PERIOD = 0.5    # seconds between two statuses
REASON_PERIOD = 1.0  # least seconds between two log lines with reasons for one safe state
LOG_PERIOD = 10.0  # seconds between two log lines about stale actions, or about other publishers
# Maximum time in seconds to wait until the commands for the safe state have arrived.
LAST_WORDS = 1.0
LOST = 2               # ticks that a chunk loses: of its request, and of its arrival
WARM = 2               # number of inferences before the inference that is measured


def _same(model: torch.nn.Module) -> torch.nn.Module:
    return model


class PolicyNode(ManagedNode):
    """Runs a policy; `parameters.PolicySettings` declares the parameters.

    The node publishes the contract's actions, `policy_status`, and its part of `/diagnostics`. When
    it becomes inactive, it puts the robot into its safe state; then it sends no more actions.
    """

    packages = ('fleet_policy', 'lopinfer_node', 'rog_tasks')

    def __init__(self, **options: Any) -> None:
        self._answers: deque[Answer] = deque()
        super().__init__('policy', PolicySettings, **options)

    # -- life cycle ------------------------------------------------------------------------------

    def configure(self) -> None:
        """Load policy and contract, measure an inference, open the topics; send no action yet."""
        self.settings = s = declare(self, PolicySettings)
        if s.threads:
            torch.set_num_threads(s.threads)
        if not s.policy:
            raise PolicyError('policy must be package.module:Class, got nothing: give the '
                              "parameter 'policy'")
        self.contract = load_contract(s.policy, s.contract)
        self.policy = load_policy(s.policy, s.policy_options, self.contract)
        places = (ROBOT,) if s.inference == 'alone' else (ROBOT, SERVER)
        self.machine = PolicyMachine(self.contract.rate, self.contract.size, places, s)
        self.writer = Writer(self.contract)
        self.observer = Observer(self.contract, math.inf)
        self._said = self.machine.state, ''
        # Maps an entry to what is wrong with the publishers of its topic; see `_look`.
        self._strangers: dict[str, tuple[str, str]] = {}
        self._counted: list[int] = []            # numbers of these publishers
        self._shared: Any = None
        self._follower: Follower | None = None    # of the versions of a fleet
        self._is_safe = False                    # whether the safe-state command has been sent
        self._arrived = self.create_guard_condition(self._on_answers)
        self._open_places()
        self._open_topics()
        self._alarm = Alarm(self._on_tick, self)
        self.held.callback(self._alarm.close)
        self.held.callback(self._make_safe)
        # The reports use a steady clock, because a simulated clock may stop or jump back.
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(STATUS_PERIOD, self._report, clock=self._steady)

    def activate(self) -> None:
        """Begin to act; use only observations that arrive from now on."""
        now = time.monotonic()
        self._is_safe = False
        self.machine.reset()
        self.observer = Observer(self.contract, now, self.settings.first)
        self._alarm.set(now)
        self.get_logger().info(f'{self.settings.policy} acts at {self.contract.rate:g} Hz')

    def deactivate(self) -> None:
        """Stop acting and put the robot into its safe state."""
        self._alarm.set(math.inf)
        self._make_safe()

    def shutdown(self) -> None:
        """Put the robot into its safe state; the process then ends."""
        if self.configured:
            self.deactivate()
        super().shutdown()

    def interrupt(self) -> None:
        """Put the robot into its safe state and end the node; a signal causes this call."""
        self.active = False
        if self.configured:
            self.deactivate()
        self.done = True

    # -- places and topics -----------------------------------------------------------------------

    def _open_places(self) -> None:
        s = self.settings
        with named_failures('model', self.policy):
            model = self.policy.model()
        if not isinstance(model, torch.nn.Module):
            raise PolicyError(f'model of the policy must return a torch.nn.Module, got '
                              f'{type(model).__name__}')
        device = own_device(s.device)
        # Before anything else sees the model: it has one copy of its weights on the robot, with
        # which the robot computes both alone and its share.
        model.eval().to(device)
        with named_failures('observe', self.policy):
            inputs = example(self.policy, self.contract)
        robot = self.get_namespace().strip('/') or 'robot'
        follow = s.followed(partial(self._tried, device))
        current: Callable[[], torch.nn.Module] = partial(_same, model)
        shared: Network | None = None
        where: Callable[[], str] = partial(str, SERVER)
        if s.inference == 'lopinfer':
            planner = TablePlanner(s.method, latency=s.link.latency, slowdown=s.slowdown)
            options = ClientOptions(
                planner, s.server, Settings(precision=s.precision), s.shaped_link(),
                slowdown=s.slowdown, access=s.security)
            self._shared = self.held.enter_context(offload(
                model, example=tuple(placed(x, device) for x in inputs), robot=robot,
                options=options, follow=follow))
            network, where = by_lopinfer(self._shared)
            shared = on_device(network, device, files=True)
            if isinstance(self._shared, FollowedModel):
                self._follower, current = self._shared.follower, self._shared.current
        elif s.follow:
            replacing = self._follower = Replacing(
                model, replace(follow, robot=robot, access=s.security))
            self.held.callback(replacing.close)
            current = replacing.current
        if s.inference == 'rrto':
            if not torch.cuda.is_available():
                raise PolicyError('inference is rrto, so the node must run in `rrto run`, which '
                                  'gives it the device cuda; here there is none')
            shared = there(current, torch.device('cuda'))
        alone = slowed(self._on_own_gpu(current) or on_device(lambda *x: current()(*x), device),
                       s.slowdown)
        with named_failures('its model', model, inputs):
            self._measure(alone, inputs)
        self._computing = {ROBOT: self._place(ROBOT, alone, lambda: ROBOT)}
        if shared is not None:
            self._computing[SERVER] = self._place(SERVER, shared, where)

    def _tried(self, device: torch.device, model: torch.nn.Module) -> float:
        """Compute a chunk from the last observation; raise an error if it is not finite."""
        try:
            batch = batch_of(self.contract, self.observer.newest())
            inputs = inputs_of(self.policy, batch, None, self.contract.size)
        except Exception:   # there is no observation yet, or it is of no use
            inputs = example(self.policy, self.contract)
        with torch.no_grad():
            actions = chunk_of(self.policy, on_device(model, device)(*inputs))
        if not np.isfinite(actions).all():
            raise PolicyError('its actions for the last observation are not finite')
        return 1.0

    def _on_own_gpu(self, current: Callable[[], torch.nn.Module]) -> Network | None:
        """Return the model on the robot's GPU, where the device 'cuda' is a server's; or None."""
        if self.settings.device == 'cpu' or not is_cuda_remote():
            return None
        warn = self.get_logger().warning
        if not (device := own_gpu()):
            if self.settings.device != 'auto':
                warn('the robot computes on its CPU: it has no GPU, and in `rrto run` the device '
                     "cuda is the server's")
            return None
        model = current()
        child = OwnGpu(model, device, own_environment(), self.settings.patience, warn)
        self.held.callback(child.close)

        def network(*inputs: torch.Tensor) -> Any:
            nonlocal model
            if (now := current()) is not model:
                model = now
                child.use(model)
            return child(*inputs)
        return network

    def _measure(self, network: Network, inputs: tuple[torch.Tensor, ...]) -> None:
        """Measure the duration of an inference on the robot, and check the shape of its actions."""
        for _ in range(WARM + 1):
            began = time.monotonic()
            with torch.no_grad():
                actions = chunk_of(self.policy, network(*inputs))
        seconds = time.monotonic() - began
        if actions.ndim != 2 or actions.shape[1] != self.contract.size or not len(actions):
            raise PolicyError(f'actions of the policy must have the shape (n, '
                              f'{self.contract.size}), by the contract, got {actions.shape}')
        self.machine.places[ROBOT].measured(seconds)
        lasts = len(actions) / self.contract.rate
        self.get_logger().info(f'the robot computes {len(actions)} actions, for {lasts:.2f} s, in '
                               f'{seconds:.2f} s')
        # The actions of a chunk must last until the next chunk has been computed. A chunk begins
        # at the time of its observation, so the first actions are too late when the computation
        # ends, and so are those of the ticks in which it is requested and taken.
        needed = seconds * (1 + self.settings.margin) + LOST / self.contract.rate
        if needed >= lasts:
            self.get_logger().warning(
                f'a chunk of {len(actions)} actions lasts {lasts:.2f} s, and must last longer than '
                f'an inference and {LOST} ticks, {needed:.2f} s: the robot alone cannot keep up, '
                'and starves without the server; use longer chunks or a smaller model')

    def _place(self, name: str, network: Network, where: Any) -> Computing:
        place = Computing(name, self.policy, self.contract, network, where, self._on_computed,
                          self.machine.is_awaited,
                          self.settings.in_flight if name == SERVER else 1)
        self.held.callback(place.close)
        return place

    def _open_topics(self) -> None:
        self._topic_of = {
            name: self.create_subscription(message_class(entry.type), entry.topic,
                                           partial(self._on_message, name),
                                           qos.JOINTS if entry.names else qos.OBSERVATION
                                           ).topic_name
            for name, entry in self.contract.observations.items()}
        self._publishers_of = {
            name: self.create_publisher(message_class(entry.type), entry.topic, qos.ACTION)
            for name, entry in self.contract.actions.items()}
        self._status = self.create_publisher(DiagnosticStatus, 'policy_status', qos.STATUS)
        self._diagnostics = self.create_publisher(DiagnosticArray, '/diagnostics', qos.DIAGNOSTICS)

    # -- events ----------------------------------------------------------------------------------

    def _on_message(self, name: str, message: Any) -> None:
        if self.active:
            with suppress(DataFault):   # then `flaws` of the observer names it
                self.observer.take(name, message, time.monotonic())

    def _on_computed(self, answer: Answer) -> None:
        self._answers.append(answer)
        self._arrived.trigger()

    def _on_answers(self) -> None:
        while self._answers:
            answer, now = self._answers.popleft(), time.monotonic()
            if not self.active:
                continue
            if answer.fault:
                self.machine.fault(answer.fault)
            elif answer.flaw is not None:
                self.observer.refuse(answer.flaw)
                self.machine.on_failure(answer.request, str(answer.flaw), now)
            elif answer.actions is None:
                self.machine.on_failure(answer.request, answer.failure, now)
            else:
                self.machine.on_answer(answer.request, answer.actions, now, answer.where)

    def _on_tick(self) -> None:
        if not self.active:
            return
        now = time.monotonic()
        self._on_answers()
        if self._counted != (counted := [*map(self.count_publishers, self._topic_of.values())]):
            self._counted = counted
            self._look()
        for name, flaw in self.observer.flaws(now).items():
            many, other = self._strangers.get(name, ('', ''))
            self.machine.sensor(name, many or flaw and flaw + other)
        if math.isfinite(self.observer.observed):
            self.machine.on_observation(self.observer.observed)
        if self._shared is not None:
            self.machine.set_available(SERVER, self._shared.shared, self._shared.reason)
        command, asked = self.machine.on_tick(now)
        self._publish(command)
        for infer in asked:
            if not self._computing[infer.place].ask(infer, self.observer.newest()):
                self.machine.on_failure(infer.request, 'still busy with an earlier request', now)
        self._say()
        self._alarm.set(self.machine.deadline)

    def _publish(self, command: Command) -> None:
        stamp = self.get_clock().now().to_msg()
        for name, message in self.writer.messages(command):
            if hasattr(message, 'header'):
                message.header.stamp = stamp
            self._publishers_of[name].publish(message)

    def _make_safe(self) -> None:
        """Send the robot the command that the setting `safety` names; do this only once.

        Wait at most `LAST_WORDS` seconds until the command has arrived.
        """
        if self._is_safe:
            return
        self._is_safe = True
        self._publish(Command(self.settings.safety))
        end = time.monotonic() + LAST_WORDS
        for publisher in self._publishers_of.values():
            publisher.wait_for_all_acked(Duration(seconds=max(0.0, end - time.monotonic())))

    # -- reports ---------------------------------------------------------------------------------

    def _say(self) -> None:
        """Log when the states safe and starved begin and end.

        In these two states, also log each new reason. If the executed actions are stale, log
        this at most every `LOG_PERIOD` seconds.
        """
        if self.machine.is_stale:
            self.get_logger().warning(
                f'executes an action that is {self.machine.command.age:.1f} s old',
                throttle_duration_sec=LOG_PERIOD, throttle_time_source_type=self._steady)
        state, reason = now = self.machine.state, self.machine.reason
        if now == self._said:
            return
        before, self._said = self._said[0], now
        if state == SAFE:
            text = f'safe state ({self.settings.safety}): {reason}'
            if before != SAFE:
                self.get_logger().error(text)
            # A reason may change with each message.
            elif not self.get_logger().error(text, throttle_duration_sec=REASON_PERIOD,
                                             throttle_time_source_type=self._steady):
                self._said = state, ''
        elif state == STARVED:
            self.get_logger().warning('starved: no action for now; '
                                      + '; '.join(self.machine.warnings))
        elif before in (SAFE, STARVED):
            self.get_logger().info(f'{state} again')

    def _look(self) -> None:
        """Look who publishes on the topics of the observations.

        Several robots that publish on one absolute topic would move each other's arms. A publisher
        of another type is not received; it explains why nothing comes.
        """
        self._strangers.clear()
        for name, entry in self.contract.observations.items():
            topic = self._topic_of[name]
            many = several(self, topic, (entry.type,), entry.publishers)
            other = ''.join(f'; {node} publishes it as {kind}, the contract has {entry.type}'
                            for node, kind in publishers(self, topic) if kind != entry.type)
            self._strangers[name] = many and (
                f'observations.{name}: {many}, and its entry publishers is {entry.publishers}: use '
                "a topic in the robot's namespace, or, if all are of this robot, raise publishers"
                ), other

    def _other_commands(self) -> str:
        """Return a warning if other nodes also publish on a topic of the actions, otherwise ''."""
        for topic in (publisher.topic_name for publisher in self._publishers_of.values()):
            if self.count_publishers(topic) > 1:
                return f'{topic} has other publishers: does another policy command this robot, too?'
        return ''

    def _report(self) -> None:
        name = self.get_fully_qualified_name()
        others = ''
        if self.active:
            self._look()
            others = self._other_commands()
        if others:
            self.get_logger().warning(others, throttle_duration_sec=LOG_PERIOD,
                                      throttle_time_source_type=self._steady)
        status = diagnosis(self.machine, self.active, f'{name}: policy',
                           self.get_namespace().strip('/'), others, self._follower, self._sent)
        self.machine.begin_report()
        self._status.publish(status)
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    @property
    def report(self) -> dict[str, float | str]:
        """Return the values of `policy_status` by name."""
        return values_of(self.machine, self._follower, self._sent)

    @property
    def _sent(self) -> int | None:
        report = None if self._shared is None else self._shared.report
        return None if report is None else report.sent
