// Code that the kernels of all codecs share. A block of THREADS threads works on one segment.
//
// table, int64 (segments, 4): index of the segment's first element in `values`, number of elements,
// index of its first byte in `code`, and a number that depends on the codec. Kernels write single
// bytes, because a segment may begin at any byte.
//
// Kernels compare values by their bits and add them in the order of the CPU's loops, so that both
// give the same bytes.

enum { WARPS = THREADS / 32 };
enum { DIFFERENCE, TAKE, COPY };  // what an encoder does, see rog_core/codecs/base.py

struct Segment {
    float *values;
    const float *mirror;  // null unless it is to be subtracted
    int length;
    unsigned char *code;
    int number;

    __device__ float operator[](int k) const { return mirror ? values[k] - mirror[k] : values[k]; }
    __device__ unsigned magnitude(int k) const { return __float_as_uint((*this)[k]) & 0x7fffffffu; }
    __device__ unsigned negative(int k) const { return __float_as_uint((*this)[k]) >> 31; }
};

// Return the segment of this block.
static __device__ Segment segment(float *values, const float *mirror, const long long *table,
                                  unsigned char *code)
{
    const long long *row = table + 4LL * blockIdx.x;
    return {values + row[0], mirror ? mirror + row[0] : nullptr, (int)row[1], code + row[2],
            (int)row[3]};
}

static __device__ float scale_from(unsigned bfloat16) { return __uint_as_float(bfloat16 << 16); }

static __device__ float scale_at(const unsigned char *code)
{
    return scale_from(code[0] | (unsigned)code[1] << 8);
}

// Write a scale (>= 0), rounded to the nearest bfloat16; return the rounded scale.
static __device__ float write_scale(unsigned char *code, double scale)
{
    unsigned bits = __float_as_uint((float)scale) + 0x8000u;
    code[0] = (unsigned char)(bits >> 16), code[1] = (unsigned char)(bits >> 24);
    return scale_from(bits >> 16);
}

// Add numbers to `total` in their order; only one thread calls this.
static __device__ void add_up(double &total, const float *numbers, int count)
{
    for (int i = 0; i < count; ++i) total += (double)numbers[i];
}
