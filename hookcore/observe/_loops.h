/* The arithmetic of the CPU kernel, included by _kernel.c once for each instruction set: NAME(f) is f for that set.
 *
 * A tensor is read in blocks that stay in the first-level cache. One pass over a block computes the moments around the
 * block's first value, so that nothing cancels; a second pass turns the top bits of each value into its sketch bin.
 * Blocks are merged with Chan's formula. Sums have a fixed number of lanes, so that their order does not depend on the
 * processor.
 */

/* -- Sums: count, first and second moment around `shift`, extremes, zeros ----------------------------------------- */

static ALWAYS_INLINE double NAME(sum)(const d8 *a, const d8 *b)
{
    d8 both = *a + *b;
    return ((both[0] + both[4]) + (both[2] + both[6])) + ((both[1] + both[5]) + (both[3] + both[7]));
}

/* Any non-finite value makes the second moment non-finite; the extremes mean nothing then. */
static ALWAYS_INLINE struct moments NAME(moments32)(const float *x, int64_t n)
{
    const double shift = x[0];
    d8 s1a = {0}, s1b = {0}, s2a = {0}, s2b = {0};
    i8 zeros_a = {0}, zeros_b = {0};
    f8 low_a = x[0] + (f8){0}, low_b = low_a, high_a = low_a, high_b = low_a;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        f8 a, b;
        memcpy(&a, x + i, sizeof a);
        memcpy(&b, x + i + 8, sizeof b);
        d8 da = __builtin_convertvector(a, d8) - shift, db = __builtin_convertvector(b, d8) - shift;
        s1a += da;
        s1b += db;
        s2a += da * da;
        s2b += db * db;
        zeros_a -= a == 0;
        zeros_b -= b == 0;
        low_a = PICK(a < low_a, a, low_a);
        low_b = PICK(b < low_b, b, low_b);
        high_a = PICK(a > high_a, a, high_a);
        high_b = PICK(b > high_b, b, high_b);
    }
    struct moments m = {.shift = shift, .s1 = NAME(sum)(&s1a, &s1b), .s2 = NAME(sum)(&s2a, &s2b)};
    low_a = PICK(low_a < low_b, low_a, low_b);
    high_a = PICK(high_a > high_b, high_a, high_b);
    zeros_a += zeros_b;
    float low = low_a[0], high = high_a[0];
    for (int k = 0; k < 8; k++) {
        low = low_a[k] < low ? low_a[k] : low;
        high = high_a[k] > high ? high_a[k] : high;
        m.zeros += zeros_a[k];
    }
    for (; i < n; i++) {
        double d = (double)x[i] - shift;
        m.s1 += d;
        m.s2 += d * d;
        m.zeros += x[i] == 0;
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    m.low = low;
    m.high = high;
    return m;
}

static ALWAYS_INLINE struct moments NAME(moments64)(const double *x, int64_t n)
{
    const double shift = x[0];
    d8 s1a = {0}, s1b = {0}, s2a = {0}, s2b = {0};
    l8 zeros = {0};
    d8 low_a = x[0] + (d8){0}, high_a = low_a;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        d8 a, b;
        memcpy(&a, x + i, sizeof a);
        memcpy(&b, x + i + 8, sizeof b);
        d8 da = a - shift, db = b - shift;
        s1a += da;
        s1b += db;
        s2a += da * da;
        s2b += db * db;
        zeros -= a == 0;
        zeros -= b == 0;
        low_a = PICK(a < low_a, a, low_a);
        low_a = PICK(b < low_a, b, low_a);
        high_a = PICK(a > high_a, a, high_a);
        high_a = PICK(b > high_a, b, high_a);
    }
    struct moments m = {.shift = shift, .s1 = NAME(sum)(&s1a, &s1b), .s2 = NAME(sum)(&s2a, &s2b)};
    m.low = low_a[0];
    m.high = high_a[0];
    for (int k = 0; k < 8; k++) {
        m.low = low_a[k] < m.low ? low_a[k] : m.low;
        m.high = high_a[k] > m.high ? high_a[k] : m.high;
        m.zeros += zeros[k];
    }
    for (; i < n; i++) {
        double d = x[i] - shift;
        m.s1 += d;
        m.s2 += d * d;
        m.zeros += x[i] == 0;
        m.low = x[i] < m.low ? x[i] : m.low;
        m.high = x[i] > m.high ? x[i] : m.high;
    }
    return m;
}

/* -- Blocks with non-finite values: count those, then measure the rest -------------------------------------------- */

#define KEEP_FINITE(name, real)                                                                                        \
    static int64_t NAME(name)(const real *x, int64_t n, real *kept, double *cells)                                     \
    {                                                                                                                  \
        int64_t count = 0, nans = 0, plus = 0, minus = 0;                                                              \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            real value = x[i];                                                                                         \
            kept[count] = value;                                                                                       \
            count += value - value == 0;                                                                               \
            nans += value != value;                                                                                    \
            plus += value == INFINITY;                                                                                 \
            minus += value == -INFINITY;                                                                               \
        }                                                                                                              \
        cells[NAN_COUNT] += nans;                                                                                      \
        cells[POS_INF_COUNT] += plus;                                                                                  \
        cells[NEG_INF_COUNT] += minus;                                                                                 \
        return count;                                                                                                  \
    }
KEEP_FINITE(keep_finite32, float)
KEEP_FINITE(keep_finite64, double)
#undef KEEP_FINITE

/* Add a block's moments to a row; return whether any of it is non-finite. */
static ALWAYS_INLINE int NAME(add32)(const float *x, int64_t n, double *cells, char *scratch)
{
    struct moments m = NAME(moments32)(x, n);
    int mixed = !isfinite(m.s2);
    if (mixed) {
        float *kept = (float *)(scratch + KEPT_OFFSET);
        n = NAME(keep_finite32)(x, n, kept, cells);
        if (n == 0)
            return 1;
        m = NAME(moments32)(kept, n);
    }
    add_moments(cells, n, &m, 0);
    return mixed;
}

/* The same for float64, whose squares may overflow or vanish: such a block is measured in another unit. */
static ALWAYS_INLINE int NAME(add64)(const double *x, int64_t n, double *cells, char *scratch)
{
    struct moments m = NAME(moments64)(x, n);
    int scale = scale_of(&m);
    if (isfinite(m.s2) && scale == 0) {
        add_moments(cells, n, &m, 0);
        return 0;
    }
    double *kept = (double *)(scratch + KEPT_OFFSET);
    int64_t count = NAME(keep_finite64)(x, n, kept, cells);
    if (count == 0)
        return 1;
    m = NAME(moments64)(kept, count);
    scale = scale_of(&m);
    if (scale != 0) {
        double unit = scale > 0 ? 1 / FAR : FAR;
        for (int64_t i = 0; i < count; i++)
            kept[i] *= unit;
        struct moments scaled = NAME(moments64)(kept, count);
        m.shift = scaled.shift;
        m.s1 = scaled.s1;
        m.s2 = scaled.s2;
    }
    add_moments(cells, count, &m, scale);
    return count < n;
}

/* -- Sketches ------------------------------------------------------------------------------------------------------ */

/* The bins of finite values, from their bits; hookcore.records.sketch says in which order the bins are. */
static ALWAYS_INLINE void NAME(bins32)(const int32_t *words, int64_t n, uint16_t *bins)
{
    for (int64_t i = 0; i < n; i++) {
        int32_t sign = words[i] >> 31, magnitude = words[i] & 0x7FFFFFFF;
        int32_t step = (magnitude >> 20) - LOW32;
        step = step > MAGNITUDES ? MAGNITUDES : step;
        step = step < -1 ? -1 : step;
        int32_t bin = (step ^ sign) + POS_FIRST + (sign & -3);
        bins[i] = (uint16_t)(magnitude == 0 ? BIN_ZERO : bin);
    }
}

static ALWAYS_INLINE void NAME(bins64)(const int64_t *words, int64_t n, uint16_t *bins)
{
    for (int64_t i = 0; i < n; i++) {
        int32_t top = (int32_t)(words[i] >> 49), sign = top >> 31, step = (top & 0x3FFF) - LOW64;
        step = step > MAGNITUDES ? MAGNITUDES : step;
        step = step < -1 ? -1 : step;
        int32_t bin = (step ^ sign) + POS_FIRST + (sign & -3);
        bins[i] = (uint16_t)((words[i] & INT64_MAX) == 0 ? BIN_ZERO : bin);
    }
}

#define MARK_MIXED(name, real)                                                                                         \
    static void NAME(name)(const real *x, int64_t n, uint16_t *bins)                                                   \
    {                                                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                                              \
            uint16_t bin = x[i] != x[i] ? BIN_NAN : x[i] > 0 ? BIN_POS_INF : BIN_NEG_INF;                              \
            bins[i] = x[i] - x[i] == 0 ? bins[i] : bin;                                                                \
        }                                                                                                              \
    }
MARK_MIXED(mark_mixed32, float)
MARK_MIXED(mark_mixed64, double)
#undef MARK_MIXED

/* Equal neighbors would wait for each other's store, so they go to different sub-histograms. */
static ALWAYS_INLINE void NAME(count_in_copies)(const uint16_t *bins, int64_t n, uint32_t *copies)
{
    uint32_t *first = copies, *second = first + COPY_CELLS, *third = second + COPY_CELLS, *fourth = third + COPY_CELLS;
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        uint64_t four;
        memcpy(&four, bins + i, sizeof four);
        first[four & 0xFFFF]++;
        second[(four >> 16) & 0xFFFF]++;
        third[(four >> 32) & 0xFFFF]++;
        fourth[four >> 48]++;
    }
    for (; i < n; i++)
        first[bins[i]]++;
}

static ALWAYS_INLINE void NAME(count)(const struct task *task, int64_t n)
{
    const uint16_t *bins = (const uint16_t *)(task->scratch + BINS_OFFSET);
    if (task->copies)
        NAME(count_in_copies)(bins, n, task->copies);
    else {
        uint64_t touched = 0;
        for (int64_t i = 0; i < n; i++)
            touched |= (uint64_t)1 << bins[i] / STRETCH;
        for (int64_t i = 0; i < n; i++)
            task->histogram[bins[i]]++;
        touch(task->cells, touched);
    }
    task->cells[SKETCHED] += (double)n;
}

/* -- One block ----------------------------------------------------------------------------------------------------- */

#define BLOCK_OF(name, real, word, add, bins_of, mark)                                                                 \
    static ALWAYS_INLINE void NAME(name)(const struct task *task, const real *x, int64_t n, int64_t start)             \
    {                                                                                                                  \
        int mixed = NAME(add)(x, n, task->cells, task->scratch);                                                       \
        if (task->stride == 0)                                                                                         \
            return;                                                                                                    \
        if (task->stride > 1) {                                                                                        \
            real *picked = (real *)(task->scratch + KEPT_OFFSET);                                                      \
            int64_t count = 0;                                                                                         \
            for (int64_t i = first_taken(task, start); i < n; i += task->stride)                                       \
                picked[count++] = x[i];                                                                                \
            x = picked;                                                                                                \
            n = count;                                                                                                 \
        }                                                                                                              \
        uint16_t *bins = (uint16_t *)(task->scratch + BINS_OFFSET);                                                    \
        NAME(bins_of)((const word *)x, n, bins);                                                                       \
        if (mixed)                                                                                                     \
            NAME(mark)(x, n, bins);                                                                                    \
        NAME(count)(task, n);                                                                                          \
    }
BLOCK_OF(block32, float, int32_t, add32, bins32, mark_mixed32)
BLOCK_OF(block64, double, int64_t, add64, bins64, mark_mixed64)
#undef BLOCK_OF

/* -- Other types: widened a block at a time ------------------------------------------------------------------------ */

/* By its bits, so that no flush-to-zero mode of the processor touches a subnormal. */
static ALWAYS_INLINE void NAME(load_half)(const uint16_t *source, int64_t n, uint32_t *target)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = source[i] & 0x7FFF, sign = (uint32_t)(source[i] & 0x8000) << 16;
        float small = (float)(int32_t)magnitude * 0x1p-24f;
        uint32_t subnormal, normal = (magnitude << 13) + (112u << 23), special = (magnitude << 13) | 0x7F800000u;
        memcpy(&subnormal, &small, sizeof small);
        target[i] = sign | (magnitude >= 0x7C00 ? special : magnitude >= 0x0400 ? normal : subnormal);
    }
}

#define LOAD(type)                                                                                                     \
    for (int64_t i = 0; i < n; i++)                                                                                    \
        target[i] = (double)((const type *)source)[i];

static ALWAYS_INLINE void NAME(load)(const void *source, int64_t n, int64_t code, double *target)
{
    switch (code) {
    case UINT8:
    case BOOL:
        LOAD(uint8_t) break;
    case INT8:
        LOAD(int8_t) break;
    case INT16:
        LOAD(int16_t) break;
    case INT32:
        LOAD(int32_t) break;
    case INT64:
        LOAD(int64_t) break;
    case COMPLEX64:
        for (int64_t i = 0; i < n; i++) {
            double re = ((const float *)source)[2 * i], im = ((const float *)source)[2 * i + 1];
            double size = sqrt(re * re + im * im);
            target[i] = fabs(re) == INFINITY || fabs(im) == INFINITY ? INFINITY : size;
        }
        break;
    case COMPLEX128:
        for (int64_t i = 0; i < n; i++)
            target[i] = magnitude_of(((const double *)source)[2 * i], ((const double *)source)[2 * i + 1]);
        break;
    }
}
#undef LOAD

/* The block of n values of any type at `source` that begins at value `start` of its tensor. */
static ALWAYS_INLINE void NAME(block)(const struct task *task, const void *source, int64_t n, int64_t start)
{
    void *loaded = task->scratch + LOADED_OFFSET;
    switch (task->code) {
    case FLOAT32:
        NAME(block32)(task, source, n, start);
        return;
    case FLOAT64:
        NAME(block64)(task, source, n, start);
        return;
    case BFLOAT16:
        for (int64_t i = 0; i < n; i++)
            ((uint32_t *)loaded)[i] = (uint32_t)((const uint16_t *)source)[i] << 16;
        NAME(block32)(task, loaded, n, start);
        return;
    case FLOAT16:
        NAME(load_half)(source, n, loaded);
        NAME(block32)(task, loaded, n, start);
        return;
    default:
        NAME(load)(source, n, task->code, loaded);
        NAME(block64)(task, loaded, n, start);
    }
}

/* Blocks begin..end of a tensor without gaps. */
static void NAME(scan)(const struct task *task, int64_t begin, int64_t end)
{
    int64_t item = ITEM_BYTES[task->code];
    for (int64_t start = begin * BLOCK; start < end * BLOCK; start += BLOCK) {
        int64_t n = task->n - start < BLOCK ? task->n - start : BLOCK;
        NAME(block)(task, task->source + start * item, n, start);
    }
}

/* Move stretches first..last of the sub-histograms to a row, and leave zeros behind. */
static void NAME(fold)(uint32_t *copies, double *cells, int64_t first, int64_t last)
{
    for (int64_t stretch = first; stretch <= last; stretch++) {
        uint32_t sums[STRETCH], any = 0;
        for (int64_t i = 0; i < STRETCH; i++) {
            const uint32_t *at = copies + stretch * STRETCH + i;
            sums[i] = at[0] + at[COPY_CELLS] + at[2 * COPY_CELLS] + at[3 * COPY_CELLS];
            any |= sums[i];
        }
        if (any == 0)
            continue;
        uint32_t *histogram = (uint32_t *)(cells + CELLS) + stretch * STRETCH;
        int64_t bins = BINS - stretch * STRETCH < STRETCH ? BINS - stretch * STRETCH : STRETCH;
        for (int64_t i = 0; i < bins; i++)
            histogram[i] += sums[i];
        for (int64_t copy = 0; copy < COPIES; copy++)
            memset(copies + copy * COPY_CELLS + stretch * STRETCH, 0, STRETCH * 4);
        touch(cells, (uint64_t)1 << stretch);
    }
}

/* -- Tensors with gaps --------------------------------------------------------------------------------------------- */

#define COPY_STRIDED(type)                                                                                             \
    for (int64_t i = 0; i < n; i++)                                                                                    \
        ((type *)target)[i] = ((const type *)source)[i * step];

static ALWAYS_INLINE void NAME(copy_strided)(const void *source, int64_t n, int64_t step, int64_t item, void *target)
{
    switch (item) {
    case 1:
        COPY_STRIDED(uint8_t) break;
    case 2:
        COPY_STRIDED(uint16_t) break;
    case 4:
        COPY_STRIDED(uint32_t) break;
    case 8:
        COPY_STRIDED(uint64_t) break;
    default:
        COPY_STRIDED(struct pair)
    }
}
#undef COPY_STRIDED

/* `sizes` and `strides` (in items) of `dims` axes; there is at least one axis and one value. */
static void NAME(scan_strided)(const struct task *task, const int64_t *sizes, const int64_t *strides, int64_t dims)
{
    int64_t item = ITEM_BYTES[task->code], index[MAX_DIMENSIONS] = {0}, last = dims - 1, offset = 0;
    char *gathered = task->scratch + GATHERED_OFFSET;
    for (int64_t start = 0, filled = 0; start < task->n;) {
        int64_t run = sizes[last] - index[last], room = BLOCK - filled;
        run = run < room ? run : room;
        const char *source = task->source + (offset + index[last] * strides[last]) * item;
        NAME(copy_strided)(source, run, strides[last], item, gathered + filled * item);
        filled += run;
        index[last] += run;
        if (filled == BLOCK || start + filled == task->n) {
            NAME(block)(task, gathered, filled, start);
            start += filled;
            filled = 0;
        }
        for (int64_t axis = last; axis > 0 && index[axis] == sizes[axis]; axis--) {
            offset -= axis < last ? strides[axis] * sizes[axis] : 0;
            index[axis] = 0;
            index[axis - 1]++;
            offset += strides[axis - 1];
        }
    }
}
