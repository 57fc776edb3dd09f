"""A codec of your own: float16, two bytes per element, which is half of what `raw` sends.

Try it in virtual time:

    rog sim examples/my_fleet.yaml --set training.codec=own_codec:Half --sync rsp:20+pipeline
"""

import numpy as np
from rog_core.codecs import LENGTH, OWN, Codec

MOST = 65504  # the largest float16; the rest of a larger value is sent later


class Half(Codec):
    """Encodes each element as float16, rounded to the nearest."""

    number = 64             # identifies the codec in messages; your codecs may use 64 to 255
    segment_elements = 512  # cut longer rows, so that each encoded part fits into a datagram
    scales = 0              # number of bfloat16 scales at the start of each encoded segment
    # error text for data that breaks rule `OWN`, which `_look` checks
    faults = ('chunk holds a value that is NaN or infinite',)

    def sizes(self, lengths):
        """Return each encoded segment's size in bytes; ``lengths``: elements of each segment."""
        return 2 * lengths

    def _encode_dense(self, dense, lengths, magnitude):
        """Encode ``dense``, which contains the segments one after another; return uint8."""
        return dense.clip(-MOST, MOST).astype('<f2').view(np.uint8)

    def _decode_dense(self, lengths, data):
        """Return the values in ``data``, float32, one segment after another."""
        return data.view('<f2').astype(np.float32)

    def _look(self, lengths, ids, data):
        """Check ``data``; return (rule, segment, sum of squares).

        rule: number of the broken rule; 0 if ``data`` is valid. segment: position in ``ids`` of
        the bad segment; this codec does not search for it and always returns 0.
        """
        if data.size != self.sizes(lengths[ids]).sum():
            return LENGTH, 0, 0.0
        energy = float(np.square(data.view('<f2'), dtype=np.float64).sum())
        return 0 if np.isfinite(energy) else OWN, 0, energy

    def scaled(self, partition, ids, data, factor):
        """Return the encoding of the values of ``data`` times ``factor``, 0 to 1."""
        return (data.view('<f2') * np.float32(factor)).astype('<f2').view(np.uint8)
