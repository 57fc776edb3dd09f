"""Published models whose traffic a small model can imitate."""

from __future__ import annotations

from dataclasses import dataclass

from rog_core.codecs import get_codec
from rog_core.errors import ConfigError
from rog_core.model.partition import RowPartition


@dataclass(frozen=True)
class PublishedModel:
    """``rows`` by the published row rule; ``push_bytes``: one whole push in one-bit code, B."""

    rows: int
    push_bytes: int


# ConvMLP-M, 16.95 M elements: 2,118,750 bytes of bits and the least metadata that the authors'
# artifact ever needed for a push (facts.md).
MODELS = {'convmlp-m': PublishedModel(33307, 2123965)}


def traffic_factor(name: str, partition: RowPartition) -> float:
    """Return the bytes on the air for each byte of the small model's rows; 1 without a name.

    The factor is the ratio of the models' sizes. It does not depend on the codec, so a smaller code
    also uses less air time. Raises `ConfigError` for an unknown model.
    """
    if not name:
        return 1.0
    if name not in MODELS:
        raise ConfigError(f"training.traffic is '{name}'; the published models are "
                          f"{', '.join(MODELS)}")
    own = int(get_codec('onebit').sizes(partition.lengths).sum()) + partition.segments
    return MODELS[name].push_bytes / own
