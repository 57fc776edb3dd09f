// Kernels of `onebit`; the format is in rog_core/codecs/onebit.py. The number of a segment in the
// table is its scale as bfloat16.

extern "C" __global__ void onebit_encode(float *values, const float *mirror, const long long *table,
                                         unsigned char *code, int mode)
{
    const Segment mine = segment(values, mode == DIFFERENCE ? mirror : nullptr, table, code);
    int lane = threadIdx.x % 32;
    float scale = scale_from(mine.number);
    if (threadIdx.x < 2)
        mine.code[threadIdx.x] = (unsigned char)((unsigned)mine.number >> 8 * threadIdx.x);
    // All lanes of a warp stay in the loop as long as its first lane: the ballot needs all of them.
    for (int first = threadIdx.x - lane; first < mine.length; first += THREADS) {
        int k = first + lane;
        float value = k < mine.length ? mine[k] : 0.0f;
        unsigned negative = __float_as_uint(value) >> 31;
        unsigned signs = __ballot_sync(0xffffffffu, negative);
        if (lane < 4 && first + 8 * lane < mine.length)
            mine.code[2 + first / 8 + lane] = (unsigned char)(signs >> 8 * lane);
        if (mode == TAKE && k < mine.length)
            mine.values[k] = value + (negative ? scale : -scale);
    }
}

extern "C" __global__ void onebit_add(float *values, const long long *table, unsigned char *code,
                                      float factor)
{
    const Segment mine = segment(values, nullptr, table, code);
    float scale = factor * scale_at(mine.code);
    for (int k = threadIdx.x; k < mine.length; k += THREADS)
        mine.values[k] += mine.code[2 + k / 8] >> k % 8 & 1 ? -scale : scale;
}
