/* The Python functions that a stopped thread of this process runs, copied without Python.
 *
 * Everything is read by machtrace_inprocess_read: a pointer to unmapped memory is an error and no
 * fault. The offsets are the caller's. What is copied is decoded later, by cpython/recorded.py.
 */
#ifndef MACHTRACE_INPROCESS_CORE_PYTHON_CHAIN_H
#define MACHTRACE_INPROCESS_CORE_PYTHON_CHAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/python_layout.h"

#define MACHTRACE_CHAIN_LINKS 128
#define MACHTRACE_CHAIN_ROWS 1024
#define MACHTRACE_PYTHON_THREADS_MAX 4096

/* A thread state, and the thread that it belongs to. */
struct machtrace_python_state {
    uint64_t thread; /* the system's id */
    uint64_t address;
};

struct machtrace_python_states {
    size_t count;
    struct machtrace_python_state items[MACHTRACE_PYTHON_THREADS_MAX];
};

/* The interpreter's lock (struct _gil_runtime_state), of the first interpreter. */
struct machtrace_gil {
    uint64_t address; /* 0 if it cannot be read */
    uint64_t holder;  /* the thread state that took it last */
    uint64_t switches; /* how often another one took it than before */
    bool is_locked;
};

/* The frames of a thread, as cpython/threads.py decodes them; `cache` is the reader's own. */
struct machtrace_python_chain {
    uint64_t state; /* of the thread; 0 if there is none */
    uint32_t link_count;
    uint32_t row_count;
    uint32_t is_truncated; /* there are more, or they could not be read */
    uint32_t unused;
    struct machtrace_python_link links[MACHTRACE_CHAIN_LINKS];
    struct machtrace_python_row rows[MACHTRACE_CHAIN_ROWS];
    uint64_t cache_start, cache_size;
    unsigned char cache[4096];
};

/* List the thread states of all interpreters, as far as they can be read. They change meanwhile:
 * machtrace_python_copy_chain checks the one that it uses. */
void machtrace_python_list(const struct machtrace_python_layout *layout,
                           struct machtrace_python_states *states);

/* The thread state of a thread; 0 if it has none. */
uint64_t machtrace_python_state_of(const struct machtrace_python_states *states, uint64_t thread);

/* The thread of a thread state; 0 if it cannot be read. */
uint64_t machtrace_python_thread_of(const struct machtrace_python_layout *layout, uint64_t state);

void machtrace_python_read_gil(const struct machtrace_python_layout *layout,
                               struct machtrace_gil *gil);

/* Copy the frames of a thread that does not run meanwhile; may be called in the handler of a
 * signal. */
void machtrace_python_copy_chain(const struct machtrace_python_layout *layout, uint64_t state,
                                 uint64_t thread, struct machtrace_python_chain *chain);

/* Copy a code object with its name, file and lines, as blocks: address and size, then as many
 * bytes, up to a multiple of 8. Returns the bytes used; 0 if it cannot be read, or `room` is too
 * small. */
size_t machtrace_python_copy_code(const struct machtrace_python_layout *layout, uint64_t code,
                                  unsigned char *to, size_t room, uint32_t *blocks);

#endif
