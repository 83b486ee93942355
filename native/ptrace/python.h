/* What CPython stores about its threads, copied while their process is frozen: thread states, frames
 * and code. No Python is needed to copy it, so the process is stopped for no longer than that takes.
 *
 * The reader remembers which memory the last copy used, and reads all of that with few system calls
 * before it follows the pointers: it remembers only where to read, and all bytes are of the moment of
 * the copy. src/machtrace/cpython/threads.py has the twin that reads cores, and specifies the result.
 */
#ifndef MACHTRACE_PTRACE_PYTHON_H
#define MACHTRACE_PTRACE_PYTHON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/python_layout.h"

/* Why something was not read; messages are in cpython/threads.py (_READER_ERRORS). */
enum machtrace_python_error {
    MACHTRACE_PYTHON_READ = 0,
    MACHTRACE_PYTHON_UNREADABLE = 1,
    MACHTRACE_PYTHON_OTHER_INTERPRETER = 2,
    MACHTRACE_PYTHON_ENDLESS = 3,
    MACHTRACE_PYTHON_TOO_MANY_FRAMES = 4,
    MACHTRACE_PYTHON_NO_CODE = 5,
    MACHTRACE_PYTHON_NO_TEXT = 6,
    MACHTRACE_PYTHON_NO_BYTES = 7,
    MACHTRACE_PYTHON_TOO_LARGE = 8,
    MACHTRACE_PYTHON_NO_MEMORY = 9
};

struct machtrace_python_interpreter {
    uint64_t address;
    uint64_t gil; /* 0 if unknown */
    uint64_t gil_holder;
    uint64_t gil_locked; /* 0 or 1 */
};

struct machtrace_python_thread {
    uint64_t interpreter;
    uint64_t state; /* the thread state's address */
    uint64_t native_id;
    uint64_t ident;
    size_t first_link;
    size_t link_count;
    size_t first_row;
    size_t row_count;
    uint64_t error;
    uint64_t error_address;
};

/* A code object: offsets into the reader's texts. */
struct machtrace_python_code {
    uint64_t serial;
    uint64_t first_line;
    uint64_t instruction_count;
    struct {
        uint64_t width; /* bytes a character; 1 of a table */
        size_t offset;
        size_t size;
    } name, file, lines;
};

struct machtrace_python_array {
    void *items;
    size_t count;
    size_t capacity;
};

struct machtrace_python_reader {
    struct machtrace_python_layout layout;
    /* The result of the last copy. */
    struct machtrace_python_array interpreters;
    struct machtrace_python_array threads;
    struct machtrace_python_array links;
    struct machtrace_python_array rows;
    struct machtrace_python_array codes; /* those with a new serial */
    struct machtrace_python_array texts; /* bytes, of `codes` */
    bool forgot;                         /* no earlier serial comes again */
    uint64_t error;
    uint64_t error_address;
    /* Private. */
    pid_t thread;
    struct machtrace_python_array hints;  /* ranges to read first */
    struct machtrace_python_array pieces; /* ranges that were read */
    struct machtrace_python_array bytes;  /* of the pieces */
    struct machtrace_python_array slots;  /* a hash table of pieces */
    struct machtrace_python_array known;  /* code by address */
    struct machtrace_python_array known_slots;
    size_t known_bytes;
    uint64_t last_serial;
    uint64_t copies;
    uint64_t text_left;
};

/* Copy what the interpreters of a frozen process store. Failures are part of the result. */
void machtrace_python_copy(struct machtrace_python_reader *reader, pid_t thread);

/* Free what the reader owns. */
void machtrace_python_release(struct machtrace_python_reader *reader);

#endif
