"""A fleet in virtual time: the state machines of `rog_core` in a discrete-event loop.

The state machines are the same as on the robots, and the gradients are real. The fleet file gives
the duration of a gradient, the rates of the links and the power. Two runs with equal seeds write
equal run records. At time 0 every robot already has the model and starts to compute its first
gradient. The run ends after the `minutes` of the fleet file. A real run ends with an exchange of
the final model. In virtual time, it takes no time, and runs for comparisons omit it.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fleet_env.links.channel import Channel
from fleet_env.records.events import RUN_FILE, Start
from fleet_env.records.run_recorder import Recorder
from fleet_env.records.summary import Summary
from fleet_env.settings.fleet import FleetConfig, RobotConfig
from fleet_env.settings.fleet_file import child_fleets, link_trace, write_run_fleet
from rog_core.errors import (
    ConfigError,
    GradientError,
    PartitionMismatchError,
    StaleMessageError,
)
from rog_core.method_check import check_method
from rog_core.model.flat import Contents, contents_of, unflatten
from rog_core.model.partition import Listing, RowPartition, require_same
from rog_core.protocol.config import ServerConfig, TransferConfig
from rog_core.protocol.messages import (
    HEADER_BYTES,
    Action,
    Chunk,
    Compute,
    Notice,
    RegisterRequest,
    Send,
)
from rog_core.server.server import Server
from rog_core.shell import Shell, handler
from rog_tasks.errors import TaskError
from rog_tasks.failure import failure, named_failures
from rog_tasks.sources import CameraSource
from rog_tasks.task import Task, load_task, measure, measure_clean, prepare
from rog_tasks.task_check import young_share

from .child_fleet import ChildFleet
from .event_queue import EventQueue
from .final_version import write_final_version
from .model_outputs import SERVER, write_model_outputs
from .processes import GradientProcesses
from .robot import Robot
from .traffic import traffic_factor

Progress = Callable[[float], None]
DATAGRAM = 1300  # maximum bytes of a message in one datagram; a longer message is divided
DIVERGED = 1000.0  # a model whose norm has grown by this factor has diverged
FAILED = 'failed'  # name of the fault of a robot that cannot go on, and reason of the end


def simulate(fleet: FleetConfig, out: Path | None = None, progress: Progress | None = None,
             server_every: float = 0.0, keep_model: bool = False, task: Task | None = None
             ) -> Summary:
    """Run the fleet in virtual time for `FleetConfig.minutes`, and return the outcome.

    A robot whose gradient holds NaN or infinite values, or whose task fails, leaves the fleet, as
    its node does: the record has a fault ``failed`` with the iteration and the reason, and the
    others go on.

    :param out: directory for run.jsonl and summary.json; None: write nothing.
    :param progress: called with the share of the run that is done, 0 to 1.
    :param server_every: seconds between evaluations of the server's model; 0: evaluate the
        robots' models instead. If the server's model is evaluated and the training
        diverges, the run ends, and ``notes`` in the summary says that it diverged. It diverges
        if no robot is left, or if a gradient is not finite and the norm of the fleet's model has
        grown by `DIVERGED`.
    :param keep_model: whether to give the server's final model to the robots, as at the end of a
        real run, to evaluate it, and to write it and the settings of the run into ``out``, too.
    :param task: the task of the fleet, which nobody else uses; None: load it.
    :raises ConfigError: virtual time cannot run this fleet file.
    :raises GradientError: no robot is left, and ``server_every`` is 0; the record is complete.
    :raises TaskError: no robot is left, since the task has failed; the record is complete.
    :raises VersionError: the model cannot be written; the record and the summary are written.
    """
    if out is not None and (out / RUN_FILE).exists():
        raise ConfigError(f'{out} already holds a run; choose another directory')
    for one in (fleet, *child_fleets(fleet).values()):
        _require_pace(one)
    threads, collect = torch.get_num_threads(), gc.get_threshold()
    # One thread always adds numbers in the same order, so equal seeds give equal results. One
    # thread is also fast enough for the small models.
    torch.set_num_threads(1)
    # Collect garbage less often, because a run makes millions of messages, and messages have no
    # reference cycles.
    gc.set_threshold(100_000, *collect[1:])
    try:
        simulation = Simulation(fleet, out, server_every, keep_model=keep_model, task=task)
        if out is not None and keep_model:
            write_run_fleet(fleet, out)
            for name, below in simulation.below.items():
                write_run_fleet(below.fleet, out / name)
        return simulation.run(progress or (lambda done: None))
    finally:
        torch.set_num_threads(threads)
        gc.set_threshold(*collect)


def _require_pace(fleet: FleetConfig) -> None:
    for robot in fleet.robots:
        if not robot.fleet and robot.pace + robot.codec_pace <= 0:
            raise ConfigError(f'{robot.name} of {fleet.name} computes a gradient in 0 s; virtual '
                              'time needs training.pace, the seconds that it takes on the robot')


def _refuse_live(task: Task) -> None:
    for source in task.sources:
        if isinstance(source, CameraSource):
            raise ConfigError(f'the task uses the live topic {source.image_topic}, which does not '
                              'exist in virtual time; name a recording or a folder')


def _prepared(fleet: FleetConfig, task: Task, above: tuple[RowPartition, np.ndarray] | None
              ) -> tuple[torch.nn.Module, Contents, RowPartition]:
    """Return the task's initial model, in eval mode, its contents, and its rows.

    :param above: rows and initial weights of the parent fleet, which a child fleet must use; None:
        this fleet has no parent fleet.
    :raises ConfigError: the parent fleet trains another model.
    """
    training = fleet.training
    with named_failures(task):
        model = task.model()
    contents = contents_of(model)
    partition = contents.partition(training.granularity, training.codec)
    if above is None:
        with named_failures(task):
            prepare(task, model)
    else:
        rows, weights = above
        try:
            require_same(Listing(partition.listing.parameters, rows.granularity), rows)
        except PartitionMismatchError as error:
            raise ConfigError(f'the fleet {fleet.name} trains another model than its parent '
                              f'fleet: {error}') from error
        contents.store(weights)
    return model.eval(), contents, partition


def _worker(config: RobotConfig, fleet: FleetConfig, task: Task, weights: np.ndarray,
            traffic: float, life: int, below: Simulation | None) -> Robot | ChildFleet:
    """Return a robot of a fleet, or the child fleet that acts as this robot (``below``)."""
    if below is not None:
        return ChildFleet(config.name, below.server, below.robots,
                          TransferConfig.of(fleet, traffic), life)
    model = task.model()
    unflatten(model, weights)
    return Robot(config, fleet, task, model, traffic, life)


def _bytes_on_air(message: Any, traffic: float, header: int) -> float:
    nbytes = float(HEADER_BYTES)
    if isinstance(message, Chunk):
        nbytes += (message.ids.size + message.values.size) * traffic
    return nbytes + header * math.ceil(nbytes / DATAGRAM)


def _has_diverged(master: np.ndarray, start: float) -> bool:
    """Return whether the norm of parameters has grown too far; ``start``: their initial norm."""
    norm = float(np.linalg.norm(master.astype(np.float64)))
    return not norm <= DIVERGED * (start or math.sqrt(master.size))


def _nobody_left(workers: list[Robot]) -> str:
    said = [f'{worker.name}, {worker.failure}' for worker in workers]
    more = f'; and {len(said) - 3} more' if len(said) > 3 else ''
    return f'no robot is left: {"; ".join(said[:3])}{more}'


class Simulation:
    """One run of a fleet in virtual time, with its child fleets.

    :param above: function that pushes this fleet's change to the parent fleet, if a push is due.
        It is called, with the time in seconds, after the actions of this fleet's server. None: no
        parent fleet.
    :param model_above: rows and initial weights of the parent fleet. A child fleet uses the
        same weights, so the task prepares (pre-trains) them only once.
    :param task: the task of the fleet; None: load it.
    """

    def __init__(self, fleet: FleetConfig, out: Path | None = None, server_every: float = 0.0,
                 above: Callable[[float], None] | None = None,
                 model_above: tuple[RowPartition, np.ndarray] | None = None,
                 keep_model: bool = False, task: Task | None = None) -> None:
        self._above = above
        self.fleet, self.now, self.end = fleet, 0.0, 60 * fleet.minutes
        self._out, self._keep_model = out, keep_model and out is not None
        self._server_every = server_every
        training = fleet.training
        check_method(fleet, fleet.capacities)
        links = {config.name: link_trace(config.link) for config in fleet.robots}
        task = task or load_task(training.task, training.task_options, fleet.seed,
                                 training.batch_size)
        _refuse_live(task)
        model, contents, partition = _prepared(fleet, task, model_above)
        self._traffic = traffic_factor(training.traffic, partition)
        with named_failures(task):
            clean, before = measure_clean(task, model), measure(task, model)
        lives = np.random.default_rng(fleet.seed).integers(1 << 63, size=1 + len(fleet.robots))
        self._task, self._model = task, model  # for the evaluation of the server's model
        master = contents.flatten()
        self._contents = contents
        # norm of the initial parameters
        self._norm = float(np.linalg.norm(master[:partition.buffers.start]))
        self.server = Server(
            partition, master.copy(), int(lives[0]),
            ServerConfig.of(fleet, fleet.capacities, self._traffic), contents.frozen_values())
        self.below = {name: Simulation(below, out and out / name, above=self._worked(name),
                                       model_above=(partition, master), keep_model=keep_model)
                      for name, below in child_fleets(fleet).items()}
        self.robots: dict[str, Any] = {
            config.name: _worker(config, fleet, task, master, self._traffic, int(life),
                                 self.below.get(config.name))
            for config, life in zip(fleet.robots, lives[1:], strict=True)}
        self._shell = Shell(lambda send: self._send(send.robot, False, send.message),
                            notice=self._note)
        self._shells = {name: Shell(lambda send: self._send(send.robot, True, send.message),
                                    partial(self._register, robot), partial(self._compute, robot))
                        for name, robot in self.robots.items()}
        self._latency = {config.name: config.link.latency for config in fleet.robots}
        self._header = fleet.channel.header
        self._away: set[str] = set()
        self._unheard: set[str] = set()
        self._patient = math.isinf(fleet.server.patience)  # True if no robot is ever retired
        self.channel = Channel(links, fleet.channel.shared)
        self._waiting: set[int] = set()  # `id` of each chunk that waits for the channel
        self._events = EventQueue()
        self._processes: GradientProcesses  # these processes compute the gradients of the robots
        self._workers: list[Robot] = []  # the robots of all fleets of this run
        self._recorder = Recorder(out, Start(
            0.0, '', training.task, training.sync, fleet.seed, fleet.name, list(self.robots),
            codec=training.codec))
        self._recorder.baseline(clean, before)

    def _worked(self, name: str) -> Callable[[float], None]:
        """Return the function that child fleet ``name`` calls after the actions of its server."""
        def worked(now: float) -> None:
            if actions := self.robots[name].account(now):
                self.now = now
                self._act(self.robots[name], actions)
        return worked

    # -- time ---

    def run(self, progress: Progress) -> Summary:
        """Run this fleet and its child fleets up to the end of the run; return the outcome."""
        fleets = [*self.below.values(), self]
        workers = [robot for fleet in fleets for robot in fleet.real_robots]
        for place, robot in enumerate(workers):
            robot.place = place
        with GradientProcesses([robot.work for robot in workers]) as processes:
            for fleet in fleets:
                fleet.start(processes, workers, progress if fleet is self else lambda done: None)
            try:
                self._loop(fleets)
            except KeyboardInterrupt:
                self.end = self.now
                self._finish(progress, 'interrupted')
                raise
            except (GradientError, TaskError) as error:
                self.end = max(fleet.now for fleet in fleets)
                if not self._server_every or isinstance(error, TaskError):
                    self._finish(progress, FAILED)
                    raise
                return self._finish(progress, 'diverged')
            return self._finish(progress, 'finished')

    @property
    def real_robots(self) -> list[Robot]:
        """Return the robots of this fleet that are not child fleets."""
        return [robot for robot in self.robots.values() if isinstance(robot, Robot)]

    def start(self, processes: GradientProcesses, workers: list[Robot], progress: Progress
              ) -> None:
        """Start all robots at time 0; ``workers``: those of this fleet and its relatives."""
        self._processes, self._workers = processes, workers
        for robot in self.robots.values():
            self._act(robot, robot.machine.start(0.0))
        self._at(self.fleet.heartbeat.period, lambda: self._heartbeat(progress))
        if self._server_every:
            self._at(self._server_every, self._measure_server)

    def _loop(self, fleets: list[Simulation]) -> None:
        """Process the events of all fleets in order of time, up to the end of the run."""
        soonest = min(fleets, key=lambda fleet: fleet.next_event)
        while soonest.step(self.end):
            if len(fleets) > 1:
                soonest = min(fleets, key=lambda fleet: fleet.next_event)

    @property
    def next_event(self) -> float:
        """Return the time of the next event of this fleet."""
        return min(self._events.next()[0], self.channel.deadline)

    def step(self, end: float) -> bool:
        """Process the next event of this fleet; return False if no event comes before ``end``."""
        due, departs = self._events.next()[0], self.channel.deadline
        if min(due, departs) >= end:
            return False
        if departs <= due:
            self.now = max(departs, self.now)
            for name, uplink, message in self.channel.pop(self.now):
                self._waiting.discard(id(message))
                self._arrive(name, uplink, message)
        else:
            self.now, _, call = self._events.pop()
            call()
        return True

    def _finish(self, progress: Progress, reason: str) -> Summary:
        for below in self.below.values():
            below.end = self.end
            below._finish(lambda done: None, reason)
        self.now = self.end
        for robot in self.real_robots:
            if robot.left:
                continue
            if reason != 'diverged':
                robot.finish()
            robot.settle(self.now)
            report = robot.machine.report(self.now)
            if self._keep_model and reason == 'finished':
                robot.take_final(self.server.master)
            robot.store.publish_final()
            if not self._server_every:
                try:
                    robot.evaluate(self._processes, report.iteration)
                except TaskError as error:  # it must not cost the results of the run
                    self._recorder.fault(self.now, robot.name, 'not_evaluated', str(error))
            self._report(robot, 'stopped')
        for name in self.below:
            self._report(self.robots[name], 'stopped')
        if self._out is not None:
            self._save_model_outputs(self._out)
        accuracy = self._measure_final() if self._keep_model else math.nan
        if reason != 'interrupted':
            progress(1.0)
        summary = self._recorder.stop(self.end, reason)
        if self._out is not None and self._keep_model:
            write_final_version(self._out, self.fleet, self._model, self._iteration, accuracy)
        return summary

    @property
    def _iteration(self) -> int:
        """Return the number of iterations that the fastest robot has finished."""
        return max(robot.machine.finished for robot in self.robots.values())

    def _measure_final(self) -> float:
        """Evaluate and record the server's final model; return NaN if that fails."""
        self._contents.store(self.server.master)
        try:
            accuracy = measure(self._task, self._model)
        except Exception as error:   # an error of the task must not cost the results of the run
            self._recorder.fault(self.now, '', 'no_accuracy', failure(self._task, error))
            return math.nan
        if not math.isnan(accuracy):
            self._recorder.server(self.now, self._iteration, accuracy, young_share(self._model))
        return accuracy

    def _save_model_outputs(self, out: Path) -> None:
        """Write the outputs of the final models for figures, if the task makes any."""
        self._contents.store(self.server.master)
        shown = {SERVER: self._task.portrait(self._model), **{
            robot.name: robot.portrait(self._processes) for robot in self.real_robots
            if not robot.left}}
        write_model_outputs(out, shown)

    def _measure_server(self) -> None:
        """Evaluate the server's model, as the papers on GSGM and gradient coding do."""
        self._contents.store(self.server.master)
        self._recorder.server(self.now, self._iteration, measure(self._task, self._model))
        self._at(self._server_every, self._measure_server)

    def _at(self, delay: float, call: Callable[[], None]) -> None:
        self._events.add(self.now, delay, call)

    def _heartbeat(self, progress: Progress) -> None:
        """Deliver the heartbeats of the server and of all robots with a link."""
        server = self.server
        for name, robot in self.robots.items():
            if self._heard(name) and not robot.left:
                machine = robot.machine
                if name in self._unheard and not self._patient:
                    self._act(robot, machine.on_contact(self.now))
                self._serve(server.on_heartbeat(name, machine.incarnation, self.now, robot.loss,
                                                machine.state))
                known = server.is_member(name, machine.incarnation)
                self._act(robot, machine.on_server_status(server.incarnation, known, self.now))
        self._unheard = {name for name in self.robots if not self._heard(name)}
        if not self._patient:
            # The deadlines from `server.patience` depend on which robots wait now, so let the
            # server compute them again.
            self._server_time()
        away = {m.robot for m in server.members.values()
                if m.state == 'away' and not self.robots[m.robot].left}
        for name in sorted(away ^ self._away):
            what = 'peer_lost' if name in away else 'rejoined'
            self._recorder.fault(self.now, name, what, 'its link is dead' if name in away else '')
        self._away = away
        progress(self.now / self.end)
        self._at(self.fleet.heartbeat.period, lambda: self._heartbeat(progress))

    # -- actions ---

    def _serve(self, actions: list[Action], robot: str = '') -> None:
        """Carry out actions of the server.

        :param robot: sender of the message that caused the actions; empty if no message caused
            them.
        """
        self._shell.carry_out(actions)
        touched = {action.robot for action in actions if isinstance(action, Send)}
        for name in sorted(touched | {robot} - {''}):
            self._events.set_alarm(self.now, name, self.server.deadline_of(name), self._server_time)
        if self._above is not None:
            self._above(self.now)

    def _note(self, notice: Notice) -> None:
        self._recorder.fault(self.now, notice.robot, notice.what, notice.detail)

    def _server_time(self) -> None:
        self._serve(self.server.on_time(self.now))
        for name in self.server.members:
            self._events.set_alarm(self.now, name, self.server.deadline_of(name), self._server_time)

    def _act(self, robot: Any, actions: Iterable[Action]) -> None:
        """Carry out actions of a robot."""
        self._shells[robot.name].carry_out(actions)
        robot.settle(self.now)
        self._events.set_alarm(self.now, robot, robot.machine.deadline,
                        lambda: self._act(robot, robot.machine.on_time(self.now)))

    def _compute(self, robot: Robot | ChildFleet, order: Compute) -> None:
        if isinstance(robot, ChildFleet):
            self._report(robot)
            robot.go_on(order)
            # The child fleet's next push may be due already, so check at once.
            self._at(0.0, lambda: self._act(robot, robot.account(self.now)))
            return
        robot.start(self._processes, order,
                    not self._server_every and robot.evaluation_due(self.now))
        self._report(robot)  # report now, while another process computes the gradient
        self._at(robot.compute_time(order, self.now), lambda: self._computed(robot))

    def _computed(self, robot: Robot) -> None:
        actions = robot.computed(self.now)
        if robot.failure:
            self._lose(robot)
        else:
            self._act(robot, actions)

    def _lose(self, robot: Robot) -> None:
        """Let a robot leave that has a `failure`.

        :raises GradientError: the training diverges, or no robot of any fleet is left.
        :raises TaskError: no robot of any fleet is left, and the task of this one has failed.
        """
        if self._server_every and isinstance(robot.error, GradientError) and _has_diverged(
                self.server.master[:self.server.partition.buffers.start], self._norm):
            raise GradientError(f'{robot.name}, {robot.failure}')
        self._recorder.fault(self.now, robot.name, FAILED, robot.failure)
        self._report(robot, 'stopped')  # before it leaves: this iteration is not finished
        robot.leave(self.now)
        self._act(robot, [])
        server, life = self.server, robot.machine.incarnation
        self._over_the_air(robot.name, lambda: self._serve(
            server.on_leave(robot.name, life, self.now), robot.name))
        if all(worker.left for worker in self._workers):
            if isinstance(robot.error, TaskError):
                raise robot.error
            raise GradientError(_nobody_left(self._workers))

    def _report(self, robot: Robot | ChildFleet, state: str = '') -> None:
        self._recorder.status(self.now, robot.report(
            self.now, self.channel.rate_at(robot.name, self.now), state))

    # -- network ---

    def _heard(self, name: str) -> bool:
        """Return whether the robot has a link and has not dropped out."""
        return self.channel.rate_at(name, self.now) > 0 \
            and self.now >= self.robots[name].dropped_until

    def _send(self, name: str, uplink: bool, message: Any) -> None:
        """Send a message.

        Chunks use the channel. Other messages are small, so only the latency of the link delays
        them. If `channel.header` is set, all messages use the channel. At time 0 every message
        arrives at once.
        """
        if self.now > 0.0 and (self._header or isinstance(message, Chunk)):
            self._queue_up(name, uplink, message)
        else:
            self._over_the_air(name, lambda: self._deliver(name, uplink, message))

    def _queue_up(self, name: str, uplink: bool, message: Any) -> None:
        """Queue a message for the channel.

        Drop the message if the robot has no link or has dropped out. Drop a chunk if the queue
        already contains this chunk.
        """
        if not self._heard(name):
            return
        if isinstance(message, Chunk):
            if id(message) in self._waiting:
                return
            self._waiting.add(id(message))
        nbytes = _bytes_on_air(message, self._traffic, self._header)
        self.channel.offer(name, uplink, nbytes, message, self.now)

    def _over_the_air(self, name: str, deliver: Callable[[], None]) -> None:
        """Call ``deliver`` after the latency of the link; at time 0, call it at once.

        After time 0, a message is lost if the robot has no link or has dropped out.
        """
        if self.now == 0.0:
            self._at(0.0, deliver)
        elif self._heard(name):
            self._at(self._latency[name], deliver)

    def _arrive(self, name: str, uplink: bool, message: Any) -> None:
        self._at(self._latency[name], lambda: self._deliver(name, uplink, message))

    def _deliver(self, name: str, uplink: bool, message: Any) -> None:
        try:
            if uplink:
                handle = handler(self.server, message)
                self._serve(handle(name, message, self.now), name)
            elif not (robot := self.robots[name]).left:
                robot.before(message)
                self._act(robot, handler(robot.machine, message)(message, self.now))
        except StaleMessageError:
            pass  # ignore a message from before a restart, as the nodes do

    def _register(self, robot: Any, request: RegisterRequest) -> None:
        def ask() -> None:
            response, actions = self.server.on_register(request, self.now)

            def answer() -> None:
                if robot.machine.awaits(request):
                    self._act(robot, robot.machine.on_register_response(response, self.now))
            self._over_the_air(robot.name, answer)
            self._serve(actions, robot.name)
        self._over_the_air(robot.name, ask)
