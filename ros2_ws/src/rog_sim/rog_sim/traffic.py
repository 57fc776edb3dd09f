"""Published models whose traffic a small model can imitate (setting `training.traffic`)."""

from __future__ import annotations

from dataclasses import dataclass

from rog_core.codecs import get_codec
from rog_core.errors import ConfigError
from rog_core.model.partition import RowPartition


@dataclass(frozen=True)
class PublishedModel:
    """Size of a published model.

    ``rows``: number of rows into which `rog_core.model.partition` divides the model.
    ``push_bytes``: bytes of a push of all rows with one bit per element.
    """

    rows: int
    push_bytes: int


# ConvMLP-M has 16.95 million elements. A push with one bit per element has 2,123,965 bytes:
# 2,118,750 bytes for the elements, and 5,215 bytes of metadata. A push of the authors' artifact
# needed at least this much metadata.
MODELS = {'convmlp-m': PublishedModel(33307, 2123965)}


def traffic_factor(name: str, partition: RowPartition) -> float:
    """Return the factor that converts bytes of the small model's rows to bytes on the air.

    The factor is the bytes of a push of the published model divided by the bytes of a push of the
    small model, both with one bit per element. It does not depend on the fleet's codec, so a codec
    with fewer bytes also uses less air time.

    :param name: name of the published model; if empty, the factor is 1.
    :param partition: rows of the small model.
    :raises ConfigError: the published model is unknown.
    """
    if not name:
        return 1.0
    if name not in MODELS:
        raise ConfigError(f"training.traffic is '{name}'; the published models are "
                          f"{', '.join(MODELS)}")
    own = int(get_codec('onebit').sizes(partition.lengths).sum()) + partition.segments
    return MODELS[name].push_bytes / own
