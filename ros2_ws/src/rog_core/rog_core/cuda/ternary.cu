// Kernels of `ternary`; the format is in rog_core/codecs/ternary.py, which calls a part a block. A
// warp finds the byte of a part of 64 elements; lane l of the warp reads the elements l and l + 32.

enum { PART = 64 };

// Write the byte of one part, and store in `size` the magnitude of the element sent (0: none).
static __device__ void encode_part(const Segment &mine, int part, float *size)
{
    int lane = threadIdx.x % 32, k = PART * part + lane;
    unsigned low = k < mine.length ? mine.magnitude(k) : 0;
    unsigned high = k + 32 < mine.length ? mine.magnitude(k + 32) : 0;
    unsigned largest = max(low, high);
    for (int step = 16; step; step /= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    unsigned lows = __ballot_sync(0xffffffffu, low == largest);
    unsigned highs = __ballot_sync(0xffffffffu, high == largest);
    int at = lows ? __ffs(lows) - 1 : __ffs(highs) + 31;  // the first of equal magnitudes
    if (lane == 0) {
        unsigned byte = 0x80 | (largest ? mine.negative(PART * part + at) << 6 : 0) | at;
        mine.code[2 + part] = (unsigned char)(largest ? byte : 0);
        *size = __uint_as_float(largest);
    }
}

extern "C" __global__ void ternary_encode(float *values, const float *mirror,
                                          const long long *table, unsigned char *code, int mode)
{
    __shared__ float sizes[THREADS], scale;  // sizes: magnitudes sent
    const Segment mine = segment(values, mode == DIFFERENCE ? mirror : nullptr, table, code);
    int parts = (mine.length + PART - 1) / PART, sent = 0;
    double total = 0.0;
    for (int first = 0; first < parts; first += THREADS) {
        int many = min(THREADS, parts - first);
        for (int p = threadIdx.x / 32; p < many; p += WARPS)
            encode_part(mine, first + p, sizes + p);
        __syncthreads();
        if (threadIdx.x == 0) {
            add_up(total, sizes, many);
            for (int p = 0; p < many; ++p) sent += sizes[p] != 0.0f;
        }
        __syncthreads();
    }
    if (threadIdx.x == 0)
        scale = write_scale(mine.code, total / max(sent, 1));
    __syncthreads();
    if (mode != TAKE)
        return;
    for (int p = threadIdx.x; p < parts; p += THREADS) {
        unsigned byte = mine.code[2 + p];
        if (byte)
            mine.values[PART * p + (byte & 63)] += byte & 64 ? scale : -scale;
    }
}

extern "C" __global__ void ternary_add(float *values, const long long *table, unsigned char *code,
                                       float factor)
{
    const Segment mine = segment(values, nullptr, table, code);
    float scale = factor * scale_at(mine.code);
    for (int p = threadIdx.x; PART * p < mine.length; p += THREADS) {
        unsigned byte = mine.code[2 + p];
        if (byte)
            mine.values[PART * p + (byte & 63)] += byte & 64 ? -scale : scale;
    }
}
