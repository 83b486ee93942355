/* machtrace._native._stack_tree: the Python side of tree.h and keys.h.
 *
 * Built against the limited API of 3.11. Columns come and go through the buffer protocol.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string.h>

#include "common/module.h"
#include "stack_tree/heaviest.h"
#include "stack_tree/keys.h"
#include "stack_tree/tree.h"

static int take_wide_column(PyObject *object, Py_buffer *column, size_t *count, size_t size,
                            const char *what)
{
    if (PyObject_GetBuffer(object, column, PyBUF_C_CONTIGUOUS) != 0)
        return -1;
    if ((size_t)column->itemsize != size ||
        (column->len != 0 && (uintptr_t)column->buf % size != 0)) {
        PyBuffer_Release(column);
        PyErr_Format(PyExc_ValueError, "%s are of %d bytes each, aligned", what, (int)size);
        return -1;
    }
    *count = (size_t)column->len / size;
    return 0;
}

static int take_column(PyObject *object, Py_buffer *column, size_t *count, const char *what)
{
    return take_wide_column(object, column, count, sizeof(uint32_t), what);
}

static PyObject *fail(enum machtrace_tree_result result)
{
    if (result == MACHTRACE_TREE_NO_MEMORY)
        return PyErr_NoMemory();
    PyErr_SetString(PyExc_ValueError, result == MACHTRACE_TREE_NO_CALLER
                                          ? "a frame's caller is not before it"
                                          : "more than 2147483647 nodes");
    return NULL;
}

static PyObject *bytes_of(const void *from, size_t size)
{
    return PyByteArray_FromStringAndSize(from, (Py_ssize_t)size);
}

/* Return (depths, frames, nodes) of the tree of some rows. */
static PyObject *joined(const struct machtrace_rows *rows)
{
    PyObject *answer = NULL, *node = bytes_of(NULL, rows->count * sizeof(int32_t));
    if (node == NULL)
        return NULL;
    struct machtrace_tree tree;
    int32_t *numbers = (int32_t *)(void *)PyByteArray_AsString(node);
    enum machtrace_tree_result result;
    Py_BEGIN_ALLOW_THREADS
    result = machtrace_tree_join(rows, &tree, numbers);
    Py_END_ALLOW_THREADS
    if (result != MACHTRACE_TREE_DONE) {
        fail(result);
    } else {
        answer = Py_BuildValue("NNO", bytes_of(tree.depth, tree.count * sizeof *tree.depth),
                               bytes_of(tree.frame, tree.count * sizeof *tree.frame), node);
        machtrace_tree_free(&tree);
    }
    Py_DECREF(node);
    return answer;
}

static PyObject *join_stacks(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *frames, *stacks, *answer = NULL;
    Py_buffer frame, ends;
    struct machtrace_rows rows = {0};
    if (!PyArg_ParseTuple(arguments, "OO:join_stacks", &frames, &stacks))
        return NULL;
    if (take_column(frames, &frame, &rows.count, "frames") != 0)
        return NULL;
    if (take_wide_column(stacks, &ends, &rows.stacks, sizeof(int64_t), "ends") != 0) {
        PyBuffer_Release(&frame);
        return NULL;
    }
    rows.frame = frame.buf;
    rows.ends = ends.buf;
    int64_t last = 0;
    for (size_t stack = 0; stack < rows.stacks && last >= 0; stack++)
        last = rows.ends[stack] >= last ? rows.ends[stack] : -1;
    if (last != (int64_t)rows.count)
        PyErr_SetString(PyExc_ValueError, "ends do not ascend to the number of frames");
    else
        answer = joined(&rows);
    PyBuffer_Release(&ends);
    PyBuffer_Release(&frame);
    return answer;
}

static PyObject *join(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *depths, *frames, *answer = NULL;
    Py_buffer depth, frame;
    struct machtrace_rows rows = {0};
    size_t others;
    if (!PyArg_ParseTuple(arguments, "OO:join", &depths, &frames))
        return NULL;
    if (take_column(depths, &depth, &others, "depths") != 0)
        return NULL;
    if (take_column(frames, &frame, &rows.count, "frames") != 0) {
        PyBuffer_Release(&depth);
        return NULL;
    }
    rows.depth = depth.buf;
    rows.frame = frame.buf;
    if (rows.count != others)
        PyErr_SetString(PyExc_ValueError, "as many frames as depths");
    else
        answer = joined(&rows);
    PyBuffer_Release(&depth);
    PyBuffer_Release(&frame);
    return answer;
}

static PyObject *links(PyObject *module, PyObject *depths)
{
    (void)module;
    Py_buffer depth;
    size_t count;
    PyObject *answer = NULL;
    if (take_column(depths, &depth, &count, "depths") != 0)
        return NULL;
    PyObject *parent = bytes_of(NULL, count * sizeof(int32_t));
    PyObject *end = bytes_of(NULL, count * sizeof(int32_t));
    if (count > INT32_MAX) {
        fail(MACHTRACE_TREE_TOO_LARGE);
    } else if (parent != NULL && end != NULL) {
        int32_t *parents = (int32_t *)(void *)PyByteArray_AsString(parent);
        int32_t *ends = (int32_t *)(void *)PyByteArray_AsString(end);
        int result;
        Py_BEGIN_ALLOW_THREADS
        result = machtrace_tree_links(depth.buf, count, parents, ends);
        Py_END_ALLOW_THREADS
        if (result == 0)
            answer = PyTuple_Pack(2, parent, end);
        else
            fail(result == -1 ? MACHTRACE_TREE_NO_MEMORY : MACHTRACE_TREE_NO_CALLER);
    }
    Py_XDECREF(parent);
    Py_XDECREF(end);
    PyBuffer_Release(&depth);
    return answer;
}

static PyObject *stack_keys(PyObject *module, PyObject *arguments)
{
    (void)module;
    PyObject *depths, *frames, *stacks, *answer = NULL;
    Py_buffer depth, frame, nodes, keys;
    struct machtrace_stacks all;
    size_t others;
    if (!PyArg_ParseTuple(arguments, "OOy*O:stack_keys", &depths, &frames, &keys, &stacks))
        return NULL;
    if (take_column(depths, &depth, &all.count, "depths") != 0)
        goto no_depth;
    if (take_column(frames, &frame, &others, "frames") != 0)
        goto no_frame;
    if (take_column(stacks, &nodes, &all.stacks, "nodes") != 0)
        goto no_nodes;
    all.depth = depth.buf;
    all.frame = frame.buf;
    all.nodes = nodes.buf;
    all.frame_keys = keys.buf;
    all.frames = (size_t)keys.len / MACHTRACE_FRAME_KEY_SIZE;
    if (all.count != others)
        PyErr_SetString(PyExc_ValueError, "as many frames as depths");
    else
        answer = bytes_of(NULL, all.stacks * MACHTRACE_STACK_KEY_SIZE);
    if (answer != NULL) {
        unsigned char *written = (unsigned char *)PyByteArray_AsString(answer);
        int result;
        Py_BEGIN_ALLOW_THREADS
        result = machtrace_stack_keys(&all, written);
        Py_END_ALLOW_THREADS
        if (result != 0) {
            Py_CLEAR(answer);
            if (result == -1)
                PyErr_NoMemory();
            else
                PyErr_SetString(PyExc_ValueError,
                                "a tree in pre-order, frames with keys, and nodes in order");
        }
    }
    PyBuffer_Release(&nodes);
no_nodes:
    PyBuffer_Release(&frame);
no_frame:
    PyBuffer_Release(&depth);
no_depth:
    PyBuffer_Release(&keys);
    return answer;
}

enum { FRAMES, ENDS, SUMS, FIRST, IMAGES, NAMES, COLUMNS };

static PyObject *heaviest_of(const struct machtrace_forest *forest, size_t most, int wants_nodes)
{
    PyObject *answer = NULL, *node = bytes_of(NULL, wants_nodes ? forest->count * 4 : 0);
    if (node == NULL)
        return NULL;
    int32_t *nodes = wants_nodes ? (int32_t *)(void *)PyByteArray_AsString(node) : NULL;
    struct machtrace_functions functions;
    int result;
    Py_BEGIN_ALLOW_THREADS
    result = machtrace_heaviest(forest, most, &functions, nodes);
    Py_END_ALLOW_THREADS
    if (result == -1) {
        PyErr_NoMemory();
    } else if (result != 0) {
        PyErr_SetString(PyExc_ValueError, "a tree in pre-order, and frames with calls");
    } else {
        size_t count = functions.count;
        answer = Py_BuildValue(
            "NNNO", bytes_of(functions.parent, count * sizeof *functions.parent),
            bytes_of(functions.call, count * sizeof *functions.call),
            bytes_of(functions.total, count * sizeof *functions.total), node);
        machtrace_functions_free(&functions);
    }
    Py_DECREF(node);
    return answer;
}

static PyObject *heaviest(PyObject *module, PyObject *arguments)
{
    (void)module;
    static const size_t sizes[COLUMNS] = {4, 4, 8, 4, 4, 8};
    PyObject *objects[COLUMNS], *answer = NULL;
    Py_buffer columns[COLUMNS];
    size_t counts[COLUMNS];
    Py_ssize_t most;
    int wants_nodes, taken = 0;
    if (!PyArg_ParseTuple(arguments, "OOOOOOnp:heaviest", &objects[FRAMES], &objects[ENDS],
                          &objects[SUMS], &objects[FIRST], &objects[IMAGES], &objects[NAMES], &most,
                          &wants_nodes))
        return NULL;
    while (taken < COLUMNS && take_wide_column(objects[taken], &columns[taken], &counts[taken],
                                               sizes[taken], "values") == 0)
        taken++;
    if (taken == COLUMNS) {
        if (counts[FRAMES] != counts[ENDS] || counts[FRAMES] != counts[SUMS] ||
            counts[IMAGES] != counts[NAMES] || counts[FIRST] == 0 || most <= 0) {
            PyErr_SetString(PyExc_ValueError, "columns of different lengths");
        } else {
            struct machtrace_forest forest = {.frame = columns[FRAMES].buf,
                                              .end = columns[ENDS].buf,
                                              .sums = columns[SUMS].buf,
                                              .count = counts[FRAMES],
                                              .first = columns[FIRST].buf,
                                              .image = columns[IMAGES].buf,
                                              .name = columns[NAMES].buf,
                                              .frames = counts[FIRST] - 1,
                                              .calls = counts[IMAGES]};
            answer = heaviest_of(&forest, (size_t)most, wants_nodes);
        }
    }
    while (taken-- > 0)
        PyBuffer_Release(&columns[taken]);
    return answer;
}

static PyMethodDef methods[] = {
    {"heaviest", heaviest, METH_VARARGS,
     PyDoc_STR("heaviest(frames, ends, sums, first_calls, images, names, most, wants_nodes, /)\n"
               "--\n\n"
               "Return (parents, calls, totals, nodes) of the heaviest functions.")},
    {"join", join, METH_VARARGS,
     PyDoc_STR("join(depths, frames, /)\n--\n\n"
               "Return (depths, frames, nodes): a tree in pre-order, and the node of each row.")},
    {"join_stacks", join_stacks, METH_VARARGS,
     PyDoc_STR("join_stacks(frames, ends, /)\n--\n\n"
               "As join(), of stacks behind each other; ends are of 8 bytes each.")},
    {"links", links, METH_O,
     PyDoc_STR("links(depths, /)\n--\n\n"
               "Return (parents, ends) of the nodes of a tree in pre-order.")},
    {"stack_keys", stack_keys, METH_VARARGS,
     PyDoc_STR("stack_keys(depths, frames, frame_keys, nodes, /)\n--\n\n"
               "Return the key of the stack of each node, 16 bytes each.")},
    {NULL, NULL, 0, NULL},
};

MACHTRACE_MODULE(_stack_tree, machtrace_prepare_nothing,
                 "Trees of stacks in a canonical order, and keys of stacks.", .m_methods = methods)
