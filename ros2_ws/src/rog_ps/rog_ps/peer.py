"""The server's side of each robot: what it says to it, and the check of its statuses."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fleet_env.emulated.shaped import ShapedLink
from fleet_link.seal import Session
from fleet_ros.channel import Channel
from fleet_ros.sealing import seal, unseal
from rog_core.errors import RemoteProtocolError
from rog_core.protocol.states import EVALUATING, PAUSED, STARVED, STOPPED, WORKER
from rog_core.server.member import Member
from rog_msgs.msg import Heartbeat
from rog_ros.heartbeat import beats_after

if TYPE_CHECKING:
    from fleet_env.settings.fleet import LinkConfig


class Peer:
    """What the server says to one robot, and which of the robot's statuses count.

    :param base: beginning of the names of the robot's topics.
    :param publish: publishes a heartbeat for the robot.
    """

    def __init__(self, base: str, channel: Channel, publish: Callable[[Heartbeat], None]) -> None:
        self.base, self.channel, self._publish = base, channel, publish
        # None: the fleet has no key, or the robot has not registered yet.
        self.session: Session | None = None
        self.count = 0             # serial number of the robot's last status in this session
        # session and serial number of the robot's last heartbeat
        self._beat: tuple[Session | None, int] = (None, 0)
        self._beats = 0            # number of heartbeats sent to the robot
        self._spoke = -math.inf    # time at which the robot was sent anything
        self._noted = 0, 0         # `iteration` and `evaluated_at` of the last recorded status
        self._changes = [0, 0]     # how often each field of `_noted` has changed

    def join(self, session: Session) -> None:
        """Begin a session with the robot, unless it is the present one."""
        if self.session is None or self.session.number != session.number:
            self.session, self.count = session, 0
            self.channel.keep(session.to_robot, session.to_server, session.number)

    def send(self, value: Any, now: float) -> None:
        """Send a message over the emulated link; at the latest `Channel.flush` publishes it."""
        self._spoke = now
        self.channel.send(value, now, lossy=True)
        if self.channel.is_full:
            self.channel.flush()

    def beat(self, server: int, said: float, limit: float) -> None:
        """Send a heartbeat if the robot may take the server for dead.

        :param server: public number of the server's process.
        :param said: time of the last fleet status.
        :param limit: the heartbeat limit in seconds.
        """
        now = time.monotonic()
        if not beats_after(now - max(said, self._spoke), limit):
            return
        self._spoke = now
        self._beats += 1
        self._publish(seal(self.session.to_robot if self.session else None, Heartbeat(
            incarnation=server, count=self._beats, loss=math.nan)))

    def is_recorded(self, message: Any, member: Member) -> bool:
        """Return whether to write a checked status to the record.

        A robot finishes at most one iteration, and evaluates at most once, for each pull.
        Statuses that report more iterations or evaluations are not from the robot. If they were
        recorded, they would fill the disk.
        """
        changed = [now != then for now, then in zip(
            (message.iteration, message.evaluated_at), self._noted, strict=True)]
        if message.state != STOPPED and any(
                new and count > member.attempt
                for new, count in zip(changed, self._changes, strict=True)):
            return False
        self._noted = message.iteration, message.evaluated_at
        self._changes = [count + new for count, new in zip(self._changes, changed, strict=True)]
        return True

    def check_heartbeat(self, message: Any, keyed: bool) -> None:
        """Raise `RemoteProtocolError` for a heartbeat that cannot be from the robot.

        :param keyed: whether the fleet has a key.
        """
        of, last = self._beat
        self._check(message, last if of is self.session else 0, keyed)
        self._beat = self.session, message.count
        if message.state in (PAUSED, STOPPED):  # only a status proves that the robot leaves
            raise RemoteProtocolError(f"it says that the robot is '{message.state}'")

    def _check(self, message: Any, last: int, keyed: bool) -> None:
        if keyed:
            if self.session is None:
                raise RemoteProtocolError('it has not registered')
            unseal(self.session.to_server, message)
            if message.count <= last:
                raise RemoteProtocolError('it comes a second time')
        if message.state not in (STARVED, EVALUATING, *WORKER.rows):
            raise RemoteProtocolError(f"it says that the robot is '{message.state}'")

    def check_status(self, message: Any, member: Member, server: int, keyed: bool) -> None:
        """Raise `RemoteProtocolError` or `SealError` for a status that cannot be from this member.

        :param server: incarnation of the server's state machine.
        :param keyed: whether the fleet has a key.
        """
        self._check(message, self.count, keyed)
        if keyed:
            self.count = message.count
        if message.iteration > member.granted > 0:  # false iterations would fill the record
            raise RemoteProtocolError(f'it must have finished at most iteration {member.granted}, '
                                      f'which was granted, got {message.iteration}')
        # A status with the state PAUSED or STOPPED takes the robot out of the fleet. So it must
        # carry the session, which is secret. Anyone can read and repeat the other fields of a
        # status.
        if message.state in (PAUSED, STOPPED) and message.session != member.incarnation ^ server:
            raise RemoteProtocolError('it says that the robot stops, but not its secret session')


class Peers(dict[str, Peer]):
    """Robot -> peer, for each robot that is listed or has registered.

    :param make: makes the peer of a robot, and its topics, with this emulated link.
    :param links: link of each robot that the fleet file lists.
    :param epoch: time on the monotonic clock at which the emulated links began. 0: the
        links begin with the call of `begin`, and delay nothing before that call.
    :param elapsed: returns the seconds of training until now.
    """

    def __init__(self, make: Callable[[str, ShapedLink], Peer], links: Mapping[str, LinkConfig],
                 epoch: float, elapsed: Callable[[], float]) -> None:
        super().__init__()
        self._make, self._links, self._epoch, self._elapsed = make, links, epoch, elapsed
        self._emulated: list[Channel] = []
        for robot in links:
            self.of(robot)

    def of(self, robot: str) -> Peer:
        """Return the peer of a robot; the first call makes it."""
        if robot not in self:
            link = self._links.get(robot)
            shaped = ShapedLink() if link is None else ShapedLink.from_config(link, self._epoch)
            if not self._epoch:
                shaped.hold()
                if elapsed := self._elapsed():
                    shaped.begin(time.monotonic() - elapsed)
            self[robot] = self._make(robot, shaped)
            if shaped.delays:
                self._emulated.append(self[robot].channel)
        return self[robot]

    def begin(self, epoch: float) -> None:
        """Let the emulated links begin at ``epoch``."""
        for peer in self.values():
            peer.channel.link.begin(epoch)

    def release(self, now: float) -> None:
        """Send the messages whose delay on the emulated links has ended by ``now``."""
        for channel in self._emulated:
            channel.release(now)
            channel.flush()

    @property
    def deadline(self) -> float:
        """Time of the next `release`; infinity means: there is nothing to send."""
        return min((channel.deadline for channel in self._emulated), default=math.inf)
