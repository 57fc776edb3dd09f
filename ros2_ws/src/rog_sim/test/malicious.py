"""A task of which one robot of the fleet makes the others' model worse, for the tests."""

from virtual_fleet import Linear


class Blown(Linear):
    """The gradients of the first robot are 100 times what they should be."""

    factor = 100.0

    def batches(self, rank, world):
        for batch in super().batches(rank, world):
            yield *batch, self.factor if rank == 0 else 1.0

    def loss(self, model, batch):
        inputs, outputs, factor = (*batch, 1.0)[:3]
        return factor * super().loss(model, (inputs, outputs))


class Negated(Blown):
    """They point the other way."""

    factor = -1.0


class Reversed(Blown):
    """Both."""

    factor = -100.0
