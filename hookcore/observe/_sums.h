/* The sketches of a step as a store keeps them, and their sum over neighboring steps. */

/* Up to so many bins, it takes longer to get the interpreter back than to add them up. So it is kept, and the memory is
 * used again and again. */
enum { KEPT_BINS = 1 << 16, SUM_BINS = 4096, SUM_WORDS = SUM_BINS / 64 };

/* An entry: the places of its rows in the sum, ascending (NULL: the same rows), and where its sketches are. */
struct entry {
    const int64_t *places;
    const uint32_t *start;
    const uint16_t *bins;
    const char *counts;
    int64_t rows, filled, width, at; /* rows; bins; bytes of a count; the next row */
};

struct sum {
    int64_t filled, is_wide; /* bins; whether a sum needs 8 bytes */
    uint32_t *start;
    uint16_t *bins;
    uint64_t *counts;
};

static uint64_t count_at(const char *counts, int64_t width, int64_t at)
{
    return width == 2 ? ((const uint16_t *)counts)[at] : width == 4 ? ((const uint32_t *)counts)[at] : ((const uint64_t *)counts)[at];
}

static void add_row(const struct entry *entry, uint64_t *counts, uint64_t *filled)
{
    int64_t last = entry->start[entry->at + 1] < entry->filled ? entry->start[entry->at + 1] : entry->filled;
    for (int64_t i = entry->start[entry->at]; i < last; i++) {
        uint16_t bin = entry->bins[i] % SUM_BINS;
        counts[bin] += count_at(entry->counts, entry->width, i);
        filled[bin / 64] |= 1ull << bin % 64;
    }
}

static void sum_up(struct entry *entries, int64_t many, int64_t rows, struct sum *to)
{
    uint64_t counts[SUM_BINS] = {0}, filled[SUM_WORDS] = {0};
    to->start[0] = 0;
    for (int64_t row = 0; row < rows; row++) {
        for (struct entry *entry = entries; entry < entries + many; entry++)
            if (entry->at < entry->rows && (entry->places == NULL || entry->places[entry->at] == row)) {
                add_row(entry, counts, filled);
                entry->at++;
            }
        for (int64_t word = 0; word < SUM_WORDS; word++)
            for (; filled[word]; filled[word] &= filled[word] - 1) {
                int64_t bin = word * 64 + __builtin_ctzll(filled[word]);
                to->bins[to->filled] = (uint16_t)bin;
                to->counts[to->filled++] = counts[bin];
                to->is_wide |= counts[bin] > UINT32_MAX;
                counts[bin] = 0;
            }
        to->start[row + 1] = (uint32_t)to->filled;
    }
}

static int read_entry(PyObject *given, struct entry *entry)
{
    PyObject *part[4];
    for (int i = 0; i < 4; i++)
        if ((part[i] = PyTuple_GetItem(given, i)) == NULL)
            return -1;
    if (part[0] != &_Py_NoneStruct && (entry->places = (const int64_t *)PyBytes_AsString(part[0])) == NULL)
        return -1;
    entry->start = (const uint32_t *)PyBytes_AsString(part[1]);
    entry->bins = (const uint16_t *)PyBytes_AsString(part[2]);
    entry->counts = PyBytes_AsString(part[3]);
    if (entry->start == NULL || entry->bins == NULL || entry->counts == NULL)
        return -1;
    entry->rows = PyBytes_Size(part[1]) / 4 - 1;
    if (entry->places != NULL && PyBytes_Size(part[0]) / 8 < entry->rows)
        entry->rows = PyBytes_Size(part[0]) / 8;
    entry->filled = PyBytes_Size(part[2]) / 2;
    entry->width = entry->filled ? PyBytes_Size(part[3]) / entry->filled : 8;
    return 0;
}

static PyObject *bytes_of_sum(const struct sum *sum, int64_t rows)
{
    for (int64_t i = 0; i < sum->filled && !sum->is_wide; i++)
        memcpy((char *)sum->counts + 4 * i, sum->counts + i, 4);
    return Py_BuildValue("(NNN)", PyBytes_FromStringAndSize((const char *)sum->start, 4 * (rows + 1)),
                         PyBytes_FromStringAndSize((const char *)sum->bins, 2 * sum->filled),
                         PyBytes_FromStringAndSize((const char *)sum->counts, (sum->is_wide ? 8 : 4) * sum->filled));
}

static PyObject *call_sum_sketches(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    int64_t rows, most = 0;
    if (given != 2 || PyList_Size(arguments[0]) < 0 || !read_integers(arguments + 1, 1, 1, &rows))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "%zd arguments were given: it takes 2", given);
    int64_t many = PyList_Size(arguments[0]);
    static uint64_t kept[KEPT_BINS * 10 / 8];
    struct entry *entries = calloc(1, (size_t)many * sizeof *entries + (size_t)(rows + 1) * 4);
    PyObject *found = NULL;
    if (entries == NULL)
        return PyErr_NoMemory();
    for (int64_t i = 0; i < many; i++) {
        if (read_entry(PyList_GetItem(arguments[0], i), entries + i))
            goto end;
        most += entries[i].filled;
    }
    struct sum to = {.start = (uint32_t *)(entries + many)};
    to.counts = most <= KEPT_BINS ? kept : malloc((size_t)most * 10);
    to.bins = (uint16_t *)(to.counts + most);
    if (to.counts == NULL) {
        PyErr_NoMemory();
        goto end;
    }
    void *thread = to.counts == kept ? NULL : PyEval_SaveThread();
    sum_up(entries, many, rows, &to);
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    found = bytes_of_sum(&to, rows);
    if (to.counts != kept)
        free(to.counts);
end:
    free(entries);
    return found;
}

/* Return the lower 16 bits of counts, the places of those that need more, and what these have above, as bytes. */
static PyObject *call_split_counts(PyObject *self, PyObject *const *arguments, Py_ssize_t given)
{
    int64_t width, large = 0, at = 0;
    if (given != 2 || !read_integers(arguments + 1, 1, 1, &width))
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "%zd arguments were given: it takes 2", given);
    const char *counts = PyBytes_AsString(arguments[0]);
    if (counts == NULL || (width != 2 && width != 4 && width != 8))
        return counts == NULL ? NULL : PyErr_Format(PyExc_TypeError, "a count takes 2, 4, or 8 bytes");
    int64_t many = PyBytes_Size(arguments[0]) / width, upper_width = width == 8 ? 8 : 2;
    for (int64_t i = 0; i < many; i++)
        large += count_at(counts, width, i) >> 16 != 0;
    PyObject *parts[3] = {PyBytes_FromStringAndSize(NULL, 2 * many), PyBytes_FromStringAndSize(NULL, 4 * large),
                          PyBytes_FromStringAndSize(NULL, upper_width * large)};
    if (parts[0] == NULL || parts[1] == NULL || parts[2] == NULL)
        return NULL;
    char *lower = PyBytes_AsString(parts[0]), *places = PyBytes_AsString(parts[1]), *upper = PyBytes_AsString(parts[2]);
    for (int64_t i = 0; i < many; i++) {
        uint64_t count = count_at(counts, width, i), above = count >> 16;
        memcpy(lower + 2 * i, &count, 2);
        if (above) {
            memcpy(places + 4 * at, &i, 4);
            memcpy(upper + upper_width * at++, &above, (size_t)upper_width);
        }
    }
    return Py_BuildValue("(NNN)", parts[0], parts[1], parts[2]);
}
