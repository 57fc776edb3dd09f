"""Published models that a small model may stand for on the air."""

from __future__ import annotations

from dataclasses import dataclass

from rog_core.codecs import get_codec
from rog_core.errors import ConfigError
from rog_core.partition import RowPartition


@dataclass(frozen=True)
class PublishedModel:
    """``rows`` by the published row rule; ``push_bytes``: one whole push in one-bit code, B."""

    rows: int
    push_bytes: int


# ConvMLP-M, 16.95 M elements: 2,118,750 bytes of bits and the least metadata that the authors'
# artifact ever needed for a push (facts.md).
MODELS = {'convmlp-m': PublishedModel(33307, 2123965)}


def traffic_factor(name: str, partition: RowPartition) -> float:
    """Bytes on the air for each byte that the small model's rows take; 1 without a name.

    It makes the small model as large as the published one, so it does not depend on the codec of a
    run: what takes less room in another code takes less on the air, too. Raises `ConfigError` for a
    model that is not known.
    """
    if not name:
        return 1.0
    if name not in MODELS:
        raise ConfigError(f"training.traffic is '{name}'; the published models are "
                          f"{', '.join(MODELS)}")
    own = int(get_codec('onebit').sizes(partition.lengths).sum()) + partition.segments
    return MODELS[name].push_bytes / own
