/* Offsets in CPython's structures, and the rows of frames that cpython/threads.py decodes.
 *
 * Plain C without Python.
 */
#ifndef MACHTRACE_COMMON_PYTHON_LAYOUT_H
#define MACHTRACE_COMMON_PYTHON_LAYOUT_H

#include <stdint.h>

#define MACHTRACE_NOWHERE UINT64_MAX

/* Offsets in CPython's structures, in the order of _NATIVE_FIELDS in cpython/layout.py;
 * MACHTRACE_NOWHERE for fields that this version lacks. */
struct machtrace_python_layout {
    uint64_t runtime; /* the address of _PyRuntime */
    uint64_t interpreters_head;
    uint64_t interpreter_next;
    uint64_t threads_head;
    uint64_t thread_next;
    uint64_t thread_interpreter;
    uint64_t thread_native_id;
    uint64_t thread_ident;
    uint64_t thread_frame;
    uint64_t c_frame_current;
    uint64_t c_frame_previous;
    uint64_t frame_code;
    uint64_t frame_previous;
    uint64_t frame_instruction;
    uint64_t frame_owner;
    uint64_t frame_is_entry;
    uint64_t code_tags; /* lowest bits of frame_code that are not of the address */
    uint64_t code_file;
    uint64_t code_name;
    uint64_t code_lines;
    uint64_t code_first_line;
    uint64_t object_type;
    uint64_t type_name;
    uint64_t size;
    uint64_t text_length;
    uint64_t text_state;
    uint64_t text_ascii;
    uint64_t text_compact;
    uint64_t bytes_start;
    uint64_t runtime_gil;     /* of the lock's state in _PyRuntime */
    uint64_t interpreter_gil; /* of the pointer to the lock's state */
    uint64_t gil_holder;
    uint64_t gil_locked;
};

/* A frame, as eight words for cpython/threads.py. */
struct machtrace_python_row {
    uint64_t address;
    uint64_t previous;
    uint64_t instruction;
    uint64_t code;
    uint64_t serial; /* of the code: equal only for equal contents; 0 if `error` */
    uint64_t owner;
    uint64_t is_entry;
    uint64_t error; /* of the code */
};

/* A C frame (3.11, 3.12) and the frame that it leads to; later versions have one, at address 0. */
struct machtrace_python_link {
    uint64_t address;
    uint64_t frame;
};

#endif
