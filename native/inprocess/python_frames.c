/* The Python functions that each thread is in, and which of them share one run of the loop.
 *
 * Since CPython 3.11 a call from Python to Python stays in the same run of
 * _PyEval_EvalFrameDefault. No interface reports which frame began a run; it is read from the
 * frame itself if this version's layout is known, and verified by the pointer back to it.
 * Layouts: Include/internal/pycore_frame.h of 3.11 to 3.14, struct _PyInterpreterFrame, and
 * PyFrameObject's f_frame.
 */
#include "inprocess/objects.h"

#include <stdint.h>
#include <string.h>

#define OWNED_BY_LOOP 3 /* FRAME_OWNED_BY_CSTACK of 3.12 and 3.13, FRAME_OWNED_BY_INTERPRETER */

struct layout {
    size_t code, previous, frame_object;
    size_t is_entry; /* 3.11 */
    size_t owner;    /* later: of the frame before, which the run's beginning has put there */
};

static const struct layout *layout_of_this_version(void)
{
    static const struct layout of_3_11 = {32, 48, 40, 68, 0};
    static const struct layout of_3_12 = {0, 8, 48, 0, 70};
    static const struct layout of_3_14 = {0, 8, 48, 0, 74};
#ifdef Py_GIL_DISABLED
    return NULL;
#else
    unsigned long minor = Py_Version >> 16 & 0xff;
    if (sizeof(void *) != 8 || Py_Version >> 24 != 3)
        return NULL;
    switch (minor) {
    case 11:
        return &of_3_11;
    case 12:
    case 13:
        return &of_3_12;
    case 14:
        return &of_3_14;
    default:
        return NULL;
    }
#endif
}

static uint64_t word_at(const unsigned char *at)
{
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* 1, 0, or -1 if unknown. */
static int is_entry(PyObject *frame, PyObject *code)
{
    const size_t f_frame = 24; /* behind the object's header and f_back */
    const struct layout *layout = layout_of_this_version();
    if (layout == NULL)
        return -1;
    const unsigned char *inner =
        (const unsigned char *)(uintptr_t)word_at((const unsigned char *)frame + f_frame);
    if (inner == NULL || word_at(inner + layout->frame_object) != (uint64_t)(uintptr_t)frame ||
        (word_at(inner + layout->code) & ~UINT64_C(3)) != (uint64_t)(uintptr_t)code)
        return -1;
    if (layout->is_entry != 0)
        return inner[layout->is_entry] != 0;
    const unsigned char *previous =
        (const unsigned char *)(uintptr_t)word_at(inner + layout->previous);
    return previous == NULL || previous[layout->owner] >= OWNED_BY_LOOP;
}

/* (code, line or 0, whether it began a run: 1, 0, or -1), innermost first. */
static PyObject *chain_of(PyObject *frame)
{
    PyObject *list = PyList_New(0);
    Py_INCREF(frame);
    while (list != NULL && frame != Py_None) {
        PyObject *code = (PyObject *)PyFrame_GetCode((PyFrameObject *)frame);
        int line = PyFrame_GetLineNumber((PyFrameObject *)frame);
        PyObject *item = Py_BuildValue("(Nii)", code, line, is_entry(frame, code));
        if (item == NULL || PyList_Append(list, item) != 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
        PyObject *back = list == NULL ? NULL : PyObject_GetAttrString(frame, "f_back");
        Py_DECREF(frame);
        frame = back;
        if (frame == NULL)
            Py_CLEAR(list);
    }
    Py_XDECREF(frame);
    return list;
}

PyObject *machtrace_python_frames(PyObject *current_frames)
{
    PyObject *by_thread = PyDict_New();
    PyObject *thread, *frame;
    Py_ssize_t place = 0;
    while (by_thread != NULL && PyDict_Next(current_frames, &place, &thread, &frame)) {
        PyObject *chain = chain_of(frame);
        if (chain == NULL || PyDict_SetItem(by_thread, thread, chain) != 0)
            Py_CLEAR(by_thread);
        Py_XDECREF(chain);
    }
    return by_thread;
}
