"""Run one scripted scenario in virtual time, and with the nodes over real DDS.

Each decision of a state machine is recorded when it is made. Durations differ between the two
ways to run, so the script fixes everything that depends on durations. The nodes finish their
gradients one after another, in the same order as in virtual time. The next gradient is
finished only when the previous one has no more effects. Links lose nothing. The method
changes, and the run ends, after given numbers of completed pushes.
"""

import threading
import time
from contextlib import contextmanager

import numpy as np
from fleet_testing import LIMIT, eventually
from rclpy.parameter import Parameter
from rog_core.protocol.messages import Receipt, Send
from rog_core.protocol.states import STOPPED, TRAINING, WAITING
from rog_ps.node import ParameterServerNode
from rog_ros.parameters import server_parameters, worker_parameters
from rog_sim.simulation import Simulation
from rog_worker.node import WorkerNode
from rog_worker.training import Training
from spun_nodes import SpunNodes

AT_REST = {('computing', TRAINING), (WAITING, WAITING), (STOPPED, STOPPED)}
OF_WORKER = ('start', 'on_register_response', 'on_server_status', 'on_gradient', 'on_ack',
             'on_receipt', 'on_chunk', 'on_end', 'on_time')
OF_SERVER = ('on_register', 'on_ack', 'on_receipt', 'on_chunk', 'on_end', 'on_time')


class Protocol:
    """The decisions of the state machines of one fleet.

    ``decided``: name of a robot, or `server` -> the decisions of its state machine, in order.
    ``turns``: robots in the order in which their gradients were finished. ``script``:
    number of completed pushes -> a function that changes the server at this moment. Its
    arguments are the server's state machine and the time; it returns actions.
    """

    def __init__(self, script):
        self.script, self.turns = dict(script), []
        self.decided: dict[str, list] = {'server': []}
        self.machines: dict = {}
        self.server = None
        self._pushes: set = set()
        self._transfers: set = set()
        self._deciding: list = []

    def watch_server(self, machine):
        self.server = machine
        for name in OF_SERVER:
            self._wrap(machine, name, self._after_server)

    def watch_worker(self, machine):
        self.machines[machine.robot] = machine
        self.decided[machine.robot] = []
        for name in OF_WORKER:
            self._wrap(machine, name, self._after_worker)

    def at_rest(self):
        """Return whether no transfer runs and each state machine computes, waits or has stopped."""
        members = self.server.members
        return all(name in members and members[name].sender is None
                   and (machine.state, members[name].state) in AT_REST
                   for name, machine in self.machines.items())

    def weights(self):
        known = {name: m.accumulator.weights.copy() for name, m in self.machines.items()}
        return {**known, 'server': self.server.master.copy()}

    def _wrap(self, machine, name, note):
        decide = getattr(machine, name)

        def method(*arguments, **options):
            if machine in self._deciding:  # an inner call: the outer call records the decision
                return decide(*arguments, **options)
            self._deciding.append(machine)
            try:
                return noted(*arguments, **options)
            finally:
                self._deciding.remove(machine)

        def noted(*arguments, **options):
            former = getattr(machine, 'push', None), getattr(machine, 'command', None)
            if name == 'on_gradient' and machine.state != STOPPED:
                assert self.at_rest(), 'the scenario leaves the outcome to chance'
                self.turns.append(machine.robot)
            result = decide(*arguments, **options)
            if isinstance(result, tuple):  # `on_register` returns the answer and the actions
                return result[0], [*result[1], *note(machine, name, former, result[1])]
            return [*result, *note(machine, name, former, result)]

        setattr(machine, name, method)

    def _after_worker(self, machine, name, former, actions):
        log, (push, command) = self.decided[machine.robot], former
        if name == 'on_receipt' and machine.push is not push:
            # the same receipt may have let the worker handle the end of the next pull, too
            taken = np.flatnonzero(push.partition.rows_complete(push.taken()))
            log.append(('taken', push.transfer.iteration, taken.tolist()))
        if machine.push is not None and machine.push is not push:
            log.append(('push', machine.iteration, *rows_of(machine.push)))
        if machine.command is not command:
            told = machine.command
            log.append(('told', told.next_iteration, told.staleness, told.sync,
                        machine.last_pulled_rows))
        log.extend((type(action).__name__, *vars(action).values()) for action in actions
                   if not isinstance(action, Send))
        return []

    def _after_server(self, machine, name, former, actions):
        self._note_transfers(machine)
        for action in actions:
            message = action.message if isinstance(action, Send) else None
            if isinstance(message, Receipt) and message.transfer not in self._pushes:
                self._pushes.add(message.transfer)
                if len(self._pushes) in self.script:
                    more = self.script[len(self._pushes)](machine, time.monotonic())
                    self._note_transfers(machine)
                    return more
        return []

    def _note_transfers(self, machine):
        for robot, member in machine.members.items():
            sender = member.sender
            if sender is not None and (robot, sender.transfer.attempt) not in self._transfers:
                self._transfers.add((robot, sender.transfer.attempt))
                told = sender.command
                # The first transfer to each robot gets its own list of decisions: the robots join
                # at the same time in virtual time, but one after another over DDS.
                who = 'server' if sender.transfer.iteration else f'server, {robot} joins'
                self.decided.setdefault(who, []).append(
                    (robot, sender.transfer.kind.name, sender.transfer.iteration,
                     told.next_iteration, told.staleness, told.sync, told.stop, *rows_of(sender)))


def rows_of(sender):
    """Return two lists of windows of rows in a transfer: the mandatory windows and the others."""
    windows = [ids.tolist() for ids in sender.plan.windows]
    return windows[:sender.plan.mandatory], windows[sender.plan.mandatory:]


def in_virtual_time(fleet, script):
    """Run the scenario in virtual time; return its `Protocol` with the final weights."""
    simulation = Simulation(fleet)
    protocol = Protocol(script)
    protocol.watch_server(simulation.server)
    for robot in simulation.robots.values():
        protocol.watch_worker(robot.machine)
    simulation.run(lambda done: None)
    return protocol


def over_dds(fleet, script, turns, patient):
    """Run the scenario with the nodes over real DDS.

    :param turns: order in which the robots finish their gradients.
    :param patient: function that sets long time limits; it is called when all robots have joined.
    """
    with _nodes(fleet, script) as (protocol, workers, spin_until):
        stop, errors = threading.Event(), []

        def compute(worker):
            try:
                Training(worker.settings).run(worker, stop)
            except Exception as error:
                errors.append(error)

        threads = []
        try:
            # the robots join in the same order as in virtual time
            for rank, worker in enumerate(workers):
                worker.gate = threading.Semaphore(0)
                threads.append(threading.Thread(target=compute, args=[worker], daemon=True))
                threads[-1].start()
                spin_until(lambda n=rank: len(protocol.machines) > n and protocol.at_rest(),
                           f'{worker.robot} joins', errors)
            patient()
            for number, robot in enumerate(turns):
                workers[fleet.rank(robot)].gate.release()
                spin_until(lambda n=number: len(protocol.turns) > n and protocol.at_rest(),
                           f'turn {number}, of {robot}, is over', errors)
            for worker in workers:
                # The run may have ended while a worker computed its next gradient. This worker
                # still waits for its semaphore `gate`.
                worker.gate.release()
            spin_until(lambda: not any(thread.is_alive() for thread in threads),
                       'all threads end', errors)
        finally:
            stop.set()
            for worker in workers:
                worker.leave()
                worker.gate.release(len(turns))
            for thread in threads:
                thread.join(LIMIT)
        assert not errors, errors
        return protocol


class _Watched(WorkerNode):
    """A worker whose gradient is finished only when the test releases its gate."""

    protocol: Protocol
    gate: threading.Semaphore

    def exchange(self, gradient, sgd):
        if not self.gate.acquire(timeout=LIMIT):
            raise TimeoutError(f'{self.robot} was not let go on for {LIMIT} s')
        return super().exchange(gradient, sgd)

    def join(self, machine):
        self.protocol.watch_worker(machine)
        return super().join(machine)


@contextmanager
def _nodes(fleet, script):
    protocol, workers = Protocol(script), []
    with SpunNodes() as nodes:
        def made(cls, parameters, **options):
            overrides = [Parameter(name, value=value) for name, value in parameters.items()]
            return nodes.add(cls(context=nodes.context, parameter_overrides=overrides, **options))

        def spin_until(condition, what, errors):
            def step():
                assert not errors, errors
                nodes.spin()
            eventually(condition, lambda: f'{what}\n{protocol.decided}', step)

        server = made(ParameterServerNode, server_parameters(fleet, '') | {'minutes': 0.0})
        protocol.watch_server(server.machine)
        for robot in fleet.robots:
            workers.append(made(_Watched, worker_parameters(fleet, robot) | {'pace': 0.0},
                                namespace=robot.name))
            workers[-1].protocol = protocol
        yield protocol, workers, spin_until
