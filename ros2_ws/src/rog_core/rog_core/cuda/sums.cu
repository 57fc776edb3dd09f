// Kernels of rog_core/arrays.py, which give a float32 for each segment. A block of THREADS threads
// works on one segment; `offsets`, int64 (segments + 1,): the elements at which segments begin.

// Add up `mine` of all threads of this block; store the sum as the result of the block's segment.
static __device__ void store_sum(float *sums, float mine)
{
    __shared__ float of_warp[WARPS];
    for (int step = 16; step; step /= 2)
        mine += __shfl_xor_sync(0xffffffffu, mine, step);
    if (threadIdx.x % 32 == 0)
        of_warp[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; ++w) mine += of_warp[w];
        sums[blockIdx.x] = mine;
    }
}

// Add a step to `pending`; see `accumulate`. `of_gradient`, `of_momentum`: the factors of gradient
// and momentum in the step.
extern "C" __global__ void sums_accumulate(const long long *offsets, float *sums,
                                           const float *gradient, const float *weights,
                                           float *momentum, float *pending, float rate, float mu,
                                           float decay, float of_gradient, float of_momentum)
{
    const long long end = offsets[blockIdx.x + 1];
    float total = 0.0f;
    for (long long k = offsets[blockIdx.x] + threadIdx.x; k < end; k += THREADS) {
        float g = gradient[k], m = mu * momentum[k] + g, step = of_gradient * g + of_momentum * m;
        if (decay != 0.0f)
            step += decay * weights[k];
        float sum = pending[k] + rate * step;
        momentum[k] = m, pending[k] = sum, total += fabsf(sum);
    }
    store_sum(sums, total);
}

extern "C" __global__ void sums_difference(const long long *offsets, float *sums,
                                           const float *left, const float *right)
{
    const long long end = offsets[blockIdx.x + 1];
    float total = 0.0f;
    for (long long k = offsets[blockIdx.x] + threadIdx.x; k < end; k += THREADS)
        total += fabsf(left[k] - right[k]);
    store_sum(sums, total);
}
