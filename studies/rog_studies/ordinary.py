"""Ordinary models, as users bring them, each as a task of its own that trains in a minute or two.

The tasks derive from nothing of this suite: what a reader of docs/start/your_model.md would write.
The networks of torchvision are as torchvision makes them. All data are real and need no download:
the handwritten digits of scikit-learn, and the text of this repository's license. Unlike in other
tasks, nearly half of the digits are test data, so that one image is an eighth of a point.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from fleet_env.vision import import_torchvision
from rog_tasks.data import digits
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, interpolate
from typing_extensions import override

TRAINED = 1000    # digits for training; the other 797 are for testing
Batch = tuple[Tensor, Tensor]


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """Return all images (1797, 8, 8), 0 to 1, and their labels, in an order of their own."""
    data = digits()
    images = torch.cat((data.train_images, data.test_images))[:, 0]
    labels = torch.cat((data.train_labels, data.test_labels))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    return images[order], labels[order]


def _coloured(size: int) -> Tensor:
    """Return the digits as images of three equal channels, ``size`` x ``size`` pixels."""
    large = interpolate(_digits()[0][:, None], size=(size, size), mode='bilinear')
    return (2 * large - 1).expand(-1, 3, -1, -1)


class Ordinary:
    """What the tasks share: robot ``rank`` trains on the samples rank, rank + world, ...

    A subclass sets ``inputs`` and ``labels``, of which the first ``trained`` are for training, and
    has a method `network`.
    """

    batch_size = 16
    inputs: Tensor
    labels: Tensor
    trained = TRAINED

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def network(self) -> nn.Module:
        """Return a new model; its random numbers come from PyTorch's generator."""
        raise NotImplementedError

    def model(self) -> nn.Module:
        """Return a new model, with equal weights on all machines."""
        torch.manual_seed(self.seed)
        return self.network()

    def batches(self, rank: int, world: int) -> Iterator[Batch]:
        """Yield batches of this robot's samples without end, each pass in a new order."""
        mine = torch.arange(rank, self.trained, world)
        dice = torch.Generator().manual_seed(1000 * self.seed + rank)
        waiting = mine[:0]
        while True:
            while len(waiting) < self.batch_size:
                waiting = torch.cat((waiting, mine[torch.randperm(len(mine), generator=dice)]))
            chosen, waiting = waiting[:self.batch_size], waiting[self.batch_size:]
            yield self.inputs[chosen], self.labels[chosen]

    def shard(self, rank: int, world: int) -> Iterator[Batch]:
        """Yield this robot's samples once."""
        for chosen in torch.arange(rank, self.trained, world).split(self.batch_size):
            yield self.inputs[chosen], self.labels[chosen]

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of a batch."""
        inputs, labels = batch
        return cross_entropy(model(inputs), labels)

    def tested(self) -> Iterator[Batch]:
        """Yield the test data once."""
        yield from zip(self.inputs[self.trained:].split(100), self.labels[self.trained:].split(100),
                       strict=True)

    def evaluate(self, model: nn.Module) -> float:
        """Return the share of the test samples that the model knows, 0 to 1."""
        right = [model(inputs).argmax(1) == labels for inputs, labels in self.tested()]
        return torch.cat(right).float().mean().item()


class Torchvision(Ordinary):
    """A network of torchvision, untrained, on the digits as colour images of 32 x 32.

    :param name: torchvision's name of the network.
    :param statistics: whether batch normalisation keeps running statistics; false: it has no
        buffers, and everything else is equal, which shows what the buffers cost.
    """

    def __init__(self, name: str = 'mobilenet_v3_small', statistics: bool = True, seed: int = 0
                 ) -> None:
        super().__init__(seed)
        self.name, self.statistics = name, statistics
        self.inputs, self.labels = _coloured(32), _digits()[1]

    def network(self) -> nn.Module:
        """Return the network with ten classes."""
        found = import_torchvision().models.get_model(self.name, weights=None, num_classes=10)
        if not self.statistics:
            for module in found.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.track_running_stats = False
                    module.running_mean = module.running_var = module.num_batches_tracked = None
        return found


class ViT(Ordinary):
    """Torchvision's vision transformer, tiny: three layers of width 64, patches of 8 x 8 pixels."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.inputs, self.labels = _coloured(32), _digits()[1]

    def network(self) -> nn.Module:
        """Return the transformer with ten classes."""
        return import_torchvision().models.VisionTransformer(
            image_size=32, patch_size=8, num_layers=3, num_heads=4, hidden_dim=64, mlp_dim=128,
            num_classes=10)


class _Rows(nn.Module):
    """Reads an image as a sequence of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    @override
    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.lstm(images)[0][:, -1])


class LSTM(Ordinary):
    """An LSTM that reads the digits row by row."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.inputs, self.labels = _digits()

    def network(self) -> nn.Module:
        """Return the LSTM."""
        return _Rows()


class Words(Ordinary):
    """An embedding with sparse gradients: a digit is a bag of 64 words "pixel k is this grey"."""

    GREYS = 17

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        images, self.labels = _digits()
        greys = (16 * images.flatten(1)).round().long()
        self.inputs = greys + self.GREYS * torch.arange(64)

    def network(self) -> nn.Module:
        """Return an embedding of 1088 words, the mean of a bag, and two layers."""
        return nn.Sequential(nn.EmbeddingBag(64 * self.GREYS, 32, mode='mean', sparse=True),
                             nn.LayerNorm(32), nn.Linear(32, 10))


class LoRALinear(nn.Module):
    """A frozen linear layer, and a trained product of two small matrices beside it (LoRA)."""

    def __init__(self, base: nn.Linear, rank: int = 4, alpha: float = 8.0) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(rank))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.scale * (x @ self.lora_A.T @ self.lora_B.T)


class _Block(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    @override
    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        many, long, width = y.shape
        q, k, v = (part(y).view(many, long, self.heads, -1).transpose(1, 2)
                   for part in (self.query, self.key, self.value))
        seen = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(seen.transpose(1, 2).reshape(many, long, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class _Transformer(nn.Module):
    """A transformer whose tokens are the rows of an image."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.inlet = nn.Linear(8, width)
        self.place = nn.Parameter(torch.randn(8, width) / 10)
        self.blocks = nn.Sequential(_Block(width), _Block(width))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    @override
    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.inlet(images) + self.place)).mean(1))


@cache
def _pretrained(seed: int) -> _Transformer:
    """Return a transformer that knows upright digits, the same on every machine with one thread."""
    torch.manual_seed(seed)
    model, (images, labels) = _Transformer(), _digits()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    dice = torch.Generator().manual_seed(seed)
    for _ in range(150):
        chosen = torch.randint(TRAINED, (32,), generator=dice)
        optimizer.zero_grad()
        cross_entropy(model(images[chosen]), labels[chosen]).backward()
        optimizer.step()
    return model.requires_grad_(False)


class LoRA(Ordinary):
    """A frozen transformer that knows upright digits learns digits that lie on their side."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        images, self.labels = _digits()
        self.inputs = images.transpose(1, 2)

    def network(self) -> nn.Module:
        """Return the frozen transformer with LoRA in its blocks, and a trained head."""
        model = copy.deepcopy(_pretrained(self.seed))
        torch.manual_seed(self.seed)
        for block in model.blocks:
            for name in ('query', 'value', 'up', 'down'):
                setattr(block, name, LoRALinear(getattr(block, name)))
        model.head.requires_grad_(True)
        return model


class _Characters(nn.Module):
    """Predicts the next character; the output layer has the weights of the embedding."""

    def __init__(self, characters: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.out = nn.Linear(width, characters)
        self.out.weight = self.embedding.weight

    @override
    def forward(self, text: Tensor) -> Tensor:
        return self.out(self.gru(self.embedding(text))[0])


class TiedLanguage(Ordinary):
    """A language model of characters with tied weights, on the text of the license.

    Its metric is the share of the characters of the last fifth of the text that it predicts.
    """

    LENGTH = 32

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        text = ' '.join((Path(__file__).parents[1] / 'LICENSE').read_text().lower().split())
        self.alphabet = sorted(set(text))
        numbers = torch.tensor([self.alphabet.index(letter) for letter in text])
        pieces = numbers[:len(numbers) // self.LENGTH * self.LENGTH + 1]
        # Each starting place in the first four fifths is a sample; the last fifth is divided.
        count = 4 * len(pieces) // 5
        tested = pieces[count:].unfold(0, self.LENGTH + 1, self.LENGTH)
        windows = torch.cat((pieces[:count].unfold(0, self.LENGTH + 1, 1), tested))
        self.trained = len(windows) - len(tested)
        self.inputs, self.labels = windows[:, :-1], windows[:, 1:]

    def network(self) -> nn.Module:
        """Return the language model."""
        return _Characters(len(self.alphabet))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the mean loss of all characters of a batch."""
        inputs, labels = batch
        return cross_entropy(model(inputs).flatten(0, 1), labels.flatten())

    def evaluate(self, model: nn.Module) -> float:
        """Return the share of the characters of the test text that the model predicts."""
        right = [model(inputs).argmax(2) == labels for inputs, labels in self.tested()]
        return torch.cat(right).float().mean().item()


def _conv(inside: int, outside: int, size: int = 1, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, size, stride, size // 2, bias=False),
                         nn.BatchNorm2d(outside), nn.SiLU())


class _C3(nn.Module):
    """Two paths of half the channels, one with a bottleneck, as in YOLOv5."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.left, self.right = _conv(width, width // 2), _conv(width, width // 2)
        self.bottleneck = nn.Sequential(_conv(width // 2, width // 2),
                                        _conv(width // 2, width // 2, 3))
        self.join = _conv(width, width)

    @override
    def forward(self, x: Tensor) -> Tensor:
        left = self.left(x)
        return self.join(torch.cat((left + self.bottleneck(left), self.right(x)), 1))


class _SPPF(nn.Module):
    """Pools of growing size, one after another, as in YOLOv5."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inlet, self.outlet = _conv(width, width // 2), _conv(2 * width, width)
        self.pool = nn.MaxPool2d(3, 1, 1)

    @override
    def forward(self, x: Tensor) -> Tensor:
        parts = [self.inlet(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.outlet(torch.cat(parts, 1))


class Yolo(Ordinary):
    """A detector like YOLO finds digits on a canvas of 48 x 48 pixels.

    Each canvas has one or two digits of 12 to 20 pixels. A cell of the grid of 6 x 6 predicts
    whether it holds the centre of a digit, the box, and the class. The metric is the F1 score: a
    box is right if its class is, and if it overlaps the true box by half (IoU).
    """

    GRID, CELL = 6, 8
    CANVASES, TESTED = 2000, 400

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.inputs, self.labels = _canvases(self.CANVASES, self.TESTED)
        self.trained = self.CANVASES

    def network(self) -> nn.Module:
        """Return a backbone with strides of 8, and a head of 1 + 4 + 10 outputs per cell."""
        return nn.Sequential(_conv(1, 16, 3, 2), _conv(16, 32, 3, 2), _C3(32), _conv(32, 64, 3, 2),
                             _C3(64), _SPPF(64), nn.Conv2d(64, 15, 1))

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the loss of objectness, boxes and classes."""
        inputs, labels = batch
        found = model(inputs).permute(0, 2, 3, 1)
        there = labels[..., 0] == 1
        ours, theirs = found[there], labels[there]
        return 5 * binary_cross_entropy_with_logits(found[..., 0], labels[..., 0]) \
            + 5 * (ours[:, 1:5].sigmoid() - theirs[:, 1:5]).abs().mean() \
            + cross_entropy(ours[:, 5:], theirs[:, 5].long())

    def evaluate(self, model: nn.Module) -> float:
        """Return the F1 score on the test canvases."""
        right = said = true = 0
        for inputs, labels in self.tested():
            found = model(inputs).permute(0, 2, 3, 1)
            says, there = found[..., 0] > 0, labels[..., 0] == 1
            both = says & there
            ours, theirs = found[both], labels[both]
            good = (ours[:, 5:].argmax(1) == theirs[:, 5].long()) \
                & (_overlap(ours[:, 1:5].sigmoid(), theirs[:, 1:5], self.CELL) >= .5)
            right += int(good.sum())
            said += int(says.sum())
            true += int(there.sum())
        return 2 * right / (said + true)


def _overlap(ours: Tensor, theirs: Tensor, cell: int) -> Tensor:
    """Return the IoU of boxes with centres in one cell.

    A box is x and y of the centre in the cell, 0 to 1, and width and height in shares of 24 pixels.
    """
    def corners(box: Tensor) -> tuple[Tensor, Tensor]:
        middle, half = cell * box[:, :2], 12 * box[:, 2:]
        return middle - half, middle + half

    (low, high), (lower, higher) = corners(ours), corners(theirs)
    both = (torch.minimum(high, higher) - torch.maximum(low, lower)).clamp(min=0).prod(1)
    return both / ((high - low).prod(1) + (higher - lower).prod(1) - both)


@cache
def _canvases(trained: int, tested: int) -> Batch:
    """Return canvases and, for every cell: object or not, x, y, width, height, class."""
    dice = torch.Generator().manual_seed(2)
    images, labels = _digits()
    canvases = torch.zeros(trained + tested, 1, 48, 48)
    cells = torch.zeros(trained + tested, 6, 6, 6)

    def drawn(low: int, high: int) -> int:
        return int(torch.randint(low, high + 1, (), generator=dice))

    for number, (canvas, cell) in enumerate(zip(canvases, cells, strict=True)):
        bounds = (0, TRAINED - 1) if number < trained else (TRAINED, len(images) - 1)
        # A second digit, if there is one, stands in the other half.
        for half in range(drawn(1, 2)):
            which, size = drawn(*bounds), drawn(12, 20)
            x, y = 24 * half + drawn(0, 24 - size), drawn(0, 48 - size)
            canvas[0, y:y + size, x:x + size] = interpolate(
                images[which][None, None], size=(size, size), mode='bilinear')[0, 0]
            middle_x, middle_y = (x + size / 2) / 8, (y + size / 2) / 8
            cell[int(middle_y), int(middle_x)] = torch.tensor(
                [1, middle_x % 1, middle_y % 1, size / 24, size / 24, float(labels[which])])
    return canvases, cells


TASKS: dict[str, tuple[type[Ordinary], dict[str, Any]]] = {
    'mobilenet_v3_small': (Torchvision, {'name': 'mobilenet_v3_small'}),
    'resnet18': (Torchvision, {'name': 'resnet18'}),
    'yolo': (Yolo, {}), 'vit': (ViT, {}), 'lstm': (LSTM, {}), 'lora': (LoRA, {}),
    'embedding': (Words, {}), 'tied': (TiedLanguage, {})}
