// Kernels of `ternary:P` and `sparseloco`; the formats are in rog_core/codecs/sparse.py and
// sparseloco.py. The number of a segment in the table is how many elements it sends, at most MOST.

enum { MOST = 512, BINS = 2048 };

// A bin of a histogram: its number, how many of its elements are sent, and how many it holds. One
// load reads all three; because of the alignment it reads nothing else, such as a bin that another
// thread sets to 0.
struct alignas(16) Bin { int number, sent, held; };

// Return the smallest magnitude that is sent, or a lower bound of it that no other element reaches.
// `count` is the number of elements to send; it becomes the maximum number of those whose magnitude
// equals the returned value.
//
// A histogram of the upper 11 bits of all magnitudes gives the upper 11 bits of the result; the
// next bits follow in the same way.
static __device__ unsigned threshold(const Segment &mine, int &count)
{
    __shared__ int bins[BINS];
    __shared__ Bin chosen;
    unsigned known = 0, mask = 0;
    for (int shift = 20;; shift = max(shift - 11, 0)) {
        for (int b = threadIdx.x; b < BINS; b += THREADS) bins[b] = 0;
        __syncthreads();
        for (int k = threadIdx.x; k < mine.length; k += THREADS) {
            unsigned size = mine.magnitude(k);
            if ((size & mask) == known)
                atomicAdd(&bins[size >> shift & (BINS - 1)], 1);
        }
        __syncthreads();
        if (threadIdx.x < 32) {  // each lane has 64 bins; count from the last bin down
            int lane = threadIdx.x, own = 0;
            for (int i = 0; i < 64; ++i) own += bins[64 * lane + (lane + i) % 64];
            int from = own;  // number of elements in the bins of this lane and of later lanes
            for (int step = 1; step < 32; step *= 2) {
                int later = __shfl_down_sync(0xffffffffu, from, step);
                if (lane + step < 32) from += later;
            }
            if (from >= count && from - own < count) {  // true in exactly one lane
                int above = from - own, b = 64 * lane + 63;
                while (above + bins[b] < count) above += bins[b--];
                chosen = {b, count - above, bins[b]};
            }
        }
        __syncthreads();
        known |= (unsigned)chosen.number << shift, mask = 0xffffffffu << shift, count = chosen.sent;
        if (chosen.held == count || shift == 0)
            return known;
    }
}

// Find the nonzero elements of largest magnitude, as many as the segment sends; of equal elements,
// the first. Stores their positions in `at`, ascending, and their magnitudes in `sizes`; returns
// their number.
static __device__ int select_largest(const Segment &mine, unsigned short *at, float *sizes)
{
    __shared__ int above[WARPS], equal[WARPS];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, aboves = 0, equals = 0;
    int count = mine.number;
    unsigned least = threshold(mine, count), before = (1u << lane) - 1;
    for (int first = 0; first < mine.length; first += THREADS) {
        int k = first + threadIdx.x;
        unsigned size = k < mine.length ? mine.magnitude(k) : 0;
        unsigned more = __ballot_sync(0xffffffffu, size > least);
        unsigned same = __ballot_sync(0xffffffffu, size == least && size);
        if (lane == 0)
            above[warp] = __popc(more), equal[warp] = __popc(same);
        __syncthreads();
        int mores = aboves + __popc(more & before), sames = equals + __popc(same & before);
        for (int w = 0; w < WARPS; ++w) {
            if (w < warp)
                mores += above[w], sames += equal[w];
            aboves += above[w], equals += equal[w];
        }
        if (size > least || (size == least && size && sames < count)) {
            int i = mores + min(sames, count);
            at[i] = (unsigned short)k, sizes[i] = __uint_as_float(size);
        }
        __syncthreads();
    }
    return aboves + min(equals, count);
}

extern "C" __global__ void sparse_encode(float *values, const float *mirror, const long long *table,
                                         unsigned char *code, int mode)
{
    __shared__ unsigned short at[MOST];
    __shared__ float sizes[MOST], scale;
    const Segment mine = segment(values, mode == DIFFERENCE ? mirror : nullptr, table, code);
    int sent = select_largest(mine, at, sizes);
    if (threadIdx.x == 0) {
        double total = 0.0;
        add_up(total, sizes, sent);
        scale = write_scale(mine.code, total / max(sent, 1));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < mine.number; i += THREADS) {
        unsigned word = i < sent ? at[i] | mine.negative(at[i]) << 15 : 0xffffu;
        mine.code[2 + 2 * i] = (unsigned char)word;
        mine.code[3 + 2 * i] = (unsigned char)(word >> 8);
        if (mode == TAKE && i < sent)
            mine.values[at[i]] += word >> 15 ? scale : -scale;
    }
}

extern "C" __global__ void sparse_add(float *values, const long long *table, unsigned char *code,
                                      float factor)
{
    const Segment mine = segment(values, nullptr, table, code);
    float scale = factor * scale_at(mine.code);
    for (int i = threadIdx.x; i < mine.number; i += THREADS) {
        unsigned word = mine.code[2 + 2 * i] | (unsigned)mine.code[3 + 2 * i] << 8;
        if (word != 0xffffu)
            mine.values[word & 0x7fff] += word >> 15 ? -scale : scale;
    }
}

enum { BITS = 14, LARGE = 1 << 12, NEGATIVE = 1 << 13 };

extern "C" __global__ void sparseloco_encode(float *values, const float *mirror,
                                             const long long *table, unsigned char *code, int mode)
{
    __shared__ unsigned short at[MOST], words[MOST];
    __shared__ float sizes[MOST], large, small;
    __shared__ double mean;
    const Segment mine = segment(values, mode == DIFFERENCE ? mirror : nullptr, table, code);
    int sent = select_largest(mine, at, sizes);
    if (threadIdx.x == 0) {
        double total = 0.0, sums[2] = {0.0, 0.0};
        int many = 0;
        add_up(total, sizes, sent);
        mean = total / max(sent, 1);
        for (int i = 0; i < sent; ++i) {
            bool more = (double)sizes[i] > mean;
            (more ? sums[1] : sums[0]) += (double)sizes[i];
            many += more;
        }
        large = write_scale(mine.code, sums[1] / max(many, 1));
        small = write_scale(mine.code + 2, sums[0] / max(sent - many, 1));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < mine.number; i += THREADS) {
        words[i] = 0;
        if (i < sent) {
            unsigned more = (double)sizes[i] > mean, negative = mine.negative(at[i]);
            float scale = more ? large : small;
            words[i] = (unsigned short)(at[i] | more * LARGE | negative * NEGATIVE);
            if (mode == TAKE)
                mine.values[at[i]] += negative ? scale : -scale;
        }
    }
    __syncthreads();
    for (int b = threadIdx.x; b < (BITS * mine.number + 7) / 8; b += THREADS) {
        int i = 8 * b / BITS, shift = 8 * b % BITS;
        unsigned next = i + 1 < mine.number ? words[i + 1] : 0;
        mine.code[4 + b] = (unsigned char)((words[i] | next << BITS) >> shift);
    }
    if (mode == TAKE)  // the values that are not sent decay, see sparseloco.py
        for (int k = threadIdx.x; k < mine.length; k += THREADS)
            mine.values[k] *= 0.95f;
}

extern "C" __global__ void sparseloco_add(float *values, const long long *table,
                                          unsigned char *code, float factor)
{
    const Segment mine = segment(values, nullptr, table, code);
    float large = factor * scale_at(mine.code), small = factor * scale_at(mine.code + 2);
    for (int i = threadIdx.x; i < mine.number; i += THREADS) {
        const unsigned char *in = mine.code + 4 + BITS * i / 8;
        int shift = BITS * i % 8;
        unsigned word = in[0] | (unsigned)in[1] << 8;
        if (shift > 2)
            word |= (unsigned)in[2] << 16;
        word = word >> shift & 0x3fff;
        float scale = word & LARGE ? large : small;
        if (word || i == 0)
            mine.values[word & (LARGE - 1)] += word & NEGATIVE ? -scale : scale;
    }
}
