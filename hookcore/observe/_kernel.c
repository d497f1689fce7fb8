/* The CPU kernel: adds tensors, given by address, to rows of an arena, and takes the rows out again.
 *
 * Written for any C compiler with GNU's vector types. The loops in _loops.h are compiled for several instruction sets,
 * and the module picks one when it is loaded. The few functions of Python's stable interface that it needs are
 * declared here, so that a build needs no Python headers and one build serves every Python since 3.10.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ALWAYS_INLINE __attribute__((always_inline)) inline

enum { INTERFACE = 21 }; /* raised with every change of the functions or of the layout; cpu.py compares */

/* -- Rows (hookcore/observe/layout.py) and bins (hookcore/records/sketch.py) ------------------------------------------- */

enum { FINITE, MEAN, DEVIATION, MIN, MAX, NAN_COUNT, POS_INF_COUNT, NEG_INF_COUNT, ZERO_COUNT, PARTS, SKETCHED, RATIO, SCALE, TOUCHED };
enum { CELLS = 16, HISTOGRAM_OFFSET = CELLS * 8, ROW_BYTES = 16448 };
enum { STEPS_PER_OCTAVE = 8, MIN_EXPONENT = -126, MAGNITUDES = 2032, BINS = 4072 };
enum { BIN_NEG_INF = 0, BIN_ZERO = 2035, POS_FIRST = 2037, BIN_POS_INF = 4070, BIN_NAN = 4071 };
enum { LOW32 = (127 + MIN_EXPONENT) * STEPS_PER_OCTAVE, LOW64 = (1023 + MIN_EXPONENT) * STEPS_PER_OCTAVE };

/* Moments of float64s that are too far from 1 are those of the values times 2 ** -SCALE, where SCALE is +-FAR_EXPONENT. */
enum { FAR_EXPONENT = 600 };
#define FAR 0x1p600
#define HUGE_SIZE 0x1p480
#define TINY_SIZE 0x1p-450

/* Element types; hookcore/observe/cpu.py has the same list. */
enum { FLOAT32, FLOAT64, BFLOAT16, FLOAT16, UINT8, INT8, INT16, INT32, INT64, BOOL, COMPLEX64, COMPLEX128, TYPES };
static const int64_t ITEM_BYTES[TYPES] = {4, 8, 2, 2, 1, 1, 2, 4, 8, 1, 8, 16};

/* The control block that every call gets by address. */
struct control {
    int64_t limit;   /* values that a sketch takes at least; -1: every value; 0: no sketch */
    int64_t jitter;  /* where the sampling stride begins: another place in every step */
    int64_t scratch; /* address of the scratch memory, one part a thread */
    int64_t threads;
    int64_t fork_call; /* the address of GOMP_parallel in torch's OpenMP runtime */
    int64_t bad_limit; /* as `limit`, for tensors with non-finite values if `limit` is 0 */
    int64_t task_source, task_size, task_code, task_limit; /* the tensor that the threads share at the moment */
    int64_t next;                                          /* its first part that no thread has taken yet */
};

enum { BLOCK = 2048, MAX_DIMENSIONS = 64, MAX_THREADS = 64 };
enum { PARALLEL_FROM = 1 << 15, COPIES_FROM = 1 << 11, COPIES = 4 };
/* A quarter of a page apart modulo a page, so that a store to one copy never looks like one to the next. */
enum { COPY_CELLS = 4352 };

/* One thread's scratch memory. */
enum {
    COPIES_OFFSET = ROW_BYTES,
    BINS_OFFSET = COPIES_OFFSET + COPIES * COPY_CELLS * 4,
    KEPT_OFFSET = BINS_OFFSET + BLOCK * 4,
    LOADED_OFFSET = KEPT_OFFSET + BLOCK * 8,
    GATHERED_OFFSET = LOADED_OFFSET + BLOCK * 8,
    SCRATCH_BYTES = GATHERED_OFFSET + BLOCK * 16,
};

/* The work for one tensor. */
struct task {
    const char *source;
    int64_t n, code, stride, jitter;
    double *cells;
    uint32_t *histogram;
    uint32_t *copies; /* sub-histograms, all zero between tensors; NULL where the values are too few */
    char *scratch;
};

struct moments {
    double shift, s1, s2, low, high;
    int64_t zeros;
};

struct pair {
    uint64_t first, second;
};

typedef float f8 __attribute__((vector_size(32)));
typedef double d8 __attribute__((vector_size(64)));
typedef int32_t i8 __attribute__((vector_size(32)));
typedef int64_t l8 __attribute__((vector_size(64)));

/* `chosen ? a : b` in each lane, which not every compiler has for vectors; compiled to one minimum or maximum. */
#define PICK(chosen, a, b) ((__typeof__(a))(((chosen) & (__typeof__(chosen))(a)) | (~(chosen) & (__typeof__(chosen))(b))))

/* Which stretches of a row's sketch are not empty: a bit for each, in the memory of a cell. Most of the line is empty. */
enum { STRETCH = 64, STRETCHES = (BINS + STRETCH - 1) / STRETCH };

static ALWAYS_INLINE uint64_t touched_of(const double *cells)
{
    uint64_t touched;
    memcpy(&touched, cells + TOUCHED, sizeof touched);
    return touched;
}

static ALWAYS_INLINE void touch(double *cells, uint64_t stretches)
{
    stretches |= touched_of(cells);
    memcpy(cells + TOUCHED, &stretches, sizeof stretches);
}

/* -- What does not depend on the instruction set ------------------------------------------------------------------- */

/* Bring moments with SCALE `from` to the larger one `to`; what vanishes is far below the rounding of the rest. */
static void rescale(double *mean, double *m2, double from, double to)
{
    for (; from < to; from += FAR_EXPONENT) {
        *mean /= FAR;
        *m2 = *m2 / FAR / FAR;
    }
}

/* Merge the moments of n > 0 finite values into a row. */
static void merge(double *cells, double n, double mean, double m2, double low, double high, double scale)
{
    double old = cells[FINITE];
    if (old == 0) {
        cells[FINITE] = n;
        cells[MEAN] = mean;
        cells[DEVIATION] = m2;
        cells[MIN] = low;
        cells[MAX] = high;
        cells[SCALE] = scale;
        return;
    }
    if (scale != cells[SCALE]) {
        if (mean == 0 && m2 == 0) /* nothing but zeros, which fit any scale */
            scale = cells[SCALE];
        else if (cells[MEAN] == 0 && cells[DEVIATION] == 0)
            cells[SCALE] = scale;
        rescale(&mean, &m2, scale, cells[SCALE]);
        rescale(&cells[MEAN], &cells[DEVIATION], cells[SCALE], scale);
        cells[SCALE] = scale > cells[SCALE] ? scale : cells[SCALE];
    }
    double delta = mean - cells[MEAN], share = n / (old + n);
    cells[FINITE] = old + n;
    cells[MEAN] += delta * share;
    cells[DEVIATION] += m2 + delta * (delta * old * share);
    cells[MIN] = low < cells[MIN] ? low : cells[MIN];
    cells[MAX] = high > cells[MAX] ? high : cells[MAX];
}

static void add_moments(double *cells, int64_t n, const struct moments *m, int scale)
{
    double mean = m->s1 / (double)n, m2 = m->s2 - m->s1 * mean;
    cells[ZERO_COUNT] += (double)m->zeros;
    merge(cells, (double)n, m->shift + mean, m2 > 0 ? m2 : 0, m->low, m->high, scale);
}

static int scale_of(const struct moments *m)
{
    double size = m->high > -m->low ? m->high : -m->low;
    return size > HUGE_SIZE ? FAR_EXPONENT : size < TINY_SIZE && size > 0 ? -FAR_EXPONENT : 0;
}

/* The magnitude of a complex number; that of a finite one is finite. */
static double magnitude_of(double re, double im)
{
    double size = hypot(re, im);
    return size == INFINITY && fabs(re) < INFINITY && fabs(im) < INFINITY ? 0x1.fffffffffffffp1023 : size;
}

/* Where in the block that begins at value `start` the sampling stride hits first. */
static int64_t first_taken(const struct task *task, int64_t start)
{
    int64_t first = (task->jitter - start) % task->stride;
    return first < 0 ? first + task->stride : first;
}

/* -- The loops, for each instruction set --------------------------------------------------------------------------- */

struct loops {
    void (*scan)(const struct task *, int64_t, int64_t);
    void (*scan_strided)(const struct task *, const int64_t *, const int64_t *, int64_t);
    void (*fold)(uint32_t *, double *, int64_t, int64_t);
    const char *name;
};
#define LOOPS(label) {NAME(scan), NAME(scan_strided), NAME(fold), label}

#define NAME(f) f##_base
#include "_loops.h"
static const struct loops base_loops = LOOPS("baseline");
#undef NAME

#if defined(__x86_64__)

#include <cpuid.h>

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,bmi,bmi2,lzcnt,movbe,popcnt"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi,bmi2,lzcnt,movbe,popcnt")
#endif
#define NAME(f) f##_v3
#include "_loops.h"
static const struct loops v3_loops = LOOPS("x86-64-v3");
#undef NAME
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,lzcnt,movbe,popcnt"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,fma,f16c,bmi,bmi2,lzcnt,movbe,popcnt")
#endif
#define NAME(f) f##_v4
#include "_loops.h"
static const struct loops v4_loops = LOOPS("x86-64-v4");
#undef NAME
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

/* The levels of the psABI: what the processor has, and what the system saves between threads. */
static int x86_level(void)
{
    unsigned a, b, c, d, low, high;
    const unsigned v3_ecx = bit_FMA | bit_MOVBE | bit_OSXSAVE | bit_AVX | bit_F16C | bit_POPCNT;
    const unsigned v3_ebx = bit_BMI | bit_AVX2 | bit_BMI2;
    const unsigned v4_ebx = bit_AVX512F | bit_AVX512DQ | bit_AVX512CD | bit_AVX512BW | bit_AVX512VL;
    if (!__get_cpuid(1, &a, &b, &c, &d) || (c & v3_ecx) != v3_ecx)
        return 1;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if ((low & 6) != 6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & v3_ebx) != v3_ebx)
        return 1;
    int level = (b & v4_ebx) == v4_ebx && (low & 0xE0) == 0xE0 ? 4 : 3;
    return __get_cpuid(0x80000001, &a, &b, &c, &d) && (c & bit_LZCNT) ? level : 1;
}

static const struct loops *pick_loops(int most)
{
    int level = x86_level();
    level = level < most ? level : most;
    return level >= 4 ? &v4_loops : level == 3 ? &v3_loops : &base_loops;
}

#else

static const struct loops *pick_loops(int most)
{
    return &base_loops;
}

#endif

static const struct loops *loops;

/* -- Whole tensors ------------------------------------------------------------------------------------------------- */

/* 0: no sketch; 1: every value; else an odd number of values from one taken value to the next. */
static int64_t stride_of(int64_t n, int64_t limit)
{
    if (limit == 0)
        return 0;
    if (limit < 0 || n < 2 * limit)
        return 1;
    int64_t stride = n / limit;
    return stride - 1 + stride % 2;
}

static struct task new_task(const struct control *control, int64_t source, int64_t n, int64_t code, int64_t row,
                            int64_t limit)
{
    return (struct task){
        .source = (const char *)source,
        .n = n,
        .code = code,
        .stride = stride_of(n, limit),
        .jitter = control->jitter,
        .cells = (double *)row,
        .histogram = (uint32_t *)(row + HISTOGRAM_OFFSET),
        .scratch = (char *)control->scratch,
    };
}

/* The bin of a finite value. */
static int64_t bin_of(double value)
{
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    int64_t step = (bits >> 49 & 0x3FFF) - LOW64;
    step = step > MAGNITUDES ? MAGNITUDES : step < -1 ? -1 : step;
    return value == 0 ? BIN_ZERO : value > 0 ? POS_FIRST + step : 2 * BIN_ZERO - POS_FIRST - step;
}

/* Move the sub-histograms to a row: from the stretch of the smallest value to that of the largest, and both ends of the
 * line, where the infinities and NaN are. */
static void fold_copies(uint32_t *copies, const double *about, double *cells)
{
    int64_t first = about[FINITE] > 0 ? bin_of(about[MIN]) / STRETCH : 1;
    int64_t last = about[FINITE] > 0 ? bin_of(about[MAX]) / STRETCH : 0;
    loops->fold(copies, cells, first, last);
    if (first > 0)
        loops->fold(copies, cells, 0, 0);
    if (last < STRETCHES - 1)
        loops->fold(copies, cells, STRETCHES - 1, STRETCHES - 1);
}

static void use_copies(struct task *task)
{
    task->copies = (uint32_t *)(task->scratch + COPIES_OFFSET);
}

/* A thread's shares of a large tensor: it takes one part after the other until none is left, because a runtime may give
 * fewer threads than were asked for (OMP_THREAD_LIMIT, OMP_DYNAMIC). The numbers of a part begin its scratch memory, as
 * a row does. */
static void run_shares(void *address)
{
    struct control *control = address;
    int64_t parts = control->threads, blocks = (control->task_size + BLOCK - 1) / BLOCK;
    for (int64_t part; (part = __atomic_fetch_add(&control->next, 1, __ATOMIC_RELAXED)) < parts;) {
        int64_t scratch = control->scratch + part * SCRATCH_BYTES;
        struct task task = new_task(control, control->task_source, control->task_size, control->task_code, scratch,
                                    control->task_limit);
        task.scratch = (char *)scratch;
        memset(task.cells, 0, CELLS * 8);
        use_copies(&task);
        loops->scan(&task, blocks * part / parts, blocks * (part + 1) / parts);
    }
}

/* Let the threads of torch's team take the parts, then merge these. */
static void share(struct control *control, const struct task *task, int64_t limit)
{
    typedef void (*fork_function)(void (*)(void *), void *, unsigned, unsigned);
    static const int counts[] = {NAN_COUNT, POS_INF_COUNT, NEG_INF_COUNT, ZERO_COUNT, SKETCHED};
    control->task_source = (int64_t)task->source;
    control->task_size = task->n;
    control->task_code = task->code;
    control->task_limit = limit;
    control->next = 0;
    ((fork_function)control->fork_call)(run_shares, control, (unsigned)control->threads, 0);
    for (int64_t thread = 0; thread < control->threads; thread++) {
        char *scratch = (char *)control->scratch + thread * SCRATCH_BYTES;
        const double *part = (const double *)scratch;
        if (part[FINITE] > 0)
            merge(task->cells, part[FINITE], part[MEAN], part[DEVIATION], part[MIN], part[MAX], part[SCALE]);
        for (int i = 0; i < 5; i++)
            task->cells[counts[i]] += part[counts[i]];
        if (task->stride > 0)
            fold_copies((uint32_t *)(scratch + COPIES_OFFSET), part, task->cells);
    }
}

/* `shape`: the address of the number of axes, their sizes, and their strides in items; 0 for values without gaps. */
static void measure(int64_t source, int64_t n, int64_t code, int64_t shape, int64_t row, struct control *control,
                    int64_t limit)
{
    const int64_t *geometry = (const int64_t *)shape;
    struct task task = new_task(control, source, n, code, row, limit);
    task.cells[PARTS] += 1;
    if (!shape && n >= PARALLEL_FROM && control->threads > 1) {
        share(control, &task, limit);
        return;
    }
    if (n >= COPIES_FROM && task.stride > 0)
        use_copies(&task);
    if (!shape)
        loops->scan(&task, 0, (n + BLOCK - 1) / BLOCK);
    else if (n > 0)
        loops->scan_strided(&task, geometry + 1, geometry + 1 + geometry[0], geometry[0]);
    if (task.copies)
        fold_copies(task.copies, task.cells, task.cells);
}

/* In a step without sketches, a tensor that turns out to have non-finite values gets one, if it is the first of its row,
 * and so do those that follow in the row: a sketch of some parts only would be that of other values. */
static void observe(int64_t source, int64_t n, int64_t code, int64_t shape, int64_t row, int64_t control_address)
{
    struct control *control = (struct control *)control_address;
    double *cells = (double *)row;
    int64_t limit = control->limit ? control->limit : cells[SKETCHED] > 0 ? control->bad_limit : 0;
    measure(source, n, code, shape, row, control, limit);
    if (limit || !control->bad_limit || cells[PARTS] > 1 ||
        cells[NAN_COUNT] + cells[POS_INF_COUNT] + cells[NEG_INF_COUNT] == 0)
        return;
    memset(cells, 0, CELLS * 8);
    measure(source, n, code, shape, row, control, control->bad_limit);
}

/* -- The end of a step --------------------------------------------------------------------------------------------- */

/* A packed row: slot and number of filled bins (int64), the cells, then (bin << 32 | count) for each filled bin. */
enum { HEAD_WORDS = 2 + CELLS };

static int64_t pack_stretch(uint32_t *histogram, int64_t stretch, int64_t *bins, int64_t filled)
{
    int64_t end = (stretch + 1) * STRETCH < BINS ? (stretch + 1) * STRETCH : BINS;
    for (int64_t i = stretch * STRETCH; i < end; i += 8) {
        uint64_t eight[4];
        memcpy(eight, histogram + i, sizeof eight);
        if ((eight[0] | eight[1] | eight[2] | eight[3]) == 0)
            continue;
        for (int64_t bin = i; bin < i + 8; bin++) {
            bins[filled] = bin << 32 | histogram[bin];
            filled += histogram[bin] != 0;
        }
        memset(histogram + i, 0, sizeof eight);
    }
    return filled;
}

/* Pack the written rows of the first `used` to `target` and leave them empty; return the number of words. */
static int64_t pack(int64_t base, int64_t used, int64_t target)
{
    int64_t *end = (int64_t *)target;
    for (int64_t slot = 0; slot < used; slot++) {
        double *cells = (double *)(base + slot * ROW_BYTES);
        uint32_t *histogram = (uint32_t *)(cells + CELLS);
        if (cells[PARTS] == 0)
            continue;
        int64_t *bins = end + HEAD_WORDS, filled = 0;
        for (uint64_t touched = touched_of(cells); touched; touched &= touched - 1)
            filled = pack_stretch(histogram, __builtin_ctzll(touched), bins, filled);
        cells[TOUCHED] = 0;
        end[0] = slot;
        end[1] = filled;
        memcpy(end + 2, cells, CELLS * 8);
        memset(cells, 0, CELLS * 8);
        end += HEAD_WORDS + filled;
    }
    return end - (int64_t *)target;
}

/* The columns of a frame (`STATS` in hookcore/records.py) from the cells of one row. */
enum { STATS_COLUMNS = 13 };

static void stats_of(const double *cells, double *stats)
{
    double finite = cells[FINITE], infinite = cells[POS_INF_COUNT] + cells[NEG_INF_COUNT];
    double unit = cells[SCALE] == 0 ? 1 : cells[SCALE] > 0 ? FAR : 1 / FAR;
    double squares = cells[DEVIATION] + finite * cells[MEAN] * cells[MEAN];
    double none = finite > 0 ? 0 : NAN;
    const double columns[STATS_COLUMNS] = {
        finite + cells[NAN_COUNT] + infinite,
        cells[NAN_COUNT],
        infinite,
        cells[ZERO_COUNT],
        cells[MEAN] * unit + none,
        sqrt(cells[DEVIATION] / finite) * unit + none,
        cells[MIN] + none,
        cells[MAX] + none,
        sqrt(squares / finite) * unit + none,
        sqrt(squares) * unit + none,
        cells[PARTS],
        cells[SKETCHED],
        NAN, /* the ratio: written by the recorder */
    };
    memcpy(stats, columns, sizeof columns);
}

/* -- The module: the part of Python's stable interface that is used ------------------------------------------------ */

typedef intptr_t Py_ssize_t;
typedef struct _object {
    Py_ssize_t references; /* changed by functions only: newer versions of Python count in another way */
    struct _object *type;
} PyObject;
typedef PyObject *(*PyCFunctionFast)(PyObject *, PyObject *const *, Py_ssize_t);

typedef struct {
    const char *name;
    PyCFunctionFast function;
    int flags;
    const char *doc;
} PyMethodDef;

typedef struct {
    struct {
        Py_ssize_t references;
        void *type;
        PyObject *(*init)(void);
        Py_ssize_t index;
        PyObject *copy;
    } base;
    const char *name, *doc;
    Py_ssize_t size;
    PyMethodDef *methods;
    void *slots, *traverse, *clear, *free;
} PyModuleDef;

enum { METH_FASTCALL = 0x80, PYTHON_ABI_VERSION = 3 };

extern PyObject _Py_NoneStruct, _Py_TrueStruct, _Py_FalseStruct, *PyExc_TypeError, *PyExc_Exception;
void Py_IncRef(PyObject *);
void Py_DecRef(PyObject *);
long long PyLong_AsLongLong(PyObject *);
PyObject *PyLong_FromLongLong(long long);
PyObject *PyErr_Format(PyObject *, const char *, ...);
PyObject *PyErr_Occurred(void);
void PyErr_Clear(void);
int PyErr_ExceptionMatches(PyObject *);
void PyErr_Fetch(PyObject **, PyObject **, PyObject **);
void PyErr_Restore(PyObject *, PyObject *, PyObject *);
PyObject *PyObject_GetAttr(PyObject *, PyObject *);
PyObject *PyObject_Call(PyObject *, PyObject *, PyObject *);
PyObject *PyObject_CallNoArgs(PyObject *);
PyObject *PyObject_CallFunctionObjArgs(PyObject *, ...);
PyObject *PyObject_CallMethodObjArgs(PyObject *, PyObject *, ...);
PyObject *PyObject_GenericGetDict(PyObject *, void *);
int PyObject_GenericSetAttr(PyObject *, PyObject *, PyObject *);
Py_ssize_t PyObject_Size(PyObject *);
Py_ssize_t PySequence_Size(PyObject *);
PyObject *PySequence_GetItem(PyObject *, Py_ssize_t);
PyObject *PyList_New(Py_ssize_t);
Py_ssize_t PyList_Size(PyObject *);
PyObject *PyList_GetItem(PyObject *, Py_ssize_t);
int PyList_SetItem(PyObject *, Py_ssize_t, PyObject *);
int PyList_Append(PyObject *, PyObject *);
int PySequence_Contains(PyObject *, PyObject *);
Py_ssize_t PyTuple_Size(PyObject *);
PyObject *PyTuple_GetItem(PyObject *, Py_ssize_t);
PyObject *PyTuple_New(Py_ssize_t);
int PyTuple_SetItem(PyObject *, Py_ssize_t, PyObject *);
PyObject *PyDict_New(void);
PyObject *PyDict_GetItemWithError(PyObject *, PyObject *);
int PyDict_Contains(PyObject *, PyObject *);
int PySet_Add(PyObject *, PyObject *);
int PySet_Contains(PyObject *, PyObject *);
int PySet_Discard(PyObject *, PyObject *);
int PyDict_Next(PyObject *, Py_ssize_t *, PyObject **, PyObject **);
int PyObject_SetItem(PyObject *, PyObject *, PyObject *);
int PyObject_DelItem(PyObject *, PyObject *);
int PyObject_SetAttr(PyObject *, PyObject *, PyObject *);
PyObject *PyErr_NoMemory(void);
PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t);
Py_ssize_t PyBytes_Size(PyObject *);
char *PyBytes_AsString(PyObject *);
PyObject *PyFloat_FromDouble(double);
double PyFloat_AsDouble(PyObject *);
PyObject *PyUnicode_InternFromString(const char *);
PyObject *PyWeakref_GetObject(PyObject *);
PyObject *PyEval_GetFrame(void);
PyObject *PyFrame_GetCode(PyObject *);
PyObject *PyObject_GetItem(PyObject *, PyObject *);
unsigned long PyThread_get_thread_ident(void);
PyObject *Py_BuildValue(const char *, ...);
int PyArg_ParseTuple(PyObject *, const char *, ...);
PyObject *PyType_FromSpec(void *);
void PyType_Modified(PyObject *);
PyObject *PyType_GenericNew(PyObject *, PyObject *, PyObject *);
PyObject *PyType_GenericAlloc(PyObject *, Py_ssize_t);
int PyType_IsSubtype(void *, PyObject *);
void PyObject_GC_UnTrack(void *);
void PyObject_GC_Del(void *);
int PyModule_AddObject(PyObject *, const char *, PyObject *);
PyObject *PyModule_Create2(PyModuleDef *, int);
int PyModule_AddIntConstant(PyObject *, const char *, long);
int PyModule_AddStringConstant(PyObject *, const char *, const char *);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);

/* Read `wanted` integers; 0 if that is impossible, with an exception set. */
static int read_integers(PyObject *const *arguments, Py_ssize_t given, Py_ssize_t wanted, int64_t *numbers)
{
    if (given != wanted) {
        PyErr_Format(PyExc_TypeError, "%zd arguments were given: this function takes %zd", given, wanted);
        return 0;
    }
    for (Py_ssize_t i = 0; i < wanted; i++) {
        numbers[i] = PyLong_AsLongLong(arguments[i]);
        if (numbers[i] == -1 && PyErr_Occurred())
            return 0;
    }
    return 1;
}

static PyObject *none(void)
{
    Py_IncRef(&_Py_NoneStruct);
    return &_Py_NoneStruct;
}

static PyObject *call_observe(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    int64_t a[4];
    if (!read_integers(arguments, given, 4, a))
        return NULL;
    observe(a[0], a[1], FLOAT32, 0, a[2], a[3]);
    return none();
}

static int is_type(int64_t code)
{
    if (code >= 0 && code < TYPES)
        return 1;
    PyErr_Format(PyExc_TypeError, "%lld is not the code of an element type: codes are 0 to %d", (long long)code, TYPES - 1);
    return 0;
}

static PyObject *call_observe_other(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    int64_t a[5];
    if (!read_integers(arguments, given, 5, a) || !is_type(a[2]))
        return NULL;
    observe(a[0], a[1], a[2], 0, a[3], a[4]);
    return none();
}

/* A float32 is not finite if all bits of its exponent are set. */
enum { MAX_VALUES = 4096 }; /* of a tensor that is looked at in every step */

static int is_finite(const uint32_t *values, int64_t n)
{
    uint32_t found = 0;
    for (int64_t i = 0; i < n; i++)
        found |= (values[i] & 0x7F800000) == 0x7F800000;
    return !found;
}

/* Take everything out of the first `used` rows, packed. The buffer grows to what the largest step can need; its
 * untouched pages cost nothing, and whoever calls this has the interpreter. */
static PyObject *pack_bytes(int64_t base, int64_t used)
{
    static int64_t *words, room;
    if (room < used * (HEAD_WORDS + BINS)) {
        free(words);
        room = 2 * used * (HEAD_WORDS + BINS);
        if ((words = malloc((size_t)room * sizeof *words)) == NULL) {
            room = 0;
            return PyErr_NoMemory();
        }
    }
    return PyBytes_FromStringAndSize((const char *)words, (Py_ssize_t)sizeof *words * pack(base, used, (int64_t)words));
}

#include "_objects.h"
#include "_track.h"
#include "_hold.h"
#include "_sums.h"
#include "_calls.h"

static PyObject *call_is_finite(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    int64_t a[2];
    if (!read_integers(arguments, given, 2, a))
        return NULL;
    return PyLong_FromLongLong(is_finite((const uint32_t *)a[0], a[1]));
}

static PyObject *call_observe_strided(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    int64_t a[6];
    if (!read_integers(arguments, given, 6, a) || !is_type(a[2]))
        return NULL;
    observe(a[0], a[1], a[2], a[3], a[4], a[5]);
    return none();
}

static PyObject *call_pack(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    int64_t a[2];
    if (!read_integers(arguments, given, 2, a))
        return NULL;
    return pack_bytes(a[0], a[1]);
}

/* The other way: return the slots, starts, bins, and counts of packed steps, each as bytes, and write the cells. */
static PyObject *unpack_step(const int64_t *words, int64_t size, double **cells)
{
    int64_t rows = 0, filled = 0, end = 0;
    for (int64_t bins; end + HEAD_WORDS <= size; rows++, filled += bins, end += HEAD_WORDS + bins) {
        bins = words[end + 1];
        if (bins < 0 || bins > size - end - HEAD_WORDS)
            break; /* not what `pack` wrote: no numbers are better than wrong ones */
    }
    const int64_t sizes[4] = {4 * rows, 4 * (rows + 1), 2 * filled, 4 * filled};
    PyObject *parts[4];
    char *to[4];
    for (int i = 0; i < 4; i++)
        if ((parts[i] = PyBytes_FromStringAndSize(NULL, sizes[i])) == NULL || (to[i] = PyBytes_AsString(parts[i])) == NULL)
            return NULL;
    uint32_t *slots = (uint32_t *)to[0], *start = (uint32_t *)to[1], *counts = (uint32_t *)to[3];
    uint16_t *all_bins = (uint16_t *)to[2];
    *start = 0;
    for (int64_t row = 0, at = 0, place = 0; row < rows; row++) {
        int64_t bins = words[at + 1];
        slots[row] = (uint32_t)words[at];
        memcpy(*cells, words + at + 2, CELLS * 8);
        *cells += CELLS;
        for (at += HEAD_WORDS; bins--; at++, place++) {
            all_bins[place] = (uint16_t)(words[at] >> 32);
            counts[place] = (uint32_t)words[at];
        }
        start[row + 1] = (uint32_t)place;
    }
    return Py_BuildValue("(NNNN)", parts[0], parts[1], parts[2], parts[3]);
}

static PyObject *call_unpack(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    int64_t address;
    if (given != 2 || !read_integers(arguments + 1, 1, 1, &address))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "%zd arguments were given: it takes 2", given);
    double *cells = (double *)address;
    Py_ssize_t many = PyList_Size(arguments[0]);
    PyObject *steps = many < 0 ? NULL : PyList_New(many);
    for (Py_ssize_t i = 0; steps != NULL && i < many; i++) {
        PyObject *packed = PyList_GetItem(arguments[0], i);
        const char *words = packed == NULL ? NULL : PyBytes_AsString(packed);
        PyObject *step = words == NULL ? NULL : unpack_step((const int64_t *)words, PyBytes_Size(packed) / 8, &cells);
        if (step == NULL || PyList_SetItem(steps, i, step)) {
            Py_DecRef(steps);
            return NULL;
        }
    }
    return steps;
}

static PyObject *call_stats(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    int64_t a[3];
    if (!read_integers(arguments, given, 3, a))
        return NULL;
    void *thread = PyEval_SaveThread();
    for (int64_t row = 0; row < a[1]; row++)
        stats_of((const double *)a[0] + row * CELLS, (double *)a[2] + row * STATS_COLUMNS);
    PyEval_RestoreThread(thread);
    return none();
}

/* For tests: use no newer instructions than those of x86-64-v<n>. */
static PyObject *call_limit_instructions(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    int64_t a[1];
    if (!read_integers(arguments, given, 1, a))
        return NULL;
    loops = pick_loops((int)a[0]);
    return none();
}

static PyMethodDef methods[] = {
    {"observe", call_observe, METH_FASTCALL, "Add n float32s that lie side by side at an address to a row."},
    {"observe_other", call_observe_other, METH_FASTCALL, "Add n values of any type that lie side by side to a row."},
    {"is_finite", call_is_finite, METH_FASTCALL, "Return 1 if all of n float32s that lie side by side are finite, else 0."},
    {"observe_strided", call_observe_strided, METH_FASTCALL, "Add n values of a tensor with gaps to a row."},
    {"observe_tensor", call_observe_tensor, METH_FASTCALL, "Add the values of a usual tensor to a row, and return whether it is one."},
    {"pack", call_pack, METH_FASTCALL, "Move the first rows of an arena to bytes, packed."},
    {"unpack", call_unpack, METH_FASTCALL, "Return the parts of packed steps as bytes, and write their cells to an address."},
    {"stats", call_stats, METH_FASTCALL, "Write the columns of a frame from n rows of cells to an address."},
    {"know", call_know, METH_FASTCALL, "Take what is needed of torch."},
    {"sum_sketches", call_sum_sketches, METH_FASTCALL, "Return the sum of sketches as bytes."},
    {"split_counts", call_split_counts, METH_FASTCALL, "Return counts as 16 bits each, and what some have above."},
    {"know_torch", call_know_torch, METH_FASTCALL, "Take what hooks know of torch."},
    {"name_call", call_name_call, METH_FASTCALL, "Give a class a __call__ that others see, and keep what is called."},
    {"leave_each", call_leave_each, METH_FASTCALL, "Leave each n-th call of a hook to Python."},
    {"limit_instructions", call_limit_instructions, METH_FASTCALL, "Use no newer instructions than x86-64-v<n>."},
    {0},
};

static PyModuleDef definition = {
    .base = {.references = 1},
    .name = "_kernel",
    .doc = "The CPU kernel: addresses in, numbers added to rows of an arena.",
    .size = -1,
    .methods = methods,
};

__attribute__((visibility("default"))) PyObject *PyInit__kernel(void)
{
    loops = pick_loops(4);
    PyObject *module = PyModule_Create2(&definition, PYTHON_ABI_VERSION);
    if (module == NULL || intern_names() || add_type(module, "Track", &track_spec, &track_type) ||
        add_type(module, "Hold", &hold_spec, &hold_type) || add_type(module, "HeldCall", &held_spec, &held_type) ||
        add_type(module, "Arrival", &arrival_spec, &arrival_type) || add_type(module, "After", &after_spec, &after_type) ||
        add_type(module, "CallHook", &call_hook_spec, &call_hook_type) || add_type(module, "GradientHook", &gradient_hook_spec, &gradient_hook_type) ||
        PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) ||
        PyModule_AddIntConstant(module, "SCRATCH_BYTES", SCRATCH_BYTES) ||
        PyModule_AddIntConstant(module, "MAX_THREADS", MAX_THREADS) ||
        PyModule_AddIntConstant(module, "MAX_VALUES", MAX_VALUES) ||
        PyModule_AddStringConstant(module, "INSTRUCTIONS", loops->name))
        return NULL;
    return module;
}
