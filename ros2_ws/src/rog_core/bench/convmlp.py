"""Parameter shapes of ConvMLP-M, the model of the published ROG runs, as pairs (name, shape).

The shapes follow the architecture of SHI-Labs/Convolutional-MLPs: blocks 3-6-3, widths 128-256-512,
MLP ratio 3, 64 channels, 3 convolution blocks. With 100 classes, the model has 226 tensors,
33,307 rows and 16.95 M elements.
"""

from __future__ import annotations

Shape = tuple[str, tuple[int, ...]]

CHANNELS, CONV_BLOCKS, RATIO = 64, 3, 3
BLOCKS, WIDTHS = (3, 6, 3), (128, 256, 512)


def _affine(name: str, width: int) -> list[Shape]:
    return [(f'{name}.weight', (width,)), (f'{name}.bias', (width,))]


def _linear(name: str, inputs: int, outputs: int) -> list[Shape]:
    return [(f'{name}.weight', (outputs, inputs)), (f'{name}.bias', (outputs,))]


def _tokenizer() -> list[Shape]:
    half = CHANNELS // 2
    shapes: list[Shape] = []
    for index, (inputs, outputs) in enumerate([(3, half), (half, half), (half, CHANNELS)]):
        shapes.append((f'tokenizer.block.{3 * index}.weight', (outputs, inputs, 3, 3)))
        shapes += _affine(f'tokenizer.block.{3 * index + 1}', outputs)
    return shapes


def _conv_stage() -> list[Shape]:
    shapes: list[Shape] = []
    for block in range(CONV_BLOCKS):
        layers = [(CHANNELS, WIDTHS[0], 1), (WIDTHS[0], WIDTHS[0], 3), (WIDTHS[0], CHANNELS, 1)]
        for index, (inputs, outputs, kernel) in enumerate(layers):
            name = f'conv_stages.conv_blocks.{block}'
            shapes.append((f'{name}.{3 * index}.weight', (outputs, inputs, kernel, kernel)))
            shapes += _affine(f'{name}.{3 * index + 1}', outputs)
    return [*shapes, ('conv_stages.downsample.weight', (WIDTHS[0], CHANNELS, 3, 3)),
            ('conv_stages.downsample.bias', (WIDTHS[0],))]


def _mlp_block(name: str, width: int) -> list[Shape]:
    hidden = RATIO * width
    return [
        *_affine(f'{name}.norm1', width),
        *_linear(f'{name}.channel_mlp1.fc1', width, hidden),
        *_linear(f'{name}.channel_mlp1.fc2', hidden, width),
        *_affine(f'{name}.norm2', width),
        (f'{name}.connect.weight', (width, 1, 3, 3)),
        *_affine(f'{name}.connect_norm', width),
        *_linear(f'{name}.channel_mlp2.fc1', width, hidden),
        *_linear(f'{name}.channel_mlp2.fc2', hidden, width)]


def convmlp_m(classes: int = 100) -> list[Shape]:
    """Return the (name, shape) of each parameter, in model order."""
    shapes = [*_tokenizer(), *_conv_stage()]
    for stage, (blocks, width) in enumerate(zip(BLOCKS, WIDTHS, strict=True)):
        for block in range(blocks):
            shapes += _mlp_block(f'stages.{stage}.blocks.{block}', width)
        if stage + 1 < len(WIDTHS):
            name = f'stages.{stage}.downsample_mlp.downsample'
            shapes += [(f'{name}.weight', (WIDTHS[stage + 1], width, 3, 3)),
                       (f'{name}.bias', (WIDTHS[stage + 1],))]
    return [*shapes, *_affine('norm', WIDTHS[-1]), *_linear('head', WIDTHS[-1], classes)]
