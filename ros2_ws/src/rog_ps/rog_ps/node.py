"""Parameter-server node: the ROS 2 shell around `rog_core.ServerMachine`."""

from __future__ import annotations

import dataclasses
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from fleet_env import records
from fleet_env.errors import RecordError
from fleet_env.run_recorder import Recorder
from fleet_env.shaped import ShapedLink
from fleet_ros.alarm import Alarm
from fleet_ros.device import torch_device
from fleet_ros.exposure import require_key
from fleet_ros.managed import ManagedNode
from fleet_ros.parameters import declare
from fleet_ros.services import STEADY, close_parameters
from rclpy.parameter import Parameter
from rog_core.arrays import on_device, to_host
from rog_core.errors import ConfigError, RemoteProtocolError, shown
from rog_core.method_check import check_method, check_named
from rog_core.model.flat import flatten, rows_of, trainable
from rog_core.protocol.config import ServerConfig
from rog_core.protocol.messages import Action, Notice, RegisterResponse, Send, Stop
from rog_core.protocol.states import AWAY, EVALUATING, JOINING, PAUSED, STOPPED
from rog_core.server.machine import ServerMachine
from rog_msgs.msg import FleetStatus, TransferReceipt
from rog_msgs.srv import Register
from rog_ros import qos
from rog_ros.convert import request_from_ros, response_to_ros
from rog_ros.message_auth import (
    SealError,
    Session,
    Signature,
    check,
    derived,
    process_of,
    read_key,
    sealed,
)
from rog_ros.parameters import SERVER, ServerSettings, declare_robots, is_drivable, robot_name
from rog_ros.receive import checksum_of, receive
from rog_ros.servers import Others, gives_way, refusal
from rog_tasks.task import Task, load_task, measure, measure_clean, prepare

from . import checkpoint
from .control import Control
from .directory import claim, kept
from .peer import Peer
from .reports import Reports

if TYPE_CHECKING:
    from .parent_fleet import ParentFleet


# Maximum number of robots in a fleet that has neither a key nor a list of robots. The topics of
# each robot slow rclpy down, so strangers must not be able to add many robots.
OPEN = 32


class ParameterServerNode(ManagedNode):
    """Carries out the actions of the server machine; writes records and checkpoints.

    While the node is not active, it grants no iteration. Its statuses say so, and robots wait.
    """

    packages = ('rog_core', 'rog_tasks', 'rog_ros', 'rog_ps')
    error = ''              # why the node ended; empty: without error
    _had_run = False        # whether a new configuration continues from the node's own checkpoint

    def __init__(self, **options: Any) -> None:
        super().__init__('parameter_server', ServerSettings, namespace=f'/{SERVER}', **options)

    def is_drivable(self) -> bool:
        """Return whether anyone may change the node's lifecycle state; see `rog_ros.parameters`."""
        return is_drivable(self, ServerSettings)

    def configure(self) -> None:
        """Load the task, make the state machine and the topics; grant no iteration yet."""
        self.held.callback(self._forget)
        self.settings = settings = declare(self, ServerSettings)
        if self._had_run:
            self.settings = settings = settings.model_copy(update={'resume': True})
        # Check before the task is loaded, which takes seconds, and before anything is written.
        robots = declare_robots(self, settings.robots)
        self._links = {name: robot.link for name, robot in robots.items()}
        self._capacities = {name: robot.capacity for name, robot in robots.items()}
        training = settings.training
        security = settings.security
        require_key(security.key, security.open)
        self._key = read_key(security.key) if security.key else None
        self._signature = self._key and Signature(self._key)
        if self._key is not None or not security.control:
            close_parameters(self)
        check_method(settings, self._capacities)
        self.reason = 'finished'
        self._born = time.monotonic()
        self.out = Path(settings.out) if settings.out else None
        self._refuse_former_run()
        # `main` has checked this directory before the slow imports.
        self._checkpoints = self.out and kept(self.out)
        self._incomplete = False   # whether a part of the records could not be written
        self._unsaved = ''         # why the last checkpoint was not written; else empty
        self._peers: dict[str, Peer] = {}       # by name of the robot
        self._emulated: list[ShapedLink] = []   # emulated links of the peers
        self.dropped: Counter[str] = Counter()  # sender -> number of refused messages
        self._awake = time.monotonic()     # when this process last did something
        self._began: float | None = None   # when the first robot joined
        self._elapsed_before = 0.0         # seconds of training before the server's last restart
        self._finish_by = math.inf         # when to end without the robots' last evaluations
        self._away: set[str] = set()       # robots that are reported as away
        self._paused: set[str] = set()     # robots that have left the fleet for a pause
        self._paused_at = time.monotonic()    # when the run was paused; infinity: not paused
        self.task: Task = load_task(training.task, training.task_options, seed=settings.seed)
        self._base: np.ndarray | None = None  # ``base`` of a checkpoint, see `rog_core.upstream`
        self._above: ParentFleet | None = None  # connection to the parent fleet
        self.machine = self._build_machine()
        self.machine.paused = True
        # The method can come from a checkpoint, so copy it to the parameter.
        self.set_parameters([Parameter('sync', value=str(self.machine.method))])
        self._claim = claim(self.out, settings.resume, self.held)
        self._others = Others(self._signature, self._claim.run,
                              process_of(self.machine.incarnation))
        self._recorder = self._build_recorder()
        self._reports = Reports(self, self._claim, self._signature)
        self.create_subscription(FleetStatus, 'fleet_status', self._on_other, qos.STATUS)
        for robot in self._links:
            self._peer(robot)
        self.create_service(Register, 'register', self._on_register)
        Control(self, self._key)
        self._alarm = Alarm(self._on_time, self)
        self.held.callback(self._alarm.close)
        if settings.upstream.robot:
            # Import this only here, because it imports all modules of a robot's node.
            from .parent_fleet import ParentFleet
            self._above = ParentFleet(self, self._base,
                                      self._save_or_say if self.out else lambda: None)
            self.held.callback(self._above.close)
        self.create_timer(settings.heartbeat.period, self._heartbeat, clock=STEADY)
        if self.out is not None and settings.server.checkpoint_every:
            self.create_timer(settings.server.checkpoint_every, self._save_or_say, clock=STEADY)
        self._awake = time.monotonic()
        self._heartbeat()

    def activate(self) -> None:
        """Let the robots train. The time of a pause does not count as time of training."""
        now = time.monotonic()
        if self._began is not None:
            self._began += now - max(self._began, self._paused_at)
        self._paused_at = math.inf
        self.act(self.machine.resume(now))
        self._publish_status()

    def deactivate(self) -> None:
        """Stop granting iterations; raise `ConfigError` if the run is ending."""
        if self.machine.stopping:
            raise ConfigError('the run is ending')
        now = self._paused_at = time.monotonic()
        self.act(self.machine.pause(now))
        self._publish_status()

    def cleanup(self) -> None:
        """Write the last checkpoint and the records; robots will register with the next server."""
        self._write_outcome()
        self._had_run = self.out is not None

    def _forget(self) -> None:
        for name in ('machine', 'task', '_peers', '_emulated', '_recorder', '_writer', '_above',
                     '_base'):
            vars(self).pop(name, None)

    def shutdown(self) -> None:
        """End the run in an orderly way."""
        if self.configured:
            self.request_stop('shut down')
        else:
            super().shutdown()

    # -- building ---

    def _refuse_former_run(self) -> None:
        out = self.out
        if out is not None and not self.settings.resume and (out / records.RUN_FILE).exists():
            raise ConfigError(f'{out} already holds a run; choose another out directory, or go '
                              'on with it by resume')

    def _build_machine(self) -> ServerMachine:
        settings = self.settings
        training = settings.training
        model = self.task.model()
        partition = rows_of(trainable(model), training.granularity, training.codec)
        state = None
        if settings.resume and self._checkpoints and (found := self._checkpoints.newest()):
            for skipped in self._checkpoints.skipped:
                self.get_logger().warning(f'{skipped}; an older checkpoint is used')
            master, state, self._elapsed_before = checkpoint.read(found, partition)
            self.get_logger().info(f'going on from {found.path}, '
                                   f'iteration {state.iteration}, {state.sync}')
        else:
            self.get_logger().info(f'preparing the model of {training.task}')
            prepare(self.task, model)
            master = flatten(model)
        self._clean = self._before = math.nan
        if state is None:
            self._clean = measure_clean(self.task, model)
            self._before = measure(self.task, model)
            clean = '' if math.isnan(self._clean) else f'; before the shift {self._clean:.3f}'
            self.get_logger().info(f'accuracy at the start {self._before:.3f}{clean}')
        machine = ServerMachine(
            partition, on_device(master, str(torch_device(settings.server.device))),
            secrets.randbits(63), ServerConfig.of(settings, self._capacities))
        if state is not None:
            # The method of the checkpoint can differ from the method in the settings.
            check_named(state.sync, machine.aggregation.team)
            machine.load_state(state)
            self._base = state.base
        self._writer = checkpoint.Writer(partition, float(np.linalg.norm(master)))
        return machine

    def _build_recorder(self) -> Recorder | None:
        if self.out is None:
            return None
        damaged: list[RecordError] = []
        former = records.read_run(self.out, damaged) \
            if (self.out / records.RUN_FILE).exists() else []
        if damaged:
            self.get_logger().warning(f'{len(damaged)} lines of the record are damaged and left '
                                      f'out of the summary, the first: {shown(damaged[0])}')
        settings = self.settings
        training = settings.training
        start = records.Start(self._elapsed_before, '', training.task, training.sync, settings.seed,
                              settings.fleet, list(self._links),
                              time.strftime('%Y-%m-%dT%H:%M:%S%z'))
        recorder = Recorder(self.out, start, former)
        if not math.isnan(self._before):
            recorder.baseline(self._clean, self._before)
        return recorder

    def _peer(self, robot: str) -> Peer:
        if robot not in self._peers:
            link = self._links.get(robot)
            shaped = ShapedLink() if link is None else ShapedLink.from_config(
                link, self.settings.link_epoch)
            if not self.settings.link_epoch:
                shaped.hold()  # no delay until the training begins
                if self.elapsed:
                    shaped.begin(time.monotonic() - self.elapsed)
            self._peers[robot] = Peer(self, robot, shaped)
            if shaped.delays:
                self._emulated.append(shaped)
        return self._peers[robot]

    @property
    def elapsed(self) -> float:
        """Seconds of training, including the training before a restart of the server."""
        now = min(time.monotonic(), self._paused_at)
        return self._elapsed_before + (0.0 if self._began is None else max(now - self._began, 0.0))

    # -- events ---

    def _on_register(self, request: Any, response: Any) -> Any:
        now = time.monotonic()
        try:
            wanted = request_from_ros(request)
            robot_name(wanted.robot)
        except (RemoteProtocolError, ConfigError) as error:
            response.accepted, response.reason = False, shown(error)
            return response
        key = self._key and self._key.of(wanted.robot)
        if key is not None:
            try:
                check(derived(key.secret, 'ask'), request)
            except SealError as error:
                return self._refused_unproved(wanted.robot, error, response)
        refused = self._unlisted(wanted.robot) or (
            self._untimely(request, wanted.robot) if key else None)
        answer, actions = (refused, []) if refused else self.machine.on_register(wanted, now)
        if answer.accepted:
            peer = self._peer(wanted.robot)
            if key is not None:
                peer.lives.add(wanted.incarnation)
                if peer.session is None or peer.session.session != (
                        wanted.incarnation ^ answer.incarnation):
                    peer.session, peer.count = Session(
                        key, wanted.incarnation, answer.incarnation), 0
            if self._began is None:
                self._began = now
                for other in self._peers.values():
                    other.link.begin(now - self.elapsed)
            self.get_logger().info(f'{wanted.robot} joins at iteration {answer.iteration}')
            if wanted.robot in self._away:
                self._away.discard(wanted.robot)
                self._fault(wanted.robot, 'rejoined', f'at iteration {answer.iteration}')
            self.act(actions)
            self._publish_status()
        else:
            self._note_refusal(wanted.robot, answer.reason)
        return sealed(key and derived(key.secret, 'answer'), response_to_ros(answer, response),
                      bytes(request.tag))

    def _refused_unproved(self, robot: str, error: SealError, response: Any) -> Any:
        """Refuse a registration that is not proved with the key of its robot.

        The answer is not proved, either. A proved answer would name the tag of the request. A
        stranger could copy this tag from the request of an honest robot, and then pass the refusal
        on to this robot.
        """
        response.accepted = False
        response.reason = (f'the registration of {robot} is not proved: {error}. '
                           f'Give {robot} its key (rog key FILE --robot {robot})')
        self._note_refusal(robot, response.reason)
        return response

    def _note_refusal(self, robot: str, reason: str) -> None:
        # Use one counter for all robots that were never accepted, so that invented names take no
        # memory.
        self.dropped[robot if robot in self._peers else 'unknown robots'] += 1
        self.get_logger().warning(f'refused {robot}: {reason}', throttle_duration_sec=5.0)

    def _unlisted(self, robot: str) -> RegisterResponse | None:
        """Return the refusal if a robot of this name must not take part, else None."""
        if self._links and robot not in self._links:
            return RegisterResponse(False, f"'{robot}' is not in the fleet file; it lists "
                                    f"{', '.join(self._links)}")
        if not self._links and self._key is None and robot not in self._peers \
                and len(self._peers) >= OPEN:
            return RegisterResponse(False, f'a server that anybody may join must have at most '
                                    f'{OPEN} robots: list them in the fleet file, or give the '
                                    'fleet a key')
        return None

    def _untimely(self, request: Any, robot: str) -> RegisterResponse | None:
        """Return the refusal if a proved registration is out of date, else None.

        A registration is out of date if it is for another server process, or if another process of
        the robot has replaced the process that made the registration.
        """
        member = self.machine.members.get(robot)
        if request.server != process_of(self.machine.incarnation):
            return RegisterResponse(False, 'the registration is not for this server process', True,
                                    process_of(self.machine.incarnation))
        present = member is not None and member.incarnation == request.incarnation
        if not present and request.incarnation in self._peer(robot).lives:
            return RegisterResponse(False, f'this process of {robot} was replaced by another', True)
        return None

    def on_message(self, robot: str, message: Any) -> None:
        """Handle a message of a transfer."""
        keys, session = None, self._peers[robot].session
        clipped = self.machine.clipped[robot]
        if self._key is not None:
            if session is None:
                return
            keys = session.session, session.to_server
        member = self.machine.members.get(robot)
        sender = None if member is None else member.sender
        actions = receive(self.machine, message, self.get_logger(), robot, keys)
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
            self.get_logger().info(checksum_of(sender.transfer, member.mirror.rows))
        self.act(actions)

    def on_status(self, robot: str, message: Any) -> None:
        """Handle a status message of a robot.

        The status counts as a heartbeat, goes to the record, and may say that the robot pauses or
        stops.
        """
        now, member = time.monotonic(), self.machine.members.get(robot)
        if member is None or message.robot != robot or member.state == AWAY \
                or message.incarnation != process_of(member.incarnation):
            if robot in self._away:
                # The link is back: a new status tells the robot at once that it counts as away.
                self._publish_status()
            return  # the sender is another process with this name, or must register again
        try:
            self._peers[robot].check_status(message, member, self.machine.incarnation,
                                            self._key is not None)
        except RemoteProtocolError as error:
            if member.state == JOINING:
                return  # the robot has not heard yet that it was accepted
            self.dropped[robot] += 1
            self.get_logger().warning(f'dropped a status of {robot}: {error}',
                                      throttle_duration_sec=5.0)
            return
        if self._peers[robot].is_recorded(message, member):
            self._record(lambda recorder: recorder.status(self.elapsed, message))
        self._note_pause(robot, message.state == PAUSED)
        if message.state in (PAUSED, STOPPED):
            self.act(self.machine.on_leave(robot, member.incarnation, now))
        elif message.state == EVALUATING and not math.isinf(self._finish_by):
            self._await_final(now)
        else:
            if self._above is not None:
                self._above.note(robot, message.loss, message.accuracy)
            self.act(self.machine.on_heartbeat(robot, member.incarnation, now, message.loss,
                                                message.state))

    def _note_pause(self, robot: str, paused: bool) -> None:
        if paused == (robot in self._paused):
            return
        (self._paused.add if paused else self._paused.discard)(robot)
        self.get_logger().info(f'{robot} has paused; the others go on' if paused else
                               f'{robot} is back from its pause')

    def _on_other(self, message: Any) -> None:
        """Handle a status of a server in the same namespace, which can be this server itself."""
        others, mine = self._others, (self.elapsed, self._reports.count,
                                      process_of(self.machine.incarnation))
        if self.done:
            return
        others.refused = ''
        if not others.shows(message, time.time()):
            if others.refused:
                self.dropped['another server'] += 1
                self.get_logger().warning('dropped a status of another parameter server: '
                                          f'{others.refused}', throttle_duration_sec=5.0)
        elif gives_way(mine, message, time.monotonic() - self._born):
            self.error, self.done = refusal(message, self.get_namespace()), True
        else:
            self.get_logger().error(
                f'there is a second parameter server at {self.get_namespace()}: '
                f'{shown(message.host, 80)}; robots stay with the one that has accepted them',
                throttle_duration_sec=5.0)

    def _on_time(self) -> None:
        now = time.monotonic()
        self._excuse(now)
        for link in self._emulated:
            link.release(now)
        self.act(self.machine.on_time(now))

    def _excuse(self, now: float) -> None:
        """If this process was held up, do not count this time as silence of the robots.

        Their heartbeats have arrived, but are not read yet.
        """
        if now - self._awake > self.settings.heartbeat.period + self.settings.heartbeat.limit / 2:
            self.get_logger().warning(f'this process was held up for {now - self._awake:.1f} s')
            self.machine.on_held_up(now - self._awake, now)
        self._awake = now

    def _heartbeat(self) -> None:
        if self.settings.minutes and self.elapsed >= 60 * self.settings.minutes:
            self.request_stop('finished')
        self._excuse(time.monotonic())
        if self._all_final():
            self.finish()
        elif time.monotonic() >= self._finish_by:
            for robot in self._not_final():
                self.get_logger().warning(f'{robot} has not evaluated the final model in time; the '
                                          'summary has its accuracy of before')
                self._fault(robot, 'not_evaluated', 'the final model')
            self.finish()
        self._report_away()
        self._publish_status()
        self._diagnose()

    # -- actions ---

    def act(self, actions: list[Action]) -> None:
        """Carry out actions of the state machine."""
        now = time.monotonic()
        self._excuse(now)
        for action in actions:
            if isinstance(action, Send):
                self._peers[action.robot].send(action.message, now)
            elif isinstance(action, Notice):
                self.get_logger().warning(f'{action.robot} {action.what}: {action.detail}')
                self._fault(action.robot, action.what, action.detail)
                self._publish_status()
            elif isinstance(action, Stop):
                # The record ends with the last statuses of the robots, so wait for them.
                if math.isinf(self._finish_by) and (late := self._not_final()):
                    self.get_logger().info('waiting until the final model is evaluated by '
                                           f'{", ".join(sorted(late))}')
                self._await_final(now)
                if self._above is not None:
                    self._above.account()
        if self._above is not None:
            self._above.look()
        self._alarm.set(min([self.machine.deadline, *(link.deadline for link in self._emulated)]))

    def request_stop(self, reason: str) -> None:
        """End the run in an orderly way: send the final model to all robots, close the records."""
        if self.machine.stopping:
            return
        self.reason = reason
        self.get_logger().info(f'stopping: {reason}')
        self.act(self.machine.stop(time.monotonic()))
        self._publish_status()

    def interrupt(self) -> None:
        """End the run at the user's request; end at once if the run is ending already."""
        if not self.configured or self.machine.stopping:
            self.finish()
        else:
            self.request_stop('interrupted')

    def _await_final(self, now: float) -> None:
        """Wait for the robots' evaluations of the final model.

        Wait for at most two heartbeat limits from ``now``, and not longer than
        `Deadlines.stop_by`.
        """
        self._finish_by = min(now + 2 * self.settings.heartbeat.limit,
                              self.machine.deadlines.stop_by)

    def _all_final(self) -> bool:
        return not math.isinf(self._finish_by) and not self._not_final() \
            and not (self._above is not None and self._above.pushing)

    def _not_final(self) -> set[str]:
        """Return the present robots whose status `stopped` is not in the record yet."""
        if self._recorder is None:
            return set()
        present = {m.robot for m in self.machine.members.values() if m.state != AWAY}
        return present - self._paused - self._recorder.final_statuses()

    def finish(self) -> None:
        """End the run: write the last checkpoint and the summary."""
        if not self.done:
            self.done = True
            self._write_outcome()

    def _write_outcome(self) -> None:
        if not self.configured:
            return
        if self.out is not None:
            self._save_or_say()
        if self._recorder is not None:
            try:
                self._recorder.stop(self.elapsed, self.reason, self.machine.method.spec.text)
            except RecordError as error:
                self._incomplete = True
                self.get_logger().error(str(error))
            if self._incomplete or self._unsaved:
                self.error = self.error or f'{self.out} is not complete; see the errors in the log'
                self.get_logger().error(self.error)
            else:
                self.get_logger().info(f'wrote {self.out}')

    def _report_away(self) -> None:
        for member in self.machine.members.values():
            if member.state == AWAY and member.robot not in self._away:
                self._away.add(member.robot)
                self.get_logger().warning(f'{member.robot} is away: no heartbeat for '
                                          f'{self.settings.heartbeat.limit:g} s')
                self._fault(member.robot, 'peer_lost', 'no heartbeat; the others go on')

    def _fault(self, robot: str, what: str, detail: str) -> None:
        self._record(lambda recorder: recorder.fault(self.elapsed, robot, what, detail))

    def _record(self, write: Callable[[Recorder], None]) -> None:
        """Write to the records, if there are any. A full disk does not stop the training."""
        if self._recorder is None or self.done:
            return
        try:
            write(self._recorder)
        except RecordError as error:
            self._incomplete = True
            self.get_logger().error(str(error), throttle_duration_sec=5.0)

    # -- checkpoints ---

    def save(self, name: str = '') -> Path:
        """Write a checkpoint and return its path.

        :param name: name given by a user: the checkpoint then goes to a directory of its own and is
            not replaced by the run's checkpoints. Empty: a checkpoint of the run.
        """
        if self.out is None:
            raise checkpoint.CheckpointError('the server has no out directory')
        keep = self.settings.server.keep
        most = checkpoint.NAMED if self._key else checkpoint.OPEN
        store = kept(checkpoint.named(self.out, name, most) if name else self.out, keep)
        machine = self.machine
        state = machine.checkpoint()
        if self._above is not None:
            state = dataclasses.replace(state, base=to_host(self._above.base))
        return self._writer.write(store, to_host(machine.master), state, self.elapsed)

    def _save_or_say(self) -> None:
        """Write a checkpoint of the run; log a failure, and the first success after a failure."""
        try:
            self.save()
        except checkpoint.CheckpointError as error:
            self.get_logger().error(f'no checkpoint: {error}', throttle_duration_sec=5.0)
            if not self._unsaved:
                self._fault('', 'no_checkpoint', str(error))
            self._unsaved = str(error)
        else:
            if self._unsaved:
                self.get_logger().info('checkpoints are written again')
            self._unsaved = ''

    # -- status ---

    def _publish_status(self) -> None:
        self._reports.status(self.machine, self.elapsed, self.done, self._paused)

    def _diagnose(self) -> None:
        above = f'{self._above.name}: {self._above.state}' if self._above is not None else ''
        self._reports.diagnose(self.machine, self._unsaved, above, self.dropped,
                               {name: peer.base for name, peer in self._peers.items()})
