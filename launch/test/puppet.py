"""A robot that runs inside the process of a test.

It trains like other robots, and also sends false messages.
"""

import math
import time
from dataclasses import replace

import numpy as np
from fleet_link.seal import Caller, Session
from fleet_ros.channel import Channel
from fleet_ros.sealing import ServiceClient, seal
from fleet_under_test import SEED
from rog_core.model.flat import flatten, partition_of_model
from rog_core.protocol.config import SgdConfig, TransferConfig
from rog_core.protocol.messages import (
    Ack,
    Chunk,
    Compute,
    End,
    Kind,
    Receipt,
    RegisterRequest,
    Send,
    TransferId,
)
from rog_core.worker.accumulator import Accumulator
from rog_core.worker.worker import Worker
from rog_msgs.msg import RowAck, RowChunk, TrainingStatus, TransferEnd, TransferReceipt
from rog_msgs.srv import Register
from rog_ros import qos
from rog_ros.convert import request_to_ros, response_from_ros
from rog_ros.signature import process_of
from rog_ros.transfers import WORKER, receive
from tiny_task import Tiny

PERIOD = 0.2  # seconds between heartbeats of the robot
PACE = 0.05   # seconds that a gradient takes


def partition():
    """Return the rows of the model that a `Fleet` trains."""
    return partition_of_model(Tiny(seed=SEED).model(), 'row', 'onebit')


class Puppet:
    """Takes part in a fleet as ``robot``; has a key if the fleet has one.

    ``lie``: a function that gets each value that the robot is about to send, and returns a
    list of false values. The robot sends the false values first, with valid tags.
    ``status``: false values for fields of the robot's statuses.
    """

    def __init__(self, fleet, robot='robot1', key=None, incarnation=77):
        self.fleet, self.robot, self.key = fleet, robot, key
        node = fleet.node
        # chunks so small that a push consists of several chunks
        config = TransferConfig('row', 'onebit', 300)
        self.machine = Worker(robot, incarnation, Accumulator(
            partition(), flatten(Tiny(seed=SEED).model()).copy()), config)
        self.session, self.count = None, 0
        self.lie, self.status, self.heard = (lambda value: []), {}, []
        self.refused = []  # answers in which the server refuses a registration
        self.registers = True
        self._gradient_at = self._beat_at = math.inf
        self._status_seen = None
        self.channel = Channel(node, WORKER, f'/{robot}/', self._on_message, lambda error: None,
                               keyed=key is not None)
        self.channel.listen()
        self._status = node.create_publisher(TrainingStatus, f'/{robot}/training_status',
                                             qos.STATUS)
        self._register = ServiceClient(node, Register, '/rog/register', key and Caller(
            key.secret, robot, incarnation), node.get_logger().warning)
        fleet.until(lambda: fleet.status and self._register.service_is_ready(), 'the server')
        self.act(self.machine.start(time.monotonic()))
        self._beat_at = 0.0

    # -- what the robot does

    def step(self):
        """Do the robot's work that is due.

        Return False, so that a condition can call this method: ``step() or condition()``.
        """
        now = time.monotonic()
        if self.registers and now >= self.machine.deadline:
            self.act(self.machine.on_time(now))
        if now >= self._gradient_at:
            self._gradient_at = math.inf
            rng = np.random.default_rng(self.machine.iteration)
            gradient = rng.standard_normal(self.machine.partition.elements).astype(np.float32)
            self.act(self.machine.on_gradient(
                gradient, SgdConfig(1e-4, 0.0, 0.0, False), now))
        if now >= self._beat_at:
            self._beat_at = now + PERIOD
            self.beat()
        status = self.fleet.status
        if status is not self._status_seen:
            self._status_seen = status
            ours = status.incarnation == process_of(self.machine.server)
            known = self.fleet.state(self.robot) not in ('', 'away', 'paused', 'stopped')
            self.act(self.machine.on_server_status(
                self.machine.server if ours else 0, known, now))
        return False

    def until(self, condition, what):
        """Let the robot work until ``condition`` returns true."""
        self.fleet.until(lambda: self.step() or condition(), what)

    def trained(self, iterations=5):
        """Let the robot work until it has completed ``iterations`` more iterations."""
        goal = self.machine.iteration + iterations
        self.until(lambda: self.machine.iteration >= goal, f'{self.robot} gets to {goal}')

    def act(self, actions):
        """Carry out the ``actions`` that the worker's state machine has returned."""
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, RegisterRequest):
                self._ask(action.message)
            elif isinstance(action, Send):
                for value in self.lie(action.message):
                    self.say(self._numbered(value))
                self.say(action.message)
            elif isinstance(action, Compute):
                self._gradient_at = time.monotonic() + PACE

    def _numbered(self, value):
        """Give a false chunk a packet number of its own; with a key, each number is taken once."""
        if not isinstance(value, Chunk):
            return value
        link = self.machine.link
        link.sent += 1
        return replace(value, packet=link.sent - 1)

    def say(self, value):
        """Send a ROS message, or an object of `rog_core.protocol.messages` as a ROS message."""
        if not hasattr(value, 'get_fields_and_field_types'):
            self.channel.send(value, time.monotonic())
            self.channel.flush()
            return
        out = self.channel.publishers
        publisher = {RowChunk: out[Chunk], RowAck: out[Ack], TransferEnd: out[End],
                     TransferReceipt: out[Receipt], TrainingStatus: self._status}[type(value)]
        publisher.publish(seal(self.session and self.session.to_server, value))

    def beat(self, **fields):
        """Send a status."""
        self.count += 1
        machine = self.machine
        values = {'robot': self.robot, 'incarnation': process_of(machine.incarnation),
                  'count': self.count, 'state': machine.state, 'iteration': machine.finished,
                  'loss': 1.0, **self.status, **fields}
        self.say(TrainingStatus(**values))

    def following(self, kind=Kind.PUSH, iteration=None, ahead=1):
        """Return the identity of a transfer that the robot may begin later.

        By default this is the next transfer. ``ahead``: 1 for the next transfer, 2 for the transfer
        after that.
        """
        machine = self.machine
        return TransferId(machine.session, kind,
                          machine.iteration if iteration is None else iteration,
                          machine.attempt + ahead)

    @property
    def chunks(self):
        """Return how many chunks of the robot's present push have been sent; 0 without a push."""
        return 0 if self.machine.push is None else self.machine.push._fresh

    # -- what the robot receives

    def _ask(self, request):
        self._register.call_async(request_to_ros(request)).add_done_callback(self._on_answer)

    def _on_answer(self, future):
        response = response_from_ros(future.result())
        if not response.accepted:
            self.refused.append(response)
            return
        if self.key is not None:
            session = Session(self.key.secret, self.machine.incarnation, response.incarnation)
            if self.session is None or self.session.number != session.number:
                self.session = session
                self.channel.keep(session.to_server, session.to_robot, session.number)
        self.act(self.machine.on_register_response(response, time.monotonic()))

    def _on_message(self, message):
        self.heard.append(message)
        del self.heard[:-200]
        self.act(receive(self.machine, message, self.fleet.node.get_logger(), 'the server') or [])
