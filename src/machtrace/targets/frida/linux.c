/* Copies threads of the process that this code is loaded into; compiled there, by Frida's CModule.
 *
 * A process cannot trace its own threads. A child that shares its memory (CLONE_VM) and is in a
 * thread group of its own can: it stops one thread after the other, copies registers and stack,
 * and lets it go, as native/ptrace/ptrace.c does from outside. When the child ends, however it
 * ends, the kernel releases all that it traced.
 *
 * There are no headers here, and the child has no thread-local storage of its own: nothing but
 * system calls is used, through the C library's syscall(), whose errno is the parent's, which waits
 * meanwhile. The numbers SYS_* are defined by frida_agent.js; types by frida_linux_registers.c.
 */
extern long syscall(long number, ...);
extern int clone(int (*run)(void *), void *stack, int flags, void *argument);
extern int *errno_location(void);

enum { /* linux/ptrace.h, linux/sched.h, linux/wait.h, linux/prctl.h, fcntl.h, elf.h */
    PTRACE_DETACH = 17,
    PTRACE_GETSIGINFO = 0x4202,
    PTRACE_GETREGSET = 0x4204,
    PTRACE_SETREGSET = 0x4205,
    PTRACE_SEIZE = 0x4206,
    PTRACE_INTERRUPT = 0x4207,
    PTRACE_EVENT_STOP = 128,
    NT_PRSTATUS = 1,
    CLONE_VM = 0x100,
    CLONE_FS = 0x200,
    CLONE_FILES = 0x400,
    P_PID = 1,
    WNOHANG = 1,
    WSTOPPED = 2,
    WEXITED = 4,
    WNOWAIT = 0x1000000,
    WALL = 0x40000000,
    CLD_TRAPPED = 4,
    CLD_STOPPED = 5,
    SIGTRAP = 5,
    SIG_SETMASK = 2,
    PR_GET_DUMPABLE = 3,
    PR_SET_DUMPABLE = 4,
    PR_SET_PTRACER = 0x59616d61,
    CLOCK_MONOTONIC = 1,
    ESRCH = 3,
    EINTR = 4,
    ECHILD = 10,
    O_RDONLY_CLOEXEC = 02000000,
};

enum outcome { COPIED, GONE, REFUSED, NOT_STOPPED, FAILED, NO_ROOM = 100 };

enum { RED_ZONE = 128, PAGE = 4096, READY = 65536 };

struct thread {
    u64 id;
    u64 outcome;
    u64 error;
    u64 uninterruptible;
    u64 asked_at, stopped_at, resumed_at; /* CLOCK_MONOTONIC, nanoseconds */
    u64 registers_size;
    u64 stack_start[2];
    u64 stack_size[2];
    u64 stack_at[2]; /* offset in the room */
    u8 registers[512];
};

/* Filled in by frida_agent.js, word for word. */
struct job {
    u64 threads; /* struct thread * */
    u64 count;
    u64 next;
    u64 ranges; /* u64 *: start and end in turn, of readable memory, by address */
    u64 range_count;
    u64 room; /* u8 *: stacks are copied there, consecutively */
    u64 room_size;
    u64 used;
    u64 stack_limit;
    u64 stop_limit; /* nanoseconds */
    u64 sleep_limit;
    u64 child_stack; /* its end */
    u64 may_allow;   /* whether the child may be made a tracer where the system refuses it */
    u64 is_full;
    u64 go;
    /* Of NT_PRSTATUS, and of a signal frame, in bytes. */
    u64 register_word, register_sp, frame_sp;
};

struct vector {
    void *base;
    word size;
};

static s64 now(void)
{
    long at[2] = {0, 0};
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, at);
    return (s64)at[0] * 1000000000 + at[1];
}

/* As many bytes as can be read, whole pages at the far end; 0 for none. */
word read_memory(u64 address, u8 *to, word size)
{
    struct vector here = {to, size};
    struct vector there = {(void *)(word)address, size};
    if (size == 0 || (u64)(word)address != address)
        return 0;
    long got = syscall(SYS_process_vm_readv, syscall(SYS_getpid), &here, 1L, &there, 1L, 0L);
    return got < 0 ? 0 : (word)got;
}

/* --- in the child --- */

/* Whether the kernel shows the thread in state D: "tid (name) state ...". */
static int is_uninterruptible(u64 thread)
{
    word number = (word)thread; /* tcc has no 64-bit division for 32-bit processors */
    char path[32] = "/proc/";
    char digits[24];
    char text[128];
    int count = 0, at = 6;
    do
        digits[count++] = (char)('0' + number % 10);
    while ((number /= 10) != 0);
    while (count != 0)
        path[at++] = digits[--count];
    copy_bytes(path + at, "/stat", 6);
    long file = syscall(SYS_openat, -100L, path, (long)O_RDONLY_CLOEXEC, 0L);
    if (file < 0)
        return 0;
    long size = syscall(SYS_read, file, text, sizeof text - 1);
    syscall(SYS_close, file);
    while (size > 0 && text[size - 1] != ')')
        size--;
    return size > 0 && text[size] == ' ' && text[size + 1] == 'D';
}

enum { TIMED_OUT, EXITED, TRAPPED };

struct stop {
    int kind;
    int signal;       /* to hand back on release; 0 for none */
    int by_interrupt; /* our own PTRACE_INTERRUPT, and nothing else, stopped it */
};

static void trapped(struct stop *stop, int code)
{
    stop->kind = TRAPPED;
    if (code >> 8 == 0)
        stop->signal = code & 0xff;
    else
        stop->by_interrupt = (code & 0xff) == SIGTRAP;
}

static void wait_for_stop(const struct job *job, u64 thread, s64 asked, struct stop *stop)
{
    s64 awake = asked;
    long pause[2] = {0, 20000};
    stop->kind = TIMED_OUT;
    stop->signal = stop->by_interrupt = 0;
    for (;;) {
        int event[32]; /* siginfo_t: signal, errno, code; then, aligned, pid, uid, status */
        int *child = event + (sizeof(word) == 8 ? 4 : 3);
        child[0] = 0;
        long options = WSTOPPED | WEXITED | WNOWAIT | WNOHANG | WALL;
        if (syscall(SYS_waitid, (long)P_PID, (long)thread, event, options, 0L) == -1) {
            if (*errno_location() == ECHILD) {
                stop->kind = EXITED;
                return;
            }
        } else if (child[0] != 0) {
            stop->kind = EXITED;
            if (event[2] == CLD_TRAPPED || event[2] == CLD_STOPPED)
                trapped(stop, child[2]);
            return;
        }
        s64 waited = now() - asked;
        if (waited < 200000) {
            syscall(SYS_sched_yield);
            continue;
        }
        if (!is_uninterruptible(thread))
            awake = now();
        if (waited >= (s64)job->stop_limit || now() - awake >= (s64)job->sleep_limit)
            return;
        syscall(SYS_nanosleep, pause, 0L);
        if (pause[1] < 1000000)
            pause[1] *= 2;
    }
}

/* The end of the range that holds `address`, or of the next one above. */
static u64 range_end(const struct job *job, u64 address)
{
    const u64 *ranges = (const u64 *)(word)job->ranges;
    u64 low = 0, high = job->range_count;
    while (low < high) {
        u64 middle = low + ((high - low) >> 1);
        if (ranges[2 * middle + 1] <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low < job->range_count ? ranges[2 * low + 1] : ~(u64)0;
}

/* Whether there was room. */
static int read_stack(struct job *job, struct thread *thread, int index, u64 sp)
{
    u64 start = sp < RED_ZONE ? 0 : sp - RED_ZONE;
    u64 end = range_end(job, sp);
    if (end - sp > job->stack_limit)
        end = sp + job->stack_limit;
    thread->stack_start[index] = sp;
    thread->stack_size[index] = 0;
    if (end - start > job->room_size - job->used)
        return 0;
    u8 *to = (u8 *)(word)job->room + job->used;
    u64 size = read_memory(start, to, (word)(end - start));
    if (size == 0 && (sp & -(u64)PAGE) > start) {
        start = sp & -(u64)PAGE; /* the red zone may lie in the guard page below the stack */
        size = read_memory(start, to, (word)(end - start));
    }
    if (size == 0)
        return 1;
    thread->stack_start[index] = start;
    thread->stack_size[index] = size;
    thread->stack_at[index] = job->used;
    job->used += (size + 15) & -(u64)16;
    return 1;
}

static void copy_stopped(struct job *job, struct thread *thread)
{
    struct vector registers = {thread->registers, sizeof thread->registers};
    if (syscall(SYS_ptrace, (long)PTRACE_GETREGSET, (long)thread->id, (long)NT_PRSTATUS,
                &registers) == -1) {
        thread->error = *errno_location();
        thread->outcome = thread->error == ESRCH ? GONE : FAILED;
        return;
    }
    u64 used = job->used;
    thread->registers_size = registers.size;
    thread->outcome = COPIED;
    u64 sp = word_at(thread->registers + job->register_sp, job->register_word);
    if (!read_stack(job, thread, 0, sp)) {
        thread->outcome = NO_ROOM;
        return;
    }
    const u8 *stack = (const u8 *)(word)job->room + thread->stack_at[0];
    u64 interrupted = interrupted_sp(stack, thread->stack_size[0], sp, job->register_word, job->frame_sp);
    if (interrupted != 0 && !read_stack(job, thread, 1, interrupted)) {
        job->used = used;
        thread->outcome = NO_ROOM;
    }
}

/* See mark_restart. */
static void restart_system_call(struct thread *thread)
{
    struct vector registers = {thread->registers, (word)thread->registers_size};
    if (mark_restart(thread->registers, thread->registers_size))
        syscall(SYS_ptrace, (long)PTRACE_SETREGSET, (long)thread->id, (long)NT_PRSTATUS, &registers);
}

/* Whether the thread is traced no more. */
static int copy_thread(struct job *job, struct thread *thread)
{
    struct stop stop;
    long id = (long)thread->id;
    u8 *ready = (u8 *)(word)job->room + job->used;
    u64 left = job->room_size - job->used;
    for (u64 at = 0; at < READY && at < left; at += PAGE)
        ready[at] = 0; /* no page faults while the thread is stopped */
    thread->error = thread->uninterruptible = thread->registers_size = 0;
    thread->stack_size[0] = thread->stack_size[1] = 0;
    if (syscall(SYS_ptrace, (long)PTRACE_SEIZE, id, 0L, 0L) == -1) {
        thread->error = *errno_location();
        thread->outcome = thread->error == ESRCH ? GONE : REFUSED;
        return 1;
    }
    thread->outcome = GONE;
    thread->asked_at = now();
    if (syscall(SYS_ptrace, (long)PTRACE_INTERRUPT, id, 0L, 0L) == -1) {
        thread->error = *errno_location();
        return 0;
    }
    wait_for_stop(job, thread->id, thread->asked_at, &stop);
    if (stop.kind == TIMED_OUT) {
        thread->outcome = NOT_STOPPED;
        thread->uninterruptible = is_uninterruptible(thread->id);
    }
    if (stop.kind != TRAPPED)
        return 0;
    thread->stopped_at = now();
    copy_stopped(job, thread);
    if (stop.by_interrupt)
        restart_system_call(thread);
    syscall(SYS_ptrace, (long)PTRACE_DETACH, id, 0L, (long)stop.signal);
    thread->resumed_at = now();
    return 1;
}

static int trace(void *argument)
{
    struct job *job = argument;
    volatile u64 *go = &job->go;
    while (*go == 0)
        syscall(SYS_sched_yield);
    int released = 1;
    while (released && job->next < job->count && !job->is_full) {
        struct thread *thread = (struct thread *)(word)job->threads + job->next;
        released = copy_thread(job, thread);
        job->is_full = thread->outcome == NO_ROOM && job->used != 0;
        if (thread->outcome == NO_ROOM && job->used == 0)
            thread->outcome = FAILED; /* it is larger than all the room there is */
        if (!job->is_full)
            job->next++;
    }
    syscall(SYS_exit, 0L);
    return 0;
}

/* --- in the process itself --- */

/* 0, or the error that ended it. It is to be called again, with the room emptied,
 * until all are copied. */
int copy_threads(struct job *job)
{
    u64 all[16], before[16]; /* a signal of the terminal is for the program, not for the child */
    int error = 0;
    for (int index = 0; index < 16; index++)
        all[index] = ~(u64)0;
    syscall(SYS_rt_sigprocmask, (long)SIG_SETMASK, all, before, 8L);
    job->is_full = 0;
    while (error == 0 && job->next < job->count && !job->is_full) {
        long dumpable = job->may_allow ? syscall(SYS_prctl, (long)PR_GET_DUMPABLE, 0L, 0L, 0L, 0L) : 1;
        job->go = 0;
        u64 next = job->next;
        int child = clone(trace, (void *)(word)job->child_stack, CLONE_VM | CLONE_FS | CLONE_FILES, job);
        if (child == -1) {
            error = *errno_location();
            break;
        }
        if (job->may_allow) {
            syscall(SYS_prctl, (long)PR_SET_PTRACER, (long)child, 0L, 0L, 0L);
            if (dumpable == 0)
                syscall(SYS_prctl, (long)PR_SET_DUMPABLE, 1L, 0L, 0L, 0L);
        }
        *(volatile u64 *)&job->go = 1;
        while (syscall(SYS_wait4, (long)child, 0L, (long)WALL, 0L) == -1 && *errno_location() == EINTR)
            continue;
        if (dumpable == 0)
            syscall(SYS_prctl, (long)PR_SET_DUMPABLE, 0L, 0L, 0L, 0L);
        if (job->next == next && !job->is_full)
            error = EINTR; /* the child was ended by someone */
    }
    syscall(SYS_rt_sigprocmask, (long)SIG_SETMASK, before, 0L, 8L);
    return error;
}

/* The ids of the process' threads, at most `most`; -1 where they cannot be listed. */
long list_threads(u64 *ids, u64 most)
{
    u64 entries[1024]; /* struct linux_dirent64: u64, u64, u16 size, u8 type, name */
    long size;
    u64 count = 0;
    long folder = syscall(SYS_openat, -100L, "/proc/self/task", (long)O_RDONLY_CLOEXEC, 0L);
    if (folder < 0)
        return -1;
    while ((size = syscall(SYS_getdents64, folder, entries, sizeof entries)) > 0) {
        for (long at = 0; at < size;) {
            const u8 *entry = (const u8 *)entries + at;
            u64 id = 0;
            for (const u8 *name = entry + 19; *name >= '0' && *name <= '9'; name++)
                id = 10 * id + (*name - '0');
            if (id != 0 && count < most)
                ids[count++] = id;
            at += (long)word_at(entry + 16, 2);
        }
    }
    syscall(SYS_close, folder);
    return (long)count;
}
