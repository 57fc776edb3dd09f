// Kernels of `onebit`: one block of threads per segment; the format is in rog_core/codecs/onebit.py.
//
// table, int64 (segments, 4): first element in `values`, elements, first byte in `code`, scale as
// bfloat16. Blocks have whole warps. Bytes are written singly: a segment may begin anywhere.

static __device__ float scale_from(unsigned bfloat16)
{
    return __uint_as_float(bfloat16 << 16);
}

// Write the signs of values - mirror and the scale; if `take`, of values, and subtract the decoded.
extern "C" __global__ void onebit_encode(float *values, const float *mirror, const long long *table,
                                         unsigned char *code, int take)
{
    const long long *row = table + 4LL * blockIdx.x;
    float *mine = values + row[0];
    const float *theirs = mirror + row[0];
    long long length = row[1];
    unsigned char *out = code + row[2];
    unsigned bits = (unsigned)row[3], lane = threadIdx.x % 32;
    float scale = scale_from(bits);
    if (threadIdx.x < 2)
        out[threadIdx.x] = (unsigned char)(bits >> 8 * threadIdx.x);
    // All lanes of a warp go on for as long as its first one does: they vote together.
    for (long long first = threadIdx.x - lane; first < length; first += blockDim.x) {
        long long k = first + lane;
        float value = k < length ? take ? mine[k] : mine[k] - theirs[k] : 0.0f;
        unsigned negative = __float_as_uint(value) >> 31;
        unsigned signs = __ballot_sync(0xffffffffu, negative);
        if (lane < 4 && first + 8 * lane < length)
            out[2 + first / 8 + lane] = (unsigned char)(signs >> 8 * lane);
        if (take && k < length)
            mine[k] = value + (negative ? scale : -scale);
    }
}

// Add factor * the decoded segments to `values`.
extern "C" __global__ void onebit_add(float *values, const long long *table,
                                      const unsigned char *code, float factor)
{
    const long long *row = table + 4LL * blockIdx.x;
    float *mine = values + row[0];
    const unsigned char *in = code + row[2];
    float scale = factor * scale_from(in[0] | (unsigned)in[1] << 8);
    for (long long k = threadIdx.x; k < row[1]; k += blockDim.x)
        mine[k] += in[2 + k / 8] >> k % 8 & 1 ? -scale : scale;
}
