/* Copies of threads in Python: targets/shared/thread_copy.py. Include it after Python.h. */
#ifndef MACHTRACE_COMMON_THREAD_ROWS_H
#define MACHTRACE_COMMON_THREAD_ROWS_H

#include "common/thread.h"

/* (id, outcome, error, uninterruptible, registers, stacks, requested, stopped, resumed,
 * pthread_or_queue) */
static inline PyObject *machtrace_thread_row(const struct machtrace_thread *thread)
{
    PyObject *stacks = PyTuple_New((Py_ssize_t)thread->stack_count);
    if (stacks == NULL)
        return NULL;
    for (size_t index = 0; index < thread->stack_count; index++) {
        const struct machtrace_stack *stack = &thread->stacks[index];
        PyObject *pair = Py_BuildValue("(Ky#)", (unsigned long long)stack->start,
                                       stack->bytes == NULL ? "" : (const char *)stack->bytes,
                                       (Py_ssize_t)stack->size);
        if (pair == NULL || PyTuple_SetItem(stacks, (Py_ssize_t)index, pair) != 0) {
            Py_DECREF(stacks);
            return NULL;
        }
    }
    return Py_BuildValue("(Kiiiy#NLLLK)", (unsigned long long)thread->id, (int)thread->outcome,
                         thread->error, (int)thread->uninterruptible,
                         (const char *)thread->registers, (Py_ssize_t)thread->registers_size,
                         stacks, (long long)thread->requested_at, (long long)thread->stopped_at,
                         (long long)thread->resumed_at, (unsigned long long)thread->pthread_or_queue);
}

static inline PyObject *machtrace_thread_rows(const struct machtrace_thread *threads, size_t count)
{
    PyObject *rows = PyList_New((Py_ssize_t)count);
    for (size_t index = 0; rows != NULL && index < count; index++) {
        PyObject *row = machtrace_thread_row(&threads[index]);
        if (row == NULL || PyList_SetItem(rows, (Py_ssize_t)index, row) != 0)
            Py_CLEAR(rows);
    }
    return rows;
}

/* Allocate a thread for each id of a tuple, with nothing set. 0, or -1 with the exception. */
static inline int machtrace_threads_of(PyObject *ids, struct machtrace_thread **threads,
                                       size_t *count)
{
    Py_ssize_t size = PyTuple_Size(ids);
    if (size < 0)
        return -1;
    *threads = calloc(size > 0 ? (size_t)size : 1, sizeof **threads);
    if (*threads == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    *count = (size_t)size;
    return 0;
}

#endif
