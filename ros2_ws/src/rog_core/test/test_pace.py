"""A robot that lies or delays can waste only a bounded share of the other robots' time.

The robot has a valid key. Most tests take over robot0 and send its messages. From then on, the link
of the fleet's own robot0 carries only heartbeats.
"""

import math
from functools import cache

import numpy as np
import pytest
from fleet import Fleet
from fleet_testing import mostly_long
from rog_core.codecs import encode_ids
from rog_core.errors import RemoteProtocolError
from rog_core.protocol.messages import Ack, Chunk, End, Kind, Receipt, TransferId
from rog_core.protocol.states import COUNTED, PULLING, RETIRED, TRAINING, WAITING
from rog_core.server.member import mta_time
from schedules import run_until

PATIENCE = 0.8


class Dawdler(Fleet):
    """A fleet of three fast robots; the test plays robot0.

    ``told``: all notices of the server.
    """

    def __init__(self, sync='bsp', patience=PATIENCE, **network):
        super().__init__(4, 3, sync, patience=patience, **network)
        self.told = []
        self.staleness.grants = self.staleness.pushes = lambda *_: None
        self.versions.applied = lambda *_: None
        for robot in self.robots.values():
            robot.compute_time = 0.1
        run_until(self, lambda: len(self.server.active()) == 3)
        self.run(2)

    def check_start(self, robot, iteration):
        """Check nothing, because the test invents the messages of robot0."""

    def notice(self, notice):
        self.told.append(notice)
        super().notice(notice)

    @property
    def member(self):
        return self.server.members['robot0']

    def take_over(self):
        """Wait until robot0 must push; from then on the test sends the messages of robot0."""
        run_until(self, lambda: self.member.state == TRAINING and self.member.push.state != 'open'
                  and self.robots['robot0'].machine.state == 'computing')
        self.robots['robot0'].compute_time = 1e9
        self.deaf_links.add('robot0')
        self.sequence = 0

    def following(self, kind=Kind.PUSH):
        push = self.member.push
        last = push.floor - 1 if push.transfer is None else push.transfer.attempt
        open_ = push.transfer is not None and push.state == 'open'
        return TransferId(push.incarnation, kind, self.member.granted,
                          last if open_ else max(push.floor, last + 1))

    def chunk(self, segments, sequence=None):
        """Return a chunk of robot0's push with these segments."""
        ids = np.array(segments, np.int64)
        values = self.robots['robot0'].store.encode(self.server.codec, ids)
        chunk = Chunk(self.following(), self.sequence if sequence is None else sequence,
                      self.server.codec.number, ids.size, encode_ids(ids), values)
        self.sequence = max(self.sequence, chunk.sequence + 1)
        return chunk

    def hear(self, message, name='robot0'):
        self.deliver_to_server(name, message)

    def finish_push(self):
        self.hear(End(self.following(), self.sequence, 0.1, 0.1))
        self.sequence = 0

    def others(self):
        return sum(robot.machine.iteration for name, robot in self.robots.items()
                   if name != 'robot0')


def test_a_trickle_of_rows_is_not_waited_for_and_named():
    fleet = Dawdler()
    fleet.take_over()
    began = fleet.now
    before = fleet.others()
    for segment in range(60):
        fleet.hear(fleet.chunk([segment]))
        fleet.run(PATIENCE / 2)  # less than the patience, so that each chunk arrives in time
    assert fleet.member.patience.place == RETIRED
    notice, = [n for n in fleet.told if n.robot == 'robot0']
    assert notice.what == 'retired' and f'of {fleet.partition.segments} rows' in notice.detail
    assert fleet.others() - before > (fleet.now - began) / 0.4, 'the others go on'


def test_who_sends_at_a_tenth_of_the_patience_is_waited_for():
    """Check that the server does not retire a slow robot whose push still makes progress.

    The push takes nine times the patience.
    """
    fleet = Dawdler()
    fleet.take_over()
    for segment in range(fleet.partition.segments):
        fleet.hear(fleet.chunk([segment]))
        fleet.run(9 * PATIENCE / fleet.partition.segments)
    assert fleet.member.patience.place == COUNTED and not fleet.told


def test_rows_under_new_numbers_count_once():
    fleet = Dawdler()
    fleet.take_over()
    fleet.hear(fleet.chunk([3, 4]))
    master = fleet.server.master.copy()
    for _ in range(8):
        fleet.hear(fleet.chunk([3]))
        # Segment 5 is new, but the server applies either all segments of a chunk or none.
        fleet.hear(fleet.chunk([4, 5]))
        fleet.run(PATIENCE / 4)
    assert (fleet.server.master[:fleet.partition.offsets[9]]
            == master[:fleet.partition.offsets[9]]).all() or fleet.others()
    assert fleet.member.patience.place == RETIRED
    fleet.finish_push()
    assert fleet.member.rows_pushed <= 2


@pytest.mark.parametrize('kind', [Chunk, End])
def test_a_push_has_no_more_chunks_than_its_rows_can_fill(kind):
    fleet = Dawdler()
    fleet.take_over()
    most = fleet.partition.segments
    # Send a chunk with the highest allowed number.
    fleet.server.on_chunk('robot0', fleet.chunk([1], sequence=most - 1), fleet.now)
    bad = fleet.chunk([2], sequence=most) if kind is Chunk else End(fleet.following(), most + 1)
    handle = fleet.server.on_chunk if kind is Chunk else fleet.server.on_end
    with pytest.raises(RemoteProtocolError, match=f'must .* {most}'):
        handle('robot0', bad, fleet.now)
    # The valid End still closes the push.
    fleet.server.on_end('robot0', End(fleet.following(), most), fleet.now)


def test_a_claimed_transmission_time_is_at_most_the_time_since_the_grant():
    """Check that a robot cannot claim a huge MTA time.

    The slowest robot sets the fleet's MTA time, so this claim would make all robots send all rows.
    """
    fleet = Dawdler('rsp:4')
    fleet.take_over()
    fleet.hear(fleet.chunk([1]))
    fleet.hear(End(fleet.following(), fleet.sequence, 1e300, 1e300))
    assert fleet.member.push_mta < 1.0


def test_a_receipt_before_the_minimum_has_arrived_measures_nothing():
    fleet = Dawdler('rsp:4')
    run_until(fleet, lambda: fleet.member.state == PULLING and fleet.member.sender._fresh
              and math.isinf(fleet.member.sender.mta_duration))
    fleet.deaf_links.add('robot0')
    sender = fleet.member.sender
    fleet.hear(Receipt(sender.transfer, sender._fresh, bytes((sender._fresh + 7) // 8)))
    assert math.isfinite(mta_time(list(fleet.server.members.values())))


def test_acknowledgements_of_a_pull_that_never_ends_are_a_trickle_too():
    fleet = Dawdler()
    run_until(fleet, lambda: fleet.member.state == WAITING)
    fleet.deaf_links.add('robot0')
    run_until(fleet, lambda: fleet.member.state == PULLING)
    before, began = fleet.others(), fleet.now
    for count in range(1, 60):
        sender = fleet.member.sender
        if sender is not None and count < sender.link.sent and fleet.now < began + 20:
            fleet.hear(Ack(count, 0, fleet.now, sender.transfer.incarnation))
        fleet.run(PATIENCE / 2)
    assert fleet.member.patience.place == RETIRED or not fleet.member.alive
    assert fleet.others() - before > (fleet.now - began) / 0.4


@cache
def speed_alone():
    """Return the other robots' iterations per second, measured over 30 s while robot0 is dead."""
    alone = Dawdler()
    alone.kill_robot('robot0')
    alone.run(3)
    before = alone.others()
    alone.run(30)
    return (alone.others() - before) / 30


def share_of_speed(fleet, seconds, behave):
    """Return the speed of the other robots while ``behave`` acts for robot0.

    The speed is relative to `speed_alone`.
    """
    before, began = fleet.others(), fleet.now
    while fleet.now < began + seconds:
        behave()
    return (fleet.others() - before) / ((fleet.now - began) * speed_alone())


def test_who_stops_again_and_again_costs_a_bounded_share_of_the_time():
    """Let robot0 repeatedly stop, be retired, complete its push and become active again."""
    fleet = Dawdler()
    fleet.take_over()

    def behave():
        fleet.run(PATIENCE * 1.2)
        if fleet.member.state == TRAINING:
            fleet.hear(fleet.chunk(range(fleet.partition.segments)))
            fleet.finish_push()
        sender = fleet.member.sender
        if sender is not None:
            fleet.run(0.05)
            taken = bytes([255] * ((sender._fresh + 7) // 8))
            fleet.hear(End(sender.transfer, 0)) if sender._fresh == 0 else fleet.hear(
                Receipt(sender.transfer, sender._fresh, taken))
    assert share_of_speed(fleet, 40, behave) > 0.6


def test_a_robot_that_is_starved_of_data_is_retired_after_the_patience_and_comes_back_at_once():
    fleet = Dawdler()
    robot = fleet.robots['robot0']
    robot.compute_time, robot.starved = 28.0, True
    run_until(fleet, lambda: fleet.member.patience.place == RETIRED)
    # A gradient counts as progress for ten times its usual time, or ten times the patience if that
    # is longer. Being starved never counts as progress.
    assert fleet.member.patience.cost < 2 * PATIENCE
    iteration = fleet.member.iteration
    fleet.run(15.0)
    assert (fleet.member.patience.place, fleet.member.iteration) == (RETIRED, iteration)
    assert not any(notice.what == 'out_of_step' for notice in fleet.told)
    robot.compute_time, robot.starved = 0.1, False
    run_until(fleet, lambda: fleet.member.iteration > iteration)
    fleet.run(2 * PATIENCE)
    assert fleet.member.patience.place == COUNTED


def test_a_robot_whose_gradients_take_far_too_long_costs_a_bounded_share_of_the_time():
    fleet = Dawdler()
    fleet.robots['robot0'].compute_time = 20.0
    fleet.run(1.0)
    assert share_of_speed(fleet, 75, lambda: fleet.run(1.0)) > 0.6


def test_who_registers_again_and_again_costs_a_bounded_share_of_the_time():
    fleet = Dawdler()
    robot = fleet.robots['robot0']

    def behave():
        fleet.run(0.9 * PATIENCE)
        if robot.machine.state in ('computing', 'pushing'):
            for _ in range(2):  # the second status that does not list a robot makes it register
                fleet.act('robot0', robot.machine.on_server_status(0, False, fleet.now), robot)
    robot.compute_time = 2.0
    assert share_of_speed(fleet, 30, behave) > 0.6


@pytest.mark.parametrize('away', mostly_long([1.3, 2.5], 1.3))
def test_who_is_silent_again_and_again_costs_a_bounded_share_of_the_time(away):
    """Repeat: robot0 is away, registers again, gets an iteration, and falls silent."""
    fleet = Dawdler(heartbeat_limit=PATIENCE)

    def behave():
        fleet.dead_links.add('robot0')
        fleet.run(away * PATIENCE)
        fleet.dead_links.clear()
        run_until(fleet, lambda: fleet.member.state == TRAINING
                  or fleet.member.patience.place == RETIRED)
        fleet.run(0.3 * PATIENCE)
    assert share_of_speed(fleet, 40, behave) > 0.82
    assert any(notice.what == 'retired' for notice in fleet.told), 'it is named'
    run_until(fleet, lambda: fleet.member.patience.place == COUNTED)
    iteration = fleet.member.iteration
    fleet.run(3.0)
    assert fleet.member.patience.place == COUNTED and fleet.member.iteration > iteration
