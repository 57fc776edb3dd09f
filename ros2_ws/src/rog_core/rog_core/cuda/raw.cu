// Kernels of `raw`: float32 as they are. `code` is aligned, and so is every segment in it.

extern "C" __global__ void raw_encode(float *values, const float *mirror, const long long *table,
                                      unsigned char *code, int mode)
{
    const Segment mine = segment(values, mode == DIFFERENCE ? mirror : nullptr, table, code);
    float *out = (float *)mine.code;
    for (int k = threadIdx.x; k < mine.length; k += THREADS) {
        out[k] = mine[k];
        if (mode == TAKE)
            mine.values[k] = 0.0f;
    }
}

extern "C" __global__ void raw_add(float *values, const long long *table, unsigned char *code,
                                   float factor)
{
    const Segment mine = segment(values, nullptr, table, code);
    const float *in = (const float *)mine.code;
    for (int k = threadIdx.x; k < mine.length; k += THREADS)
        mine.values[k] += factor * in[k];
}

// Store the decoded segments in `values`.
extern "C" __global__ void raw_store(float *values, const long long *table, unsigned char *code)
{
    const Segment mine = segment(values, nullptr, table, code);
    const float *in = (const float *)mine.code;
    for (int k = threadIdx.x; k < mine.length; k += THREADS)
        mine.values[k] = in[k];
}
