/* Capture another process of macOS: its threads, memory and images, by its task port.
 *
 * Plain C without Python: task.c (ports, images, threads), copy.c (stop, copy, resume) and
 * process.c (the system's facts about a process, and about the right to capture it);
 * common/darwin/memory.h reads memory. See docs/decisions/0027-darwin-tasks.md.
 *
 * Every function releases what it took from the kernel: thread ports, arrays, tokens. Only the
 * port of machtrace_task_open is the caller's, until machtrace_task_close. Results are
 * kern_return_t (mach/kern_return.h) unless stated otherwise.
 */
#ifndef MACHTRACE_DARWIN_TASK_TASK_H
#define MACHTRACE_DARWIN_TASK_TASK_H

#include <stdbool.h>

#include "common/thread.h"

/* --- task ports --- */

enum machtrace_task_port_kind {
    MACHTRACE_TASK_NONE = 0,
    MACHTRACE_TASK_READ = 1,   /* task_read_for_pid, since macOS 11: all that is needed here */
    MACHTRACE_TASK_CONTROL = 2 /* task_for_pid */
};

struct machtrace_task_port {
    uint32_t port; /* 0 if there is none */
    enum machtrace_task_port_kind kind;
    int read_error;    /* errno of task_read_for_pid; ENOSYS where the system has none */
    int control_error; /* kern_return_t of task_for_pid; 0 if it was not called */
    int name_error;    /* kern_return_t of task_name_for_pid; 0 if it was not called, or
                        * succeeded: then the process exists, and the right is missing */
};

/* The port with the fewest rights that will do. Sets all of `task`. */
void machtrace_task_open(int pid, struct machtrace_task_port *task);

void machtrace_task_close(uint32_t port);

/* --- the system's facts, without a port --- */

#define MACHTRACE_PATH_MAX 4096

struct machtrace_task_process {
    int32_t parent;
    uint32_t user;      /* effective */
    uint32_t real_user; /* real */
    uint32_t saved_user;
    uint32_t flags;         /* PROC_FLAG_… of sys/proc_info.h, PROC_FLAG_ROSETTA among them */
    uint32_t status;        /* SZOMB and others: sys/proc.h */
    char name[16];          /* ends with a NUL */
    char path[MACHTRACE_PATH_MAX]; /* of the program's file; empty if unknown */
    int32_t cpu_type;       /* 0 if unknown: another user's process */
    int32_t cpu_subtype;
    uint32_t code_signing;  /* CS_… of kern/cs_blobs.h; 0 if unknown */
    bool code_signing_known;
};

/* 0, or an errno: ESRCH if there is no such process. */
int machtrace_task_process(int pid, struct machtrace_task_process *process);

struct machtrace_task_rights {
    uint32_t user;                 /* effective, of this process */
    uint32_t integrity;            /* csr_config_t: the parts of SIP that are switched off */
    bool integrity_known;
    bool has_debugger_entitlement; /* com.apple.security.cs.debugger */
    bool is_translated;            /* this process, by Rosetta */
    int32_t address_bits;          /* of a pointer, machdep.virtual_address_size; 0 unknown */
    int32_t cpu_type;              /* that this is compiled for */
};

void machtrace_task_rights(struct machtrace_task_rights *rights);

/* --- images; memory is read by common/darwin/memory.h --- */

struct machtrace_task_images {
    uint64_t address; /* of struct dyld_all_image_infos in the task */
    uint64_t size;
    int32_t format; /* TASK_DYLD_ALL_IMAGE_INFO_32 or _64 */
};

int machtrace_task_images(uint32_t port, struct machtrace_task_images *images);

/* Where libdispatch has the label of a queue, by its own table; false if there is none. The
 * table is that of this process; all processes of an architecture share one libdispatch. */
bool machtrace_task_label_offset(uint16_t *version, uint16_t *offset);

/* --- threads --- */

#define MACHTRACE_THREAD_NAME_MAX 64

struct machtrace_task_thread_info {
    uint64_t id; /* thread_identifier_info.thread_id */
    uint64_t handle;        /* its pthread_self(), and an offset */
    uint64_t queue_address; /* where its queue's address is; 0 where it has had none */
    uint64_t cpu_ns;        /* user and system time, in nanoseconds */
    int32_t run_state;      /* TH_STATE_…; 0 if it and the time are unknown */
    int32_t suspend_count;
    char name[MACHTRACE_THREAD_NAME_MAX]; /* ends with a NUL */
};

/* The threads in the kernel's order, as many as there is room for, and how many there are. */
int machtrace_task_threads(uint32_t port, struct machtrace_task_thread_info *infos, size_t room,
                           size_t *count);

struct machtrace_task_capture {
    uint32_t port;
    uint64_t address_mask; /* the bits of a stack pointer that are address */
    size_t stack_limit;    /* bytes of each stack, its red zone not counted */
    /* Whether the whole task is suspended, by a token that the kernel takes back should this
     * process end meanwhile; else each thread for its own copy only. */
    bool together;
    struct machtrace_thread *threads;
    size_t thread_count;
    unsigned char *buffer; /* for all stacks, consecutive */
    size_t room;           /* bytes of it; what does not fit is not copied */
    int resume_error;      /* set if a thread or the task could not be resumed; 0 */
};

/* Copy threads. Sets the outcome of each; KERN_SUCCESS, or why the task's threads could not be
 * listed or the task not be suspended: then all are REFUSED, and nothing was stopped.
 *
 * While anything is suspended only the kernel is called: nothing is allocated, no lock is taken.
 * Whatever fails, all that was suspended is resumed. */
int machtrace_task_copy(struct machtrace_task_capture *capture);

#endif
