// What the kernels of all codecs share. A block of THREADS threads works on one segment.
//
// table, int64 (segments, 4): first element in `values`, elements, first byte in `code`, and a number
// that depends on the codec. Bytes are written singly: a segment may begin anywhere.
//
// Decisions depend on bits and on sums in the order of the CPU's loops, so the bytes are the same.

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

// The segment of this block.
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

// Add numbers to `total` in their order; one thread calls it.
static __device__ void add_up(double &total, const float *numbers, int count)
{
    for (int i = 0; i < count; ++i) total += (double)numbers[i];
}
