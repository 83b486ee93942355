/* Copies threads of the process that this code is loaded into; compiled there, by Frida's CModule.
 *
 * While a thread is suspended only the kernel is called: it may hold any lock of the process.
 * Names and queues are requested before. There are no headers here; sources are given in comments.
 * It has been run against made kernel calls only, never on a Mac or a phone.
 */
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

extern int task_threads(u32 task, u32 **ports, u32 *count);
extern int thread_info(u32 thread, u32 flavor, void *info, u32 *count);
extern int thread_suspend(u32 thread);
extern int thread_resume(u32 thread);
extern int thread_get_state(u32 thread, int flavor, void *state, u32 *count);
extern int mach_vm_read_overwrite(u32 task, u64 address, u64 size, u64 to, u64 *got);
extern int mach_vm_region(u32 task, u64 *address, u64 *size, int flavor, void *info, u32 *count, u32 *object);
extern int mach_port_deallocate(u32 task, u32 port);
extern int mach_vm_deallocate(u32 task, u64 address, u64 size);
extern u64 mach_absolute_time(void);
extern int mach_timebase_info(void *info);
extern u32 mach_task_self_;

enum { /* mach/thread_info.h, mach/vm_region.h, mach/vm_statistics.h, mach/kern_return.h */
    THREAD_IDENTIFIER_INFO = 4,
    THREAD_IDENTIFIER_INFO_COUNT = 6,
    THREAD_EXTENDED_INFO = 5,
    THREAD_EXTENDED_INFO_COUNT = 28,
    THREAD_NAME_AT = 48,
    THREAD_NAME_SIZE = 64,
    VM_REGION_EXTENDED_INFO = 13,
    VM_REGION_EXTENDED_INFO_COUNT = 9,
    VM_PROT_READ = 1,
    VM_MEMORY_STACK = 30,
    KERN_TERMINATED = 37,
    KERN_INVALID_ARGUMENT = 4,
    MACH_SEND_INVALID_DEST = 0x10000003,
};

enum outcome { COPIED, GONE, REFUSED, NOT_STOPPED, FAILED, NO_ROOM = 100 };

enum { RED_ZONE = 128, PAGE = 4096, READY = 65536, MAX_PARTS = 8, MAX_CONTEXTS = 1024 };

/* As of frida_linux.c; in place of a second stack, the contexts of suspended Swift functions:
 * address, and two words of each. */
struct thread {
    u64 id;
    u64 outcome;
    u64 error;
    u64 uninterruptible;
    u64 asked_at, stopped_at, resumed_at; /* mach_absolute_time in nanoseconds */
    u64 registers_size;
    u64 stack_start[2];
    u64 stack_size[2];
    u64 stack_at[2]; /* offset in the room */
    u8 registers[512];
};

struct listed {
    u64 id;
    u64 port;
    u64 queue; /* address of the pointer to the dispatch queue; 0 for none */
    u8 name[THREAD_NAME_SIZE];
};

/* Filled in by frida_agent.js, word for word. */
struct job {
    u64 threads; /* struct thread * */
    u64 count;
    u64 next;
    u64 ports; /* u64 *, one of each thread */
    u64 room;  /* u8 * */
    u64 room_size;
    u64 used;
    u64 stack_limit;
    u64 pointer_mask;
    u64 flavor, flavor_count; /* of thread_get_state */
    u64 sp_at, context_at;    /* in its state, in bytes */
    u64 unbounded;            /* bytes copied if the end of the stack is unknown */
};

/* The quotient, bit by bit: tcc has no 64-bit division for 32-bit processors. */
static u64 divided(u64 number, u32 by, u64 *rest)
{
    u64 quotient = 0, left = 0;
    for (int bit = 0; bit < 64; bit++) {
        left = left << 1 | number >> 63;
        number <<= 1;
        quotient <<= 1;
        if (left >= by) {
            left -= by;
            quotient |= 1;
        }
    }
    *rest = left;
    return quotient;
}

static u64 now(void)
{
    u32 base[2] = {1, 1};
    mach_timebase_info(base);
    u64 rest = 0;
    u64 whole = divided(mach_absolute_time(), base[1], &rest) * base[0];
    return whole + divided(rest * base[0], base[1], &rest);
}

/* Written by the main thread alone. */
struct beacon {
    volatile u64 busy_since; /* nanoseconds; 0 while the run loop waits */
    volatile u64 tasks;
};

enum { BEFORE_WAITING = 32 }; /* CFRunLoop.h */

void observe(void *observer, unsigned long activity, struct beacon *beacon)
{
    (void)observer;
    if (activity == BEFORE_WAITING) {
        beacon->busy_since = 0;
        return;
    }
    beacon->tasks++;
    if (beacon->busy_since == 0)
        beacon->busy_since = now();
}

void read_beacon(const struct beacon *beacon, u64 *times)
{
    u64 since = beacon->busy_since;
    times[0] = now();
    times[1] = since;
    times[2] = beacon->tasks;
}

static u64 word_at(const u8 *bytes)
{
    u64 value = 0;
    for (int index = 7; index >= 0; index--)
        value = value << 8 | bytes[index];
    return value;
}

/* As many bytes as can be read: all, else up to the first page that cannot. */
u64 read_memory(u64 address, u8 *to, u64 size)
{
    u64 got = 0, done = 0;
    if (size == 0 || address + size < address)
        return 0;
    if (mach_vm_read_overwrite(mach_task_self_, address, size, (u64)(unsigned long)to, &got) == 0)
        return got;
    while (done < size) {
        u64 part = PAGE - ((address + done) & (PAGE - 1));
        if (part > size - done)
            part = size - done;
        if (mach_vm_read_overwrite(mach_task_self_, address + done, part, (u64)(unsigned long)(to + done), &got) != 0)
            break;
        done += part;
    }
    return done;
}

/* The end of the stack that holds `sp`; 0 if unknown. */
static u64 stack_end(u64 sp)
{
    u64 end = 0;
    for (int part = 0; part < MAX_PARTS; part++) {
        u64 start = end == 0 ? sp : end;
        u64 asked = start, size = 0;
        u32 info[VM_REGION_EXTENDED_INFO_COUNT] = {0}, object = 0;
        u32 count = VM_REGION_EXTENDED_INFO_COUNT;
        if (mach_vm_region(mach_task_self_, &start, &size, VM_REGION_EXTENDED_INFO, info, &count, &object) != 0)
            break;
        int is_stack = info[1] == VM_MEMORY_STACK;
        if (start > asked || (info[0] & VM_PROT_READ) == 0 || (end != 0 && !is_stack))
            break;
        end = start + size;
        if (!is_stack)
            break;
    }
    return end;
}

/* A record whose saved frame pointer is tagged is an async function's; below it is its context,
 * which begins with its caller's and with the address where that resumes. */
static void copy_chain(struct job *job, struct thread *thread, u64 context)
{
    u64 *copies = (u64 *)(unsigned long)(job->room + thread->stack_at[1]);
    u64 count = (unsigned long)thread->stack_size[1] / 24;
    context &= job->pointer_mask;
    while (context != 0 && count < MAX_CONTEXTS && job->room_size - job->used >= 24) {
        for (u64 index = 0; index < count; index++)
            if (copies[3 * index] == context)
                return;
        if (read_memory(context, (u8 *)(copies + 3 * count + 1), 16) != 16)
            return;
        copies[3 * count] = context;
        context = copies[3 * count + 1] & job->pointer_mask;
        thread->stack_size[1] = 24 * ++count;
        job->used += 24;
    }
}

static void copy_contexts(struct job *job, struct thread *thread)
{
    const u8 *stack = (const u8 *)(unsigned long)job->room + thread->stack_at[0];
    u64 skipped = -thread->stack_start[0] & 7;
    thread->stack_at[1] = job->used;
    copy_chain(job, thread, word_at(thread->registers + job->context_at));
    for (u64 at = skipped + 8; at + 8 <= thread->stack_size[0]; at += 8)
        if (word_at(stack + at) >> 60 == 1)
            copy_chain(job, thread, word_at(stack + at - 8));
}

static void copy_suspended(struct job *job, struct thread *thread, u32 port)
{
    u32 count = (u32)job->flavor_count;
    int result = thread_get_state(port, (int)job->flavor, thread->registers, &count);
    if (result != 0) {
        thread->error = (u32)result;
        thread->outcome = FAILED;
        return;
    }
    thread->registers_size = 4 * (u64)count;
    thread->outcome = COPIED;
    u64 sp = word_at(thread->registers + job->sp_at) & job->pointer_mask;
    u64 known = stack_end(sp);
    u64 end = known == 0 ? sp + job->unbounded : known;
    if (end - sp > job->stack_limit)
        end = sp + job->stack_limit;
    u64 start = sp < RED_ZONE ? 0 : sp - RED_ZONE;
    thread->stack_start[0] = sp;
    if (end - start > job->room_size - job->used) {
        thread->outcome = NO_ROOM;
        return;
    }
    u8 *to = (u8 *)(unsigned long)job->room + job->used;
    u64 size = read_memory(start, to, end - start);
    if (size <= sp - start) {
        start = sp; /* the red zone lies in the guard page below the stack */
        size = read_memory(start, to, end - start);
    }
    if (size == 0)
        return;
    thread->stack_start[0] = start;
    thread->stack_size[0] = size;
    thread->stack_at[0] = job->used;
    job->used += (size + 15) & -(u64)16;
    copy_contexts(job, thread);
}

static void copy_thread(struct job *job, struct thread *thread, u32 port)
{
    u8 *ready = (u8 *)(unsigned long)job->room + job->used;
    u64 left = job->room_size - job->used;
    for (u64 at = 0; at < READY && at < left; at += PAGE)
        ready[at] = 0; /* no page faults while the thread is stopped */
    thread->error = thread->uninterruptible = thread->registers_size = 0;
    thread->stack_size[0] = thread->stack_size[1] = 0;
    thread->asked_at = now();
    int result = thread_suspend(port);
    if (result != 0) {
        thread->error = (u32)result;
        int is_gone = result == KERN_TERMINATED || result == KERN_INVALID_ARGUMENT ||
                      result == MACH_SEND_INVALID_DEST;
        thread->outcome = is_gone ? GONE : REFUSED;
        return;
    }
    thread->stopped_at = now();
    copy_suspended(job, thread, port);
    thread_resume(port);
    thread->resumed_at = now();
}

/* Always 0. It is to be called again, with the room emptied, until all are copied. */
int copy_threads(struct job *job)
{
    const u64 *ports = (const u64 *)(unsigned long)job->ports;
    while (job->next < job->count) {
        struct thread *thread = (struct thread *)(unsigned long)job->threads + job->next;
        u64 used = job->used;
        copy_thread(job, thread, (u32)ports[job->next]);
        if (thread->outcome == NO_ROOM) {
            job->used = used;
            if (used != 0)
                return 0;
            thread->outcome = FAILED; /* it is larger than all the room there is */
        }
        job->next++;
    }
    return 0;
}

/* The process' threads, at most `most`; -1 where they cannot be listed. Their ports are to be given
 * back by release_threads. */
long list_threads(struct listed *listed, u64 most)
{
    u32 *ports = (u32 *)0;
    u32 count = 0;
    u64 kept = 0;
    if (task_threads(mach_task_self_, &ports, &count) != 0)
        return -1;
    for (u32 index = 0; index < count; index++) {
        struct listed *one = listed + kept;
        u64 identifier[3] = {0, 0, 0}; /* thread_id, thread_handle, dispatch_qaddr */
        u8 extended[4 * THREAD_EXTENDED_INFO_COUNT];
        u32 size = THREAD_IDENTIFIER_INFO_COUNT;
        if (kept == most || thread_info(ports[index], THREAD_IDENTIFIER_INFO, identifier, &size) != 0) {
            mach_port_deallocate(mach_task_self_, ports[index]);
            continue; /* it has ended */
        }
        one->id = identifier[0];
        one->port = ports[index];
        one->queue = identifier[2];
        size = THREAD_EXTENDED_INFO_COUNT;
        int is_named = thread_info(ports[index], THREAD_EXTENDED_INFO, extended, &size) == 0;
        for (int at = 0; at < THREAD_NAME_SIZE; at++)
            one->name[at] = is_named ? extended[THREAD_NAME_AT + at] : 0;
        one->name[THREAD_NAME_SIZE - 1] = 0;
        kept++;
    }
    mach_vm_deallocate(mach_task_self_, (u64)(unsigned long)ports, 4 * (u64)count);
    return (long)kept;
}

void release_threads(const struct listed *listed, u64 count)
{
    for (u64 index = 0; index < count; index++)
        mach_port_deallocate(mach_task_self_, (u32)listed[index].port);
}
