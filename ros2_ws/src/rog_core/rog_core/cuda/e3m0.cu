// Kernels of `e3m0`; the format is in rog_core/codecs/e3m0.py.

static __device__ float power_of_two(int exponent)
{
    return __uint_as_float((unsigned)(127 + exponent) << 23);
}

static __device__ unsigned code_of(float value, float scale)
{
    float magnitude = fabsf(value);
    unsigned exponent = magnitude >= scale * power_of_two(-7);
    for (int e = 2; e < 8; ++e)
        exponent += magnitude >= scale * (1.5f * power_of_two(e - 8));
    if (magnitude == 0.0f || exponent == 0)
        return 0;
    return exponent | __float_as_uint(value) >> 31 << 3;
}

static __device__ float level(unsigned code)
{
    float found = code & 7 ? power_of_two((int)(code & 7) - 7) : 0.0f;
    return code & 8 ? -found : found;
}

// Add the decoded values to the segment, with `scale` instead of the scale in its code.
static __device__ void move(const Segment &mine, float scale)
{
    for (int k = threadIdx.x; k < mine.length; k += THREADS)
        mine.values[k] += scale * level(mine.code[2 + k / 2] >> 4 * (k & 1) & 15);
}

extern "C" __global__ void e3m0_encode(float *values, const float *mirror, const long long *table,
                                       unsigned char *code, int mode)
{
    __shared__ unsigned largest[WARPS];
    __shared__ float scale;
    const Segment mine = segment(values, mode == DIFFERENCE ? mirror : nullptr, table, code);
    unsigned most = 0;
    for (int k = threadIdx.x; k < mine.length; k += THREADS) {
        unsigned size = mine.magnitude(k);
        most = size > 0x7f800000u ? most : max(most, size);  // NaN does not count
    }
    for (int step = 16; step; step /= 2)
        most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
    if (threadIdx.x % 32 == 0)
        largest[threadIdx.x / 32] = most;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; ++w) most = max(most, largest[w]);
        scale = write_scale(mine.code, __uint_as_float(most));
    }
    __syncthreads();
    for (int b = threadIdx.x; 2 * b < mine.length; b += THREADS) {
        unsigned byte = code_of(mine[2 * b], scale);
        if (2 * b + 1 < mine.length)
            byte |= code_of(mine[2 * b + 1], scale) << 4;
        mine.code[2 + b] = (unsigned char)byte;
    }
    __syncthreads();
    if (mode == TAKE)
        move(mine, -scale);
}

extern "C" __global__ void e3m0_add(float *values, const long long *table, unsigned char *code,
                                    float factor)
{
    const Segment mine = segment(values, nullptr, table, code);
    move(mine, factor * scale_at(mine.code));
}
