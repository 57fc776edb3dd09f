"""Parameter-server node: the ROS 2 shell around `rog_core.Server`."""

from __future__ import annotations

import dataclasses
import math
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from fleet_env.errors import VersionError
from fleet_link.errors import SealError
from fleet_models.offer import Offer
from fleet_ros.alarm import Alarm
from fleet_ros.channel import Channel
from fleet_ros.ending import HURRY
from fleet_ros.exposure import team_key
from fleet_ros.managed import ManagedNode
from fleet_ros.parameters import declare
from fleet_ros.sealing import serve
from fleet_ros.services import STEADY, close_parameters
from fleet_ros.session import Borrowed
from rclpy.parameter import Parameter
from rog_core.errors import ConfigError, RemoteProtocolError
from rog_core.method_check import check_method, check_named
from rog_core.model.flat import Contents, contents_of
from rog_core.protocol.config import ServerConfig
from rog_core.protocol.messages import Action, Notice, Send, Stop
from rog_core.protocol.states import AWAY, EVALUATING, JOINING, PAUSED, STOPPED
from rog_core.server.server import Server
from rog_core.shell import Shell
from rog_msgs.msg import FleetStatus, Heartbeat, TrainingStatus, TransferReceipt
from rog_msgs.srv import Register
from rog_ros import qos, transfers
from rog_ros.parameters import SERVER, ServerSettings, declare_robots, fleet_namespace
from rog_ros.servers import Others
from rog_ros.signature import Signature, process_of
from rog_tasks.task import Task, load_task, measure, measure_clean, prepare

from . import checkpoint
from .control import Control
from .directory import claim
from .duplicate_server_check import CHECKED, DuplicateServerWatch
from .model_versions import ModelVersions
from .peer import Peer, Peers
from .registration import Registration
from .reports import Reports
from .run_log import RunLog

if TYPE_CHECKING:
    import torch
    from fleet_env.emulated.shaped import ShapedLink
    from rog_core.server.aggregation import ServerState
    from rog_core.server.member import Member

    from .parent_fleet import ParentFleet


class ParameterServerNode(ManagedNode):
    """Carries out the actions of the server machine; writes records and checkpoints.

    While the node is not active, it grants no iteration, and its statuses tell the robots to wait.
    """

    packages = ('rog_core', 'rog_tasks', 'rog_ros', 'rog_ps')
    error = ''              # error that ended the node; empty if there was no error
    _had_run = False        # whether the next `configure` continues from this node's own checkpoint

    def __init__(self, **options: Any) -> None:
        super().__init__('parameter_server', ServerSettings, namespace=f'/{SERVER}', **options)

    def configure(self) -> None:
        """Load the task, make the state machine and the topics; grant no iteration yet."""
        self.held.callback(self._forget)
        self._read_settings()
        self._build()
        self._open_topics()
        self._awake = time.monotonic()
        self._heartbeat()

    def _read_settings(self) -> None:
        """Check the settings before the slow loading of the task and before a file is written."""
        self.settings = settings = declare(self, ServerSettings)
        if self._had_run:
            self.settings = settings = settings.model_copy(update={'resume': True})
        robots = declare_robots(self, settings.robots)
        self._links = {name: robot.link for name, robot in robots.items()}
        self._capacities = {name: robot.capacity for name, robot in robots.items()}
        security = settings.security
        self._key = team_key(security)
        self._signature = self._key and Signature(self._key)
        if self._key is not None or not security.control:
            close_parameters(self)
        check_method(settings, self._capacities, rehearse=CHECKED not in os.environ)

    def _build(self) -> None:
        """Load the task, make the state machine, and open the files of the run."""
        settings, training = self.settings, self.settings.training
        self._shell = Shell(self._on_send, notice=self._on_notice, stop=self._on_stop)
        self.reason = 'finished'
        self.dropped: Counter[str] = Counter()  # sender -> number of refused messages
        self._awake = time.monotonic()     # time at which this process last handled an event
        self.run = RunLog(settings, self.get_logger())
        self.out = self.run.out
        self.task: Task = load_task(training.task, training.task_options, seed=settings.seed)
        # `Upstream.base` from the checkpoint, see `rog_core.upstream`; None: not known
        self._base: np.ndarray | None = None
        self.machine, contents, baseline = self._build_machine()
        self.machine.paused = True
        # The method can come from a checkpoint, so copy it to the parameter.
        self.set_parameters([Parameter('sync', value=str(self.machine.method))])
        self._claim = claim(self.out, settings.resume, self.held)
        if settings.training.buffers == 'local':
            self.get_logger().info('each robot keeps its own buffers; the server evaluates with '
                                   'their mean (training.buffers: local)')
        self.run.begin(self.machine, list(self._links), baseline)
        self._versions = ModelVersions(settings, self.run, self.machine, self.task,
                                       contents,
                                       self.create_guard_condition(self._heartbeat).trigger,
                                       self._offer_model)
        self.held.callback(self._versions.close)
        self._offer: Offer | None = None
        self._versions.begin(self._awake, baseline and baseline[1])

    def _open_topics(self) -> None:
        """Make the topics, services and timers, and join the parent fleet if there is one."""
        settings, process = self.settings, process_of(self.machine.incarnation)
        self._reports = Reports(
            self.get_fully_qualified_name(), self.create_publisher,
            self.get_publishers_info_by_topic, lambda: self.get_clock().now().to_msg(),
            self._claim, self._signature)
        watch = DuplicateServerWatch(
            Others(self._signature, self._claim.run, process), process, self.get_namespace(),
            lambda: None if self.done else (self.elapsed, self._reports.count),
            self._drop_other, self._give_way, self.get_logger())
        self.create_subscription(FleetStatus, 'fleet_status', watch.on_status, qos.STATUS)
        self.peers = Peers(self._peer, self._links, settings.link_epoch, lambda: self.elapsed)
        registration = Registration(self.machine, self.peers, self._links, self._key,
                                    self._on_joined, self._refuse)
        serve(self, Register, 'register', registration.answer, registration.answerer,
              partial(self._refuse, ''))
        self._open_control()
        self._offer = Offer(self, self._key,
                            None if self._signature is None else self._signature.sign,
                            self._link_to)
        self.held.callback(self._offer.close)
        self._offer_model()
        self._alarm = Alarm(self._on_time, self)
        self.held.callback(self._alarm.close)
        self._above: ParentFleet | None = None  # connection to the parent fleet
        if settings.upstream.robot:
            # Import this only here, because it imports all modules of a robot's node.
            from .parent_fleet import ParentFleet
            here = fleet_namespace(self.get_namespace()), self.context.get_domain_id()
            self._above = ParentFleet(self.machine, settings, here, self.create_guard_condition,
                                      self._base, self._save if self.out else lambda: None,
                                      self.get_logger())
            self.held.callback(self._above.close)
        self.create_timer(settings.heartbeat.period, self._heartbeat, clock=STEADY)
        if self.out is not None and settings.server.checkpoint_every:
            self.create_timer(settings.server.checkpoint_every, self._save, clock=STEADY)

    def _open_control(self) -> None:
        """Make the services that control the run, and let the parameter `sync` change."""
        control = Control(
            self.machine, self._key, self.settings.security.control, act=self.act, save=self.save,
            pin=self._versions.pin, stop=partial(self.request_stop, 'stopped by request'),
            set_parameters=self.set_parameters, refused=self._refuse_control)
        for kind, name, answer in control.services:
            serve(self, kind, name, answer, control.answerer, self._refuse_control)
        self.add_on_set_parameters_callback(control.on_set_parameters)
        self.held.callback(self.remove_on_set_parameters_callback, control.on_set_parameters)

    def _peer(self, robot: str, link: ShapedLink) -> Peer:
        """Make the topics of a robot; ``link`` emulates the link to it."""
        base = f'{fleet_namespace(self.get_namespace())}/{robot}/'
        channel = Channel(self, transfers.SERVER, base, partial(self._on_message, robot),
                          partial(self._on_unproved, robot), link, self._key is not None)
        channel.listen()
        heartbeat = self.create_publisher(Heartbeat, base + 'server_heartbeat', qos.HEARTBEAT)
        self.create_subscription(TrainingStatus, base + 'training_status',
                                 lambda message: self._on_status(robot, message), qos.HEARTBEAT)
        self.create_subscription(Heartbeat, base + 'heartbeat',
                                 lambda message: self._on_heartbeat(robot, message), qos.HEARTBEAT)
        return Peer(base, channel, heartbeat.publish)

    def activate(self) -> None:
        """Let the robots train; the time of a pause does not count as time of training."""
        self.run.go_on()
        self.act(self.machine.resume(time.monotonic()))
        self._publish_status()

    def deactivate(self) -> None:
        """Stop granting iterations; raise `ConfigError` if the run is ending."""
        if self.machine.stopping:
            raise ConfigError('the run is ending')
        self.run.pause()
        self.act(self.machine.pause(time.monotonic()))
        self._publish_status()

    def cleanup(self) -> None:
        """Write the last checkpoint and the records; robots will register with the next server."""
        if not self.machine.stopping:
            self.reason = 'cleaned up'
        self._write_outcome()
        self._had_run = self.out is not None

    def _forget(self) -> None:
        for name in ('machine', 'task', 'peers', 'run', '_versions', '_above', '_base'):
            vars(self).pop(name, None)

    def shutdown(self) -> None:
        """End the run in an orderly way."""
        if self.configured:
            self.request_stop('shut down')
        else:
            super().shutdown()

    # -- building ---

    def _build_machine(self) -> tuple[Server, Contents, tuple[float, float] | None]:
        """Return the machine, its model, and the accuracies at the start (None if resumed)."""
        settings = self.settings
        training = settings.training
        model = self.task.model()
        contents = contents_of(model)
        partition = contents.partition(training.granularity, training.codec)
        found = self.run.newest_checkpoint(partition, contents.flatten())
        if found is not None:
            master, state = found
        else:
            self.get_logger().info(f'preparing the model of {training.task}')
            prepare(self.task, model)
            master, state = contents.flatten(), None
        baseline = measured_start(self.task, model, self.get_logger()) if state is None else None
        machine = Server(
            partition, master[:partition.elements].copy(), secrets.randbits(63),
            ServerConfig.of(settings, self._capacities), contents.frozen_values())
        if len(master) > partition.elements:  # a robot had unfrozen a parameter
            machine.grow()
            machine.master[:] = master
        if state is not None:
            # The method of the checkpoint can differ from the method in the settings.
            check_named(state.sync, machine.aggregation.team)
            machine.load_state(state)
            self._base = state.base
        return machine, contents, baseline

    @property
    def elapsed(self) -> float:
        """Seconds of training, including the training before a restart of the server."""
        return self.run.elapsed

    # -- events ---

    def _on_joined(self, robot: str, iteration: int, actions: list[Action]) -> None:
        """Let a robot train from ``iteration`` on; the first call also begins the run."""
        if self.run.on_joined(robot, iteration):
            self.peers.begin(time.monotonic() - self.elapsed)
        self.act(actions)
        self._publish_status()

    def _refuse(self, robot: str, reason: str) -> None:
        # Use one counter for all robots that were never accepted, so that invented names take no
        # memory.
        self.dropped[robot if robot in self.peers else 'unknown robots'] += 1
        self.get_logger().warning(reason, throttle_duration_sec=5.0)

    # Each kind of call or message that is refused has a line of its own that logs it, because rclpy
    # counts the seconds between two log lines for each line of code.
    def _refuse_control(self, reason: str) -> None:
        self.dropped['control'] += 1
        self.get_logger().warning(reason, throttle_duration_sec=5.0)

    def _drop_other(self, reason: str) -> None:
        self.dropped['another server'] += 1
        self.get_logger().warning(reason, throttle_duration_sec=5.0)

    def _give_way(self, reason: str) -> None:
        """End, because the run belongs to another server."""
        self.error, self.done = reason, True

    def _on_message(self, robot: str, message: Any) -> None:
        """Handle a message of a transfer."""
        clipped = self.machine.clipped[robot]
        member = self.machine.members.get(robot)
        sender = None if member is None else member.sender
        actions = transfers.receive(self.machine, message, self.get_logger(), robot)
        times = self.machine.clipped[robot]
        if times != clipped and times.bit_count() == 1:  # log the 1st, 2nd, 4th, 8th ... time
            self.get_logger().warning(f'a push of {robot} counts only in part, {times} until now: '
                                      f'its norm is above {self.settings.server.clip:g} times the '
                                      'median of the robots (server.clip)')
        if actions is None:
            self.dropped[robot] += 1
            return
        if self.settings.training.checksums and isinstance(message, TransferReceipt) \
                and member is not None and sender is not None and member.sender is not sender:
            self.get_logger().info(transfers.checksum_of(sender.transfer, member.mirror.rows))
        self.act(actions)

    def _on_unproved(self, robot: str, error: SealError) -> None:
        """Count a message in the name of a robot whose seal the robot's key does not open."""
        self.dropped[robot] += 1
        self.get_logger().warning(f'dropped a message of {robot}: {error}',
                                  throttle_duration_sec=5.0)

    def _on_status(self, robot: str, message: Any) -> None:
        """Handle a status message of a robot.

        The status counts as a heartbeat and is recorded. It may say that the robot pauses or stops.
        Whoever shows the fleet gets it, too; without a key also before the robot has registered.
        """
        if message.robot != robot:
            return
        if self._key is None:
            self._reports.relay.publish(message)
        member = self._sender_of(robot, message, lambda peer, member: peer.check_status(
            message, member, self.machine.incarnation, self._key is not None))
        if member is None:
            return
        if self._key is not None:
            self._reports.relay.publish(message)
        if self.peers[robot].is_recorded(message, member):
            self.run.record(lambda recorder: recorder.status(self.elapsed, message))
        self._reports.remember(message)
        self.run.on_status(robot, message.state)
        if message.state in (PAUSED, STOPPED):
            self.act(self.machine.on_leave(robot, member.incarnation, time.monotonic()))
            return
        if self._above is not None:
            self._above.note(robot, message.loss, message.accuracy)
        self._hear(member, message)

    def _on_heartbeat(self, robot: str, message: Any) -> None:
        """Handle a heartbeat of a robot, which sends it when no status is due."""
        member = self._sender_of(robot, message, lambda peer, _: peer.check_heartbeat(
            message, self._key is not None))
        if member is not None:
            self._hear(member, message)

    def _hear(self, member: Member, message: Any) -> None:
        """Let a status or heartbeat show that a robot is alive."""
        now = time.monotonic()
        if message.state == EVALUATING and self.run.ends:
            self.run.wait()
        else:
            self.act(self.machine.on_heartbeat(member.robot, member.incarnation, now, message.loss,
                                               message.state))

    def _sender_of(self, robot: str, message: Any, check: Callable[[Peer, Member], None]
                   ) -> Member | None:
        """Return the member that has sent a status or heartbeat; None: it does not count.

        :param check: raises `RemoteProtocolError` if it cannot be from this member.
        """
        member = self.machine.members.get(robot)
        if member is None or member.state == AWAY \
                or message.incarnation != process_of(member.incarnation):
            if robot in self.run.away:
                # The link to the robot is back. Publish a status now, so that the robot learns at
                # once that the server counts it as away.
                self._publish_status()
            return None  # the sender is another process with this name, or must register again
        try:
            check(self.peers[robot], member)
        except (RemoteProtocolError, SealError) as error:
            if member.state == JOINING:
                # the robot has not yet received the answer that accepts its registration
                return None
            self.dropped[robot] += 1
            self.get_logger().warning(f'dropped a status of {robot}: {error}',
                                      throttle_duration_sec=5.0)
            return None
        return member

    def _on_time(self) -> None:
        now = time.monotonic()
        self._excuse(now)
        self.peers.release(now)
        self.act(self.machine.on_time(now))

    def _excuse(self, now: float) -> None:
        """If this process was held up, do not count that time as silence of the robots.

        Heartbeats that arrived during that time are still unread.
        """
        if now - self._awake > self.settings.heartbeat.period + self.settings.heartbeat.limit / 2:
            self.get_logger().warning(f'this process was held up for {now - self._awake:.1f} s')
            self.machine.on_held_up(now - self._awake, now)
        self._awake = now

    def _heartbeat(self) -> None:
        if self.settings.minutes and self.elapsed >= 60 * self.settings.minutes:
            self.request_stop('finished')
        now = time.monotonic()
        self._excuse(now)
        self._versions.look(now)
        if self.run.is_over(self._versions.busy, self._above is not None and self._above.pushing):
            self.finish()
        self.run.report_away()
        if self._reports.is_due(self.machine, self.run.faults):
            self._publish_status()
        self._reports.tell_newcomers()
        for member in self.machine.members.values():
            if member.alive and not self.done:
                self.peers[member.robot].beat(process_of(self.machine.incarnation),
                                              self._reports.last, self.settings.heartbeat.limit)
        self._diagnose()

    # -- actions ---

    def act(self, actions: list[Action]) -> None:
        """Carry out actions of the state machine."""
        self._excuse(time.monotonic())
        sends = [action for action in actions if isinstance(action, Send)]
        self._shell.carry_out(sends)
        for robot in {send.robot for send in sends}:
            self.peers[robot].channel.flush()
        self._shell.carry_out(action for action in actions if not isinstance(action, Send))
        if self._above is not None:
            self._above.look()
        self._set_alarm()

    def _on_send(self, send: Send) -> None:
        self.peers[send.robot].send(send.message, time.monotonic())

    def _on_notice(self, notice: Notice) -> None:
        self.get_logger().warning(f'{notice.robot} {notice.what}: {notice.detail}')
        self.run.fault(notice.robot, notice.what, notice.detail)
        self._publish_status()

    def _on_stop(self, stop: Stop) -> None:
        self.run.begin_end()
        self._versions.finish()
        if self._above is not None:
            self._above.account()

    def _link_to(self, robot: str) -> ShapedLink | None:
        """Return the emulated link of a robot, which its readers of the model share with it."""
        if robot not in self.peers:
            return None
        return Borrowed(self.peers[robot].channel.link, self._set_alarm)

    def _set_alarm(self) -> None:
        self._alarm.set(min(self.machine.deadline, self.peers.deadline))

    def _offer_model(self) -> None:
        """Offer the followers of the model the version that is theirs now."""
        if self._offer is None:
            return
        try:
            if (offered := self._versions.offered()) is not None:
                self._offer.announce(*offered)
        except VersionError as error:
            self.get_logger().error(f'followers do not get the new version: {error}')

    def request_stop(self, reason: str) -> None:
        """End the run in an orderly way: send the final model to all robots, close the records."""
        if self.machine.stopping:
            return
        self.reason = reason
        self.get_logger().info(f'stopping: {reason}')
        self.act(self.machine.stop(time.monotonic()))
        self._publish_status()

    def interrupt(self) -> None:
        """End the run at the user's request; end soon if the run is ending already."""
        if self.configured and not self.machine.stopping:
            self.request_stop('interrupted')
        elif self.configured and self._versions.busy:  # wait a moment for the evaluation
            self.run.hurry(HURRY)
        else:
            self.finish()

    def finish(self) -> None:
        """End the run: write the last checkpoint and the summary."""
        if not self.done:
            self.done = True
            self._write_outcome()

    def say_last(self) -> None:
        """Publish the last status, and wait a moment until the subscribers have received it."""
        if self.configured:
            self._publish_status()
            self._reports.wait_until_heard()

    def _write_outcome(self) -> None:
        if not self.configured:
            return
        if self.out is not None:
            self._save()
        self._versions.conclude()
        incomplete = self.run.close(self.reason, self.machine.method.spec.text)
        if incomplete:
            self.error = self.error or incomplete
            self.get_logger().error(self.error)

    # -- checkpoints ---

    def save(self, name: str = '') -> Path:
        """Write a checkpoint, and return its path.

        If ``name`` is empty, write a checkpoint of the run; otherwise one with this name.

        :raises CheckpointError: the checkpoint could not be written.
        """
        return self.run.save(*self._state(), name,
                             checkpoint.NAMED if self._key else checkpoint.OPEN)

    def _save(self) -> None:
        self.run.save_or_say(*self._state())

    def _state(self) -> tuple[np.ndarray, ServerState]:
        """Return the model, float32 (elements,), and the server's state, for a checkpoint."""
        state = self.machine.checkpoint()
        if self._above is not None:
            state = dataclasses.replace(state, base=self._above.base.copy())
        return self.machine.master.copy(), state

    # -- status ---

    def _publish_status(self) -> None:
        if self.done and not self.machine.stopping:
            # Another server continues the run. The robots would believe that the status `stopped`
            # is from that server.
            return
        self._reports.status(self.machine, self.elapsed, self.done, self.run.paused,
                             [] if self._offer is None else self._offer.lines(),
                             self.run.faults)

    def _diagnose(self) -> None:
        above = f'{self._above.name}: {self._above.state}' if self._above is not None else ''
        self._reports.diagnose(self.machine, self.run.faults, above, self.dropped,
                               [] if self._offer is None else self._offer.lines(),
                               {name: peer.base for name, peer in self.peers.items()})


def measured_start(task: Task, model: torch.nn.Module, log: Any) -> tuple[float, float]:
    """Return the accuracies on the data before the domain shift (NaN: unknown) and after it."""
    clean, before = measure_clean(task, model), measure(task, model)
    known = '' if math.isnan(clean) else f'; before the shift {clean:.3f}'
    log.info(f'accuracy at the start {before:.3f}{known}')
    return clean, before
