"""Programs for the devices of fake.py: random programs and fixed programs."""

import random
from dataclasses import dataclass

import numpy as np

OPS = ('add', 'mul', 'weight', 'buffer', 'view_write', 'track', 'track_named', 'row', 'sum',
       'split', 'cat', 'noise', 'item', 'nonzero', 'state', 'put', 'own_write', 'zeros', 'size',
       'varying')


class Stopped(Exception):
    """Raised when the program stops in the middle of a pass."""


@dataclass(frozen=True)
class Pass:
    """The properties of one pass: its model, its number of rows, and its exceptional operations."""

    model: int = 0
    rows: int = 2
    # index of an operation; before this operation, the pass raises an error
    stop: int | None = None
    # Index of an operation; before this operation, the pass calls an extra operation.
    extra: int | None = None
    keep: int | None = None      # index of an operation; the next pass uses its result


class Program:
    """A random program: its models use weights, a state, and buffers that are written in place."""

    def __init__(self, seed, models, length, prefetch=False):
        chance = random.Random(seed)
        self.models = [[(chance.choice(OPS), chance.randrange(1 << 16)) for _ in range(length)]
                       for _ in range(models)]
        # In half of the programs, all models begin with the same operations.
        if chance.random() < 0.5:
            for model in self.models[1:]:
                model[:length // 2] = self.models[0][:length // 2]
        self.prefetch = prefetch

    def run(self, device, schedule):
        """Run one pass for each item of `schedule`; return the values that the program prints."""
        self.weights = [device.put(np.full((1, 4), k + 2)) for k in range(4)]
        self.buffers = [device.put(np.full((3, 4), k)) for k in range(2)]
        self.state = device.put(np.zeros((1, 1), np.int64))
        self.kept = None
        printed = []
        ahead = self.input(device, schedule[0], 0) if self.prefetch else None
        for number, turn in enumerate(schedule):
            if self.prefetch:
                following = schedule[(number + 1) % len(schedule)]
                x, ahead = ahead, self.input(device, following, number + 1)
            else:
                x = self.input(device, turn, number)
            try:
                self.one(device, turn, x, printed)
            except Stopped:
                printed.append('stopped')
        return printed + [device.get(b).tolist() for b in (*self.buffers, self.state)]

    @staticmethod
    def input(device, turn, number):
        return device.put(np.arange(turn.rows * 4).reshape(turn.rows, 4) + 5 * number)

    def one(self, device, turn, x, printed):
        values = [x]
        kept = self.kept
        for position, (op, choice) in enumerate(self.models[turn.model]):
            if position == turn.stop:
                raise Stopped
            if position == turn.extra:
                values.append(device.mul(values[-1], 11))
            if kept is not None and position == 1:
                values.append(device.add(values[-1], device.sum(kept)))
                self.kept = kept = None
            values.append(self.operate(device, op, choice, values, printed))
            if position == turn.keep:
                self.kept = values[-1]
            del values[:-3]
        printed.append(device.get(values[-1]).tolist())
        if len(self.models[turn.model]) % 2:
            printed.append(device.get(values[0]).tolist())

    def operate(self, device, op, choice, values, printed):
        x = values[choice % len(values)]
        buffer = self.buffers[choice % 2]
        if op == 'add':
            return device.add(x, device.sum(values[-1]))
        if op == 'mul':
            return device.mul(x, choice % 5)
        if op == 'weight':
            return device.add(device.sum(x), self.weights[choice % 4])
        if op == 'buffer':
            device.add_(buffer, device.sum(x))
        elif op == 'view_write':
            device.add_(device.row(buffer, choice % 3), device.sum(x))
        elif op == 'track':
            return device.track(x, buffer)
        elif op == 'track_named':
            return device.track(x, total=buffer)
        elif op == 'row':
            return device.row(x, 0)
        elif op == 'sum':
            return device.sum(device.add(buffer, self.state))
        elif op == 'split':
            return device.split(x)[choice % 2 * 2]
        elif op == 'cat':
            return device.cat((values[-1], values[-1]))
        elif op == 'noise':
            return device.noise(device.sum(x))
        elif op == 'item':
            printed.append(device.item(x))
        elif op == 'nonzero':
            return device.add(device.sum(device.nonzero(x)), self.weights[0])
        elif op == 'state':
            self.state = device.sum(device.add(self.state, device.sum(x)))
        elif op == 'put':
            return device.add(device.sum(x), device.put(np.full((1, 4), choice)))
        elif op == 'varying':
            return device.add(device.sum(x), device.sum(device.put(
                np.arange(1 + device.item(x) % 5))))
        elif op == 'own_write':
            own = device.mul(x, 1)
            device.add_(own, device.sum(buffer))
            return own
        elif op == 'zeros':
            return device.add(device.sum(x), device.zeros((x.meta.shape[0], 4)))
        elif op == 'size':
            rows, columns = x.meta.shape
            flat = device.view(device.mul(x, 1), (rows * columns,))
            return device.add(device.sum(x), device.view(flat, (rows, columns)))
        return x
