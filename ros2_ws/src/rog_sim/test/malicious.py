"""Tasks in which one robot of the fleet makes the model worse."""

from virtual_fleet import Linear


class Blown(Linear):
    """A task in which the gradients of the first robot are 100 times too large."""

    factor = 100.0

    def batches(self, rank, world):
        for batch in super().batches(rank, world):
            yield *batch, self.factor if rank == 0 else 1.0

    def loss(self, model, batch):
        inputs, outputs, factor = (*batch, 1.0)[:3]
        return factor * super().loss(model, (inputs, outputs))


class Negated(Blown):
    """A task in which the gradients of the first robot point in the opposite direction."""

    factor = -1.0


class Reversed(Blown):
    """A task in which the gradients of the first robot are 100 times too large and reversed."""

    factor = -100.0
