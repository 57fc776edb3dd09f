// Runs unmodified CUDA kernels on a CPU: one fiber per thread of a block, block after block.
//
// A barrier counts who has arrived, so fibers may come in any order. Races are not found: fibers
// take turns only at barriers.
#pragma once
#include <cstring>
#include <functional>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
struct Index { unsigned x; };
static Index threadIdx, blockIdx, blockDim, gridDim;

struct Barrier { unsigned count = 0, phase = 0; };
static ucontext_t scheduler;
static std::vector<ucontext_t> fibers;
static std::vector<bool> ended;
static std::vector<Barrier> warps;
static std::vector<unsigned> votes;
static Barrier whole;
static unsigned running, progress;
static std::function<void()> body;

static void wait_for(Barrier &barrier, unsigned many)
{
    unsigned phase = barrier.phase;
    if (++barrier.count == many) {
        barrier.count = 0, ++barrier.phase, ++progress;
        return;
    }
    while (barrier.phase == phase) {
        swapcontext(&fibers[running], &scheduler);
    }
}

static void __syncthreads() { wait_for(whole, blockDim.x); }

static unsigned __ballot_sync(unsigned, int vote)  // the mask must name all lanes of the warp
{
    unsigned me = threadIdx.x, warp = me / 32, all = 0;
    votes[me] = vote != 0;
    wait_for(warps[warp], 32);
    for (unsigned lane = 0; lane < 32; ++lane) all |= votes[32 * warp + lane] << lane;
    wait_for(warps[warp], 32);
    return all;
}

static float __uint_as_float(unsigned bits) { float f; std::memcpy(&f, &bits, 4); return f; }
static unsigned __float_as_uint(float f) { unsigned bits; std::memcpy(&bits, &f, 4); return bits; }

static void fiber() { body(); ended[running] = true; ++progress; }

// Run a kernel; 1: its threads wait for one another for ever. `threads`: a multiple of 32.
static int launch(unsigned blocks, unsigned threads, std::function<void()> kernel)
{
    const unsigned stack = 1 << 16;
    std::vector<char> stacks((size_t)stack * threads);
    body = kernel, blockDim.x = threads, gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        fibers.assign(threads, ucontext_t()), ended.assign(threads, false);
        warps.assign(threads / 32, Barrier()), votes.assign(threads, 0), whole = Barrier();
        for (unsigned t = 0; t < threads; ++t) {
            getcontext(&fibers[t]);
            fibers[t].uc_stack.ss_sp = &stacks[(size_t)stack * t];
            fibers[t].uc_stack.ss_size = stack;
            fibers[t].uc_link = &scheduler;
            makecontext(&fibers[t], fiber, 0);
        }
        for (unsigned left = threads; left;) {
            unsigned before = progress;
            left = 0;
            for (running = 0; running < threads; ++running) {
                if (ended[running]) continue;
                threadIdx.x = running;
                swapcontext(&scheduler, &fibers[running]);
                left += !ended[running];
            }
            if (left && progress == before) return 1;
        }
    }
    return 0;
}
