// Runs unmodified CUDA kernels on a CPU: one fiber per thread of a block, block after block.
//
// A barrier counts who has arrived, so fibers may come in any order: a seed chooses it, anew each
// time that all have come to a barrier. What two threads do to one place between two barriers then
// comes out differently, but fibers take turns only at barriers, so not every race is found.
#pragma once
#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __shared__ static __attribute__((section("shared_memory")))
using std::max;
using std::min;
struct Index { unsigned x; };
static Index threadIdx, blockIdx, blockDim, gridDim;
extern char __start_shared_memory[], __stop_shared_memory[];
static char some_shared __attribute__((section("shared_memory"), used));  // there may be no other

struct Barrier { unsigned count = 0, phase = 0; };
struct Fiber { ucontext_t start; jmp_buf at; bool begun, ended; };
static jmp_buf scheduler;
static std::vector<Fiber> fibers;
static std::vector<Barrier> warps;
static std::vector<uint64_t> slots;  // of each thread, what the others of its warp read
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
    while (barrier.phase == phase)
        if (!_setjmp(fibers[running].at)) _longjmp(scheduler, 1);
}

static void __syncthreads() { wait_for(whole, blockDim.x); }

// Give the lanes of this warp a value, and read theirs. The mask must name all lanes of the warp.
template <class T, class Read> static auto exchange(T value, Read read)
{
    Barrier &warp = warps[threadIdx.x / 32];
    std::memcpy(&slots[threadIdx.x], &value, sizeof value);
    wait_for(warp, 32);
    auto found = read(&slots[threadIdx.x / 32 * 32], threadIdx.x % 32);
    wait_for(warp, 32);
    return found;
}

static unsigned __ballot_sync(unsigned, int vote)
{
    return exchange<uint64_t>(vote != 0, [](const uint64_t *lanes, unsigned) {
        unsigned all = 0;
        for (unsigned lane = 0; lane < 32; ++lane) all |= (unsigned)lanes[lane] << lane;
        return all;
    });
}

template <class T> static T lane_of(const uint64_t *lanes, unsigned lane)
{
    T value;
    std::memcpy(&value, &lanes[lane], sizeof value);
    return value;
}

template <class T> static T __shfl_xor_sync(unsigned, T value, int mask)
{
    return exchange(value, [=](const uint64_t *lanes, unsigned me) {
        return lane_of<T>(lanes, me ^ mask);
    });
}

template <class T> static T __shfl_down_sync(unsigned, T value, unsigned delta)
{
    return exchange(value, [=](const uint64_t *lanes, unsigned me) {
        return lane_of<T>(lanes, me + delta < 32 ? me + delta : me);
    });
}

static int atomicAdd(int *to, int value) { *to += value; return *to - value; }
static int __popc(unsigned bits) { return __builtin_popcount(bits); }
static int __ffs(unsigned bits) { return __builtin_ffs((int)bits); }
static float __uint_as_float(unsigned bits) { float f; std::memcpy(&f, &bits, 4); return f; }
static unsigned __float_as_uint(float f) { unsigned bits; std::memcpy(&bits, &f, 4); return bits; }

static void fiber()
{
    body();
    fibers[running].ended = true, ++progress;
    _longjmp(scheduler, 1);
}

static void resume()
{
    Fiber &next = fibers[running];
    threadIdx.x = running;
    if (_setjmp(scheduler)) return;
    if (next.begun) _longjmp(next.at, 1);
    next.begun = true;
    setcontext(&next.start);
}

// Run a kernel; 1: its threads wait for one another for ever. `threads`: a multiple of 32.
static int launch(unsigned blocks, unsigned threads, unsigned seed, std::function<void()> kernel)
{
    const size_t stack = 1 << 15;
    static std::vector<char> stacks;
    std::mt19937 random(seed);
    std::vector<unsigned> order(threads);
    stacks.resize(stack * threads), fibers.resize(threads), slots.resize(threads);
    std::iota(order.begin(), order.end(), 0);
    body = kernel, blockDim.x = threads, gridDim.x = blocks;
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        std::memset(__start_shared_memory, 0xa5, __stop_shared_memory - __start_shared_memory);
        warps.assign(threads / 32, Barrier()), whole = Barrier();
        for (unsigned t = 0; t < threads; ++t) {
            fibers[t].begun = fibers[t].ended = false;
            getcontext(&fibers[t].start);
            fibers[t].start.uc_stack.ss_sp = &stacks[stack * t];
            fibers[t].start.uc_stack.ss_size = stack;
            makecontext(&fibers[t].start, fiber, 0);
        }
        for (unsigned left = threads; left;) {
            unsigned before = progress;
            left = 0;
            if (seed) std::shuffle(order.begin(), order.end(), random);
            for (unsigned t : order) {
                if (fibers[t].ended) continue;
                running = t;
                resume();
                left += !fibers[t].ended;
            }
            if (left && progress == before) return 1;
        }
    }
    return 0;
}
