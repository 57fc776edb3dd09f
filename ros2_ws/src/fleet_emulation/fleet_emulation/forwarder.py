"""The process that carries frames between robots and access point over emulated links.

    python -m fleet_emulation.forwarder FLEET_FILE EVERY READY SPACES FD FD ...

READY and each FD are file descriptors. The process writes one byte to READY when it can carry
frames. SPACES are the inode numbers of the namespaces, separated by commas. There are two FD for
each robot, in the order of the fleet file. The first FD is the robot's TAP device. The second FD is
the TAP device that is the robot's port of the bridge.

Each line of standard input is an order in JSON. An object with ``robot`` and the fields of
`fleet_emulation.radio.Conditions` changes the link of this robot. The text ``"begin"`` starts the
traces.

Every EVERY seconds, this process writes the counters to standard output as a line of JSON.
Standard input ends when the launcher closes it or has ended. Then the other processes in the
namespaces have `ORPHANS` seconds to end. After this time, this process kills those that are left,
and ends itself. Without this, stopped processes would remain, because they cannot notice the end
of their launcher.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fleet_env.links.trace import LinkTrace
from fleet_env.settings.fleet import FleetConfig
from fleet_env.settings.fleet_file import link_trace, load_fleet

from .radio import Conditions, Radio

UNLIMITED = 1000.0  # rate in Mbit/s of a link that has neither a trace nor a rate
BEGIN = 'begin'     # the order that starts the traces
ORPHANS = 8.0       # seconds for which processes may continue after their launcher has ended
BURST = 64          # maximum number of frames read from one device before the next device is read
_FRAME = 65536
_GONE = (errno.EAGAIN, errno.ENOBUFS, errno.EIO)  # the device is down, or its queue is full


def traces_of(fleet: FleetConfig) -> dict[str, LinkTrace]:
    """Return the trace of each robot's link, according to the fleet file."""
    links = {robot.name: robot.link for robot in fleet.robots}
    return {name: link_trace(link) if link.trace or link.rate else LinkTrace([0.0], [UNLIMITED])
            for name, link in links.items()}


def radio_of(fleet: FleetConfig) -> Radio:
    """Return the radio whose links follow the fleet file."""
    return Radio(traces_of(fleet),
                 {robot.name: Conditions(delay=robot.link.latency) for robot in fleet.robots},
                 fleet.channel.shared, fleet.seed)


class Forwarder:
    """Moves frames between the TAP devices and the radio.

    ``devices``: maps (robot, whether uplink) to the file descriptor of a device. The device
    supplies the frames of this direction, and receives the frames of the opposite direction.
    """

    def __init__(self, radio: Radio, devices: dict[tuple[str, bool], int]) -> None:
        self.radio = radio
        self._from = {fd: flow for flow, fd in devices.items()}
        self._to = {(robot, not uplink): fd for (robot, uplink), fd in devices.items()}
        self._orders = b''
        self.late = 0.0     # longest time, in seconds, by which a frame was sent too late
        self.dropped = 0    # number of frames lost because a device was full or down

    def run(self, every: float) -> None:
        """Forward frames until standard input ends."""
        start = time.monotonic()
        due = start + every
        while True:
            now = time.monotonic()
            self._deliver(now)
            if now >= due:
                self._report(start, now)
                due = max(due + every, now)
            wait = max(min(self.radio.deadline, due) - time.monotonic(), 0.0)
            for fd in select.select([0, *self._from], [], [], wait)[0]:
                if fd == 0:
                    if not self._obey(os.read(0, _FRAME)):
                        self._report(start, time.monotonic())
                        return
                else:
                    self._take(fd)

    def _take(self, fd: int) -> None:
        robot, uplink = self._from[fd]
        with suppress(BlockingIOError):
            for _ in range(BURST):
                self.radio.take(robot, uplink, os.read(fd, _FRAME), time.monotonic())

    def _deliver(self, now: float) -> None:
        if self.radio.deadline <= now:
            self.late = max(self.late, now - self.radio.deadline)
        for robot, uplink, frame in self.radio.release(now):
            self.dropped += not _written(self._to[robot, uplink], frame)

    def _obey(self, data: bytes) -> bool:
        *lines, self._orders = (self._orders + data).split(b'\n')
        for line in lines:
            order: Any = json.loads(line)
            if order == BEGIN:
                self.radio.begin(time.monotonic())
                continue
            robot = order.pop('robot')
            self.radio.conditions[robot] = Conditions(**order)
        return bool(data)

    def _report(self, start: float, now: float) -> None:
        print(json.dumps({'t': round(now - start, 4), 'late': round(self.late, 4),
                          'dropped': self.dropped, 'robots': self.radio.report(now)}), flush=True)


def processes_in(spaces: Collection[int]) -> list[int]:
    """Return the ids of all processes, except this one, in namespaces with these inode numbers."""
    found = []
    for process in Path('/proc').glob('[0-9]*'):
        with suppress(OSError):
            if process.name != str(os.getpid()) \
                    and os.stat(process / 'ns/net').st_ino in spaces:
                found.append(int(process.name))
    return found


def end_processes_in(spaces: Collection[int], patience: float = 0.0) -> None:
    """Kill the processes that still run in the namespaces after ``patience`` seconds.

    :param spaces: inode numbers of network namespaces.
    """
    until = time.monotonic() + patience
    while (found := processes_in(spaces)) and time.monotonic() < until:
        time.sleep(0.1)
    for process in found:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _written(fd: int, frame: bytes) -> bool:
    """Write a frame to a device; return False if the device is full or down."""
    try:
        os.write(fd, frame)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return False
    return True


def take_precedence() -> None:
    """Give this process a higher priority than the processes that use the radio.

    So frames are not late. If the user has no right to raise the priority, it does not change.
    """
    with suppress(OSError):
        if os.sched_getscheduler(0) not in (os.SCHED_FIFO, os.SCHED_RR):
            os.setpriority(os.PRIO_PROCESS, 0, -20)
            return
        # Here this process and the others have the same real-time priority, with which a nice value
        # has no effect.
        priority = os.sched_getparam(0).sched_priority
        os.sched_setparam(0, os.sched_param(priority + 1))


def main(arguments: Sequence[str]) -> int:
    """Carry frames until standard input ends, then end the processes in the namespaces."""
    fleet = load_fleet(arguments[0])
    spaces = {int(text) for text in arguments[3].split(',')}
    ready, fds = int(arguments[2]), [int(text) for text in arguments[4:]]
    names = [robot.name for robot in fleet.robots]
    devices = {(name, uplink): fds[2 * index + (not uplink)]
               for index, name in enumerate(names) for uplink in (True, False)}
    take_precedence()
    forwarder = Forwarder(radio_of(fleet), devices)
    os.write(ready, b'.')
    os.close(ready)
    forwarder.run(float(arguments[1]))
    end_processes_in(spaces, ORPHANS)
    return 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
