"""Reference codecs, which process one element at a time."""

import numpy as np


def rounded(scale):
    """Round a float32 to bfloat16; return its bytes, and its value as a float32."""
    code = (int(np.float32(scale).view(np.uint32)) + 0x8000) >> 16
    return code.to_bytes(2, 'little'), np.uint32(code << 16).view(np.float32)


def ternary_reference(row):
    """Return the encoded bytes and the decoded values of one segment, by codec ternary."""
    chosen, decoded = [], np.zeros_like(row)
    for start in range(0, row.size, 64):
        block = [abs(float(v)) for v in row[start:start + 64]]
        chosen.append((start, block.index(max(block))) if max(block) > 0 else None)
    sent = [abs(float(row[sum(at)])) for at in chosen if at]
    out, scale = rounded(sum(sent) / max(len(sent), 1))
    for at in chosen:
        negative = bool(at) and bool(np.signbit(row[sum(at)]))
        out += bytes([0x80 | negative << 6 | at[1] if at else 0])
        if at:
            decoded[sum(at)] = -scale if negative else scale
    return out, decoded


def sparse_reference(row, sparsity):
    """Return the encoded bytes and the decoded values of one segment, by the sparse ternary codec.
    """
    count = max(round(sparsity * row.size), 1)
    largest = sorted(range(row.size), key=lambda k: (-abs(float(row[k])), k))[:count]
    chosen, decoded = sorted(k for k in largest if row[k] != 0), np.zeros_like(row)
    out, scale = rounded(sum(abs(float(row[k])) for k in chosen) / max(len(chosen), 1))
    for k in chosen:
        out += (k + 0x8000 * bool(row[k] < 0)).to_bytes(2, 'little')
        decoded[k] = -scale if row[k] < 0 else scale
    return out + b'\xff\xff' * (count - len(chosen)), decoded


def four_bit_reference(row):
    """Return the encoded bytes and the decoded values of one segment, by codec E3M0."""
    out, scale = rounded(max((abs(v) for v in row), default=0))
    levels = [np.float32(0), *(np.float32(scale * 2.0 ** (e - 7)) for e in range(1, 8))]
    codes, decoded = [], np.zeros_like(row)
    for k, value in enumerate(row):
        # Choose the nearest level; of two equally near levels, choose the larger. A float64 stores
        # all levels exactly.
        far = [abs(abs(float(value)) - float(level)) for level in levels]
        code = max(e for e in range(8) if far[e] == min(far)) if value != 0 else 0
        codes.append(code | 8 * bool(code and value < 0))
        decoded[k] = -levels[code] if value < 0 else levels[code]
    codes += [0] * (len(codes) % 2)
    return out + bytes(a | b << 4 for a, b in zip(codes[::2], codes[1::2], strict=True)), decoded


def sparseloco_reference(row):
    """Return the encoded bytes and the decoded values of one segment, by codec SparseLoCo."""
    count = max(round(row.size / 64), 1)
    largest = sorted(range(row.size), key=lambda k: (-abs(float(row[k])), k))[:count]
    chosen, decoded = sorted(k for k in largest if row[k] != 0), np.zeros_like(row)
    sizes = [abs(float(row[k])) for k in chosen]
    mean = sum(sizes) / max(len(sizes), 1)
    groups = [[size for size in sizes if (size > mean) == large] for large in (True, False)]
    (first, large), (second, small) = (rounded(sum(g) / max(len(g), 1)) for g in groups)
    bits = 0
    for n, k in enumerate(chosen):
        scale = large if abs(float(row[k])) > mean else small
        word = k | 0x1000 * (scale is large) | 0x2000 * bool(row[k] < 0)
        bits |= word << 14 * n
        decoded[k] = -scale if row[k] < 0 else scale
    return first + second + bits.to_bytes((14 * count + 7) // 8, 'little'), decoded


def onebit_reference(row, total):
    """Return the encoded bytes and the decoded values of one segment, by codec onebit."""
    out, scale = rounded(total / row.size)
    for start in range(0, row.size, 8):
        signs = [bool(np.signbit(value)) for value in row[start:start + 8]]
        out += bytes([sum(negative << bit for bit, negative in enumerate(signs))])
    return out, np.where(np.signbit(row), -scale, scale)


# For each codec: from the values of a segment, and the sum of their magnitudes, to the encoded
# bytes and the decoded values.
BY_SEGMENT = {'raw': lambda row, _: (row.astype('<f4').tobytes(), row),
              'onebit': onebit_reference,
              'ternary': lambda row, _: ternary_reference(row),
              'ternary:0.05': lambda row, _: sparse_reference(row, 0.05),
              'e3m0': lambda row, _: four_bit_reference(row),
              'sparseloco': lambda row, _: sparseloco_reference(row)}


def reference(codec, partition, values, ids, sums):
    """Return encoded bytes and decoded values (elements,), computed one element at a time."""
    out, decoded = b'', np.zeros_like(values)
    for segment, total in zip(ids, sums, strict=True):
        part = slice(*partition.offsets[segment:segment + 2])
        code, decoded[part] = BY_SEGMENT[codec](values[part], total)
        out += code
    return out, decoded
