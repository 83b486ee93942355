/* capture.h for macOS and iOS: threads are suspended by the kernel, and copied from outside.
 *
 * Compiled against Apple's headers, and sizes asserted, by a test; not run on a Mac yet.
 *
 * While anything is suspended only the kernel is called: thread_get_state, vm_read_overwrite,
 * thread_resume. Names, pthreads and images are asked for before or not at all, since a suspended
 * thread may hold the locks of malloc, of pthread's list or of dyld.
 */
#include "capture.h"

#include <errno.h>
#include <mach-o/dyld.h>
#include <mach-o/loader.h>
#include <mach/mach.h>
#include <mach/mach_time.h>
#include <mach/thread_info.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/errno.h>

#include "capture_ranges.h"
#include "own_registers.h"

#define RED_ZONE 128 /* x86_64; on arm64 Apple's ABI has one of the same size */

#if defined(__aarch64__)
typedef arm_thread_state64_t thread_registers;
#define FLAVOR ARM_THREAD_STATE64
#define FLAVOR_COUNT ARM_THREAD_STATE64_COUNT
/* mach/arm/_structs.h: x0 to x28, fp, lr, sp, pc, and two half words. With pointers signed
 * (arm64e) the names are others, and the places the same. */
#if !__has_feature(ptrauth_calls)
_Static_assert(offsetof(thread_registers, __fp) == 29 * 8, "fp");
_Static_assert(offsetof(thread_registers, __sp) == 31 * 8, "sp");
_Static_assert(offsetof(thread_registers, __pc) == 32 * 8, "pc");
#endif
_Static_assert(sizeof(thread_registers) == 272, "arm_thread_state64_t");
_Static_assert(ARM_THREAD_STATE64_COUNT == 68, "ARM_THREAD_STATE64_COUNT");
_Static_assert(ARM_THREAD_STATE64 == 6, "ARM_THREAD_STATE64");
#elif defined(__x86_64__)
typedef x86_thread_state64_t thread_registers;
#define FLAVOR x86_THREAD_STATE64
#define FLAVOR_COUNT x86_THREAD_STATE64_COUNT
/* mach/i386/_structs.h: rax, rbx, rcx, rdx, rdi, rsi, rbp, rsp, r8 to r15, rip, rflags, segments. */
_Static_assert(offsetof(thread_registers, __rbp) == 6 * 8, "rbp");
_Static_assert(offsetof(thread_registers, __rsp) == 7 * 8, "rsp");
_Static_assert(offsetof(thread_registers, __rip) == 16 * 8, "rip");
_Static_assert(sizeof(thread_registers) == 168, "x86_thread_state64_t");
_Static_assert(x86_THREAD_STATE64_COUNT == 42, "x86_THREAD_STATE64_COUNT");
_Static_assert(x86_THREAD_STATE64 == 4, "x86_THREAD_STATE64");
#endif
_Static_assert(sizeof(thread_registers) <= MACHTRACE_OWN_REGISTERS_MAX, "registers");
_Static_assert(sizeof(thread_identifier_info_data_t) == 24, "thread_identifier_info");
_Static_assert(THREAD_IDENTIFIER_INFO_COUNT == 6, "THREAD_IDENTIFIER_INFO_COUNT");
_Static_assert(sizeof(mach_port_t) == 4, "mach_port_t");
_Static_assert(sizeof(vm_address_t) == 8, "vm_address_t");

/* Where the stack pointer is in the registers, in bytes. */
static uint64_t stack_pointer(const unsigned char *registers)
{
    uint64_t sp;
#if defined(__aarch64__)
    memcpy(&sp, registers + 31 * 8, sizeof sp);
#else
    memcpy(&sp, registers + 7 * 8, sizeof sp);
#endif
    return sp;
}

static int64_t now(void)
{
    static mach_timebase_info_data_t base; /* of numbers that never change */
    if (base.denom == 0)
        mach_timebase_info(&base);
    return (int64_t)(mach_absolute_time() / base.denom * base.numer);
}

/* --- threads, by id --- */

struct port_list {
    thread_act_array_t ports;
    mach_msg_type_number_t count;
};

static void release_ports(struct port_list *list)
{
    for (mach_msg_type_number_t index = 0; index < list->count; index++)
        mach_port_deallocate(mach_task_self(), list->ports[index]);
    if (list->ports != NULL)
        vm_deallocate(mach_task_self(), (vm_address_t)list->ports,
                      list->count * sizeof *list->ports);
    *list = (struct port_list){NULL, 0};
}

static kern_return_t take_ports(struct port_list *list)
{
    *list = (struct port_list){NULL, 0};
    kern_return_t result = task_threads(mach_task_self(), &list->ports, &list->count);
    if (result != KERN_SUCCESS)
        *list = (struct port_list){NULL, 0};
    return result;
}

static uint64_t id_of(thread_act_t port, uint64_t *pthread)
{
    thread_identifier_info_data_t info;
    mach_msg_type_number_t count = THREAD_IDENTIFIER_INFO_COUNT;
    if (thread_info(port, THREAD_IDENTIFIER_INFO, (thread_info_t)&info, &count) != KERN_SUCCESS)
        return 0;
    if (pthread != NULL)
        *pthread = info.thread_handle; /* where its thread-specific data is, in pthread_t */
    return info.thread_id;
}

uint64_t machtrace_own_id(void)
{
    thread_act_t port = mach_thread_self();
    uint64_t id = id_of(port, NULL);
    mach_port_deallocate(mach_task_self(), port);
    return id;
}

int64_t machtrace_own_list(uint64_t *ids, size_t room)
{
    struct port_list list;
    if (take_ports(&list) != KERN_SUCCESS)
        return -1;
    int64_t count = 0;
    for (mach_msg_type_number_t index = 0; index < list.count; index++) {
        uint64_t id = id_of(list.ports[index], NULL);
        if (id == 0)
            continue; /* it has ended */
        if ((size_t)count < room)
            ids[count] = id;
        count++;
    }
    release_ports(&list);
    return count;
}

/* --- copying; nothing but the kernel is called while a thread is suspended --- */

static uint64_t stack_end(const struct machtrace_own_capture *capture, uint64_t sp)
{
    uint64_t end = machtrace_range_end(capture, sp);
    return end - sp > capture->stack_limit ? sp + capture->stack_limit : end;
}

/* As much of the range as can be read: all of it, else up to the first page that cannot. */
static size_t read_memory(uint64_t start, unsigned char *to, size_t size)
{
    const uint64_t page = 4096;
    vm_size_t got = 0;
    if (vm_read_overwrite(mach_task_self(), (vm_address_t)start, size, (vm_address_t)to, &got) ==
        KERN_SUCCESS)
        return got;
    size_t done = 0;
    while (done < size) {
        size_t part = (size_t)(page - (start + done) % page);
        if (part > size - done)
            part = size - done;
        if (vm_read_overwrite(mach_task_self(), (vm_address_t)(start + done), part,
                              (vm_address_t)(to + done), &got) != KERN_SUCCESS)
            break;
        done += part;
    }
    return done;
}

static void add_stack(const struct machtrace_own_capture *capture,
                      struct machtrace_own_thread *thread, uint64_t sp)
{
    uint64_t end = stack_end(capture, sp);
    uint64_t starts[2] = {sp < RED_ZONE ? 0 : sp - RED_ZONE, sp};
    size_t size = 0;
    uint64_t start = sp;
    for (int attempt = 0; attempt < 2 && size == 0; attempt++) {
        start = starts[attempt]; /* the red zone may lie in the guard page */
        size_t wanted = end > start ? (size_t)(end - start) : 0;
        if (wanted > thread->room)
            wanted = thread->room;
        size = wanted == 0 ? 0 : read_memory(start, thread->buffer, wanted);
    }
    thread->stacks[0] = (struct machtrace_own_stack){start, size, size == 0 ? NULL : thread->buffer};
    thread->stack_count = 1;
}

static void copy_suspended(const struct machtrace_own_capture *capture,
                           struct machtrace_own_thread *thread, thread_act_t port)
{
    mach_msg_type_number_t count = FLAVOR_COUNT;
    kern_return_t result =
        thread_get_state(port, FLAVOR, (thread_state_t)(void *)thread->registers, &count);
    if (result != KERN_SUCCESS) {
        thread->error = result;
        thread->outcome = MACHTRACE_OWN_FAILED;
        return;
    }
    thread->registers_size = sizeof(thread_registers);
    add_stack(capture, thread, stack_pointer(thread->registers));
    thread->outcome = MACHTRACE_OWN_COPIED;
}

static bool suspend(struct machtrace_own_thread *thread, thread_act_t port)
{
    thread->asked_at = now();
    kern_return_t result = thread_suspend(port);
    if (result != KERN_SUCCESS) {
        thread->error = result;
        thread->outcome =
            result == KERN_TERMINATED ? MACHTRACE_OWN_GONE : MACHTRACE_OWN_REFUSED;
        return false;
    }
    thread->stopped_at = now();
    return true;
}

static void resume(struct machtrace_own_thread *thread, thread_act_t port)
{
    thread_resume(port);
    thread->resumed_at = now();
}

void machtrace_own_copy(struct machtrace_own_capture *capture)
{
    thread_act_t ports[MACHTRACE_OWN_THREADS_MAX];
    bool suspended[MACHTRACE_OWN_THREADS_MAX];
    struct port_list list;
    if (capture->thread_count > MACHTRACE_OWN_THREADS_MAX)
        capture->thread_count = MACHTRACE_OWN_THREADS_MAX;
    uint64_t own = machtrace_own_id(); /* suspended, it would stay so */
    kern_return_t result = take_ports(&list);
    for (size_t index = 0; index < capture->thread_count; index++) {
        struct machtrace_own_thread *thread = &capture->threads[index];
        thread->outcome = result == KERN_SUCCESS ? MACHTRACE_OWN_GONE : MACHTRACE_OWN_REFUSED;
        thread->error = result;
        thread->uninterruptible = 0;
        thread->pthread = 0;
        thread->registers_size = 0;
        thread->stack_count = 0;
        thread->asked_at = thread->stopped_at = thread->resumed_at = now();
        ports[index] = MACH_PORT_NULL;
        suspended[index] = false;
    }
    for (mach_msg_type_number_t place = 0; place < list.count; place++) {
        uint64_t pthread = 0;
        uint64_t id = id_of(list.ports[place], &pthread);
        for (size_t index = 0; id != 0 && id != own && index < capture->thread_count; index++) {
            if (capture->threads[index].id == id) {
                ports[index] = list.ports[place];
                capture->threads[index].pthread = pthread;
            }
        }
    }
    /* All at once: each is copied after the last was suspended. */
    for (size_t index = 0; capture->together && index < capture->thread_count; index++)
        suspended[index] =
            ports[index] != MACH_PORT_NULL && suspend(&capture->threads[index], ports[index]);
    for (size_t index = 0; index < capture->thread_count; index++) {
        struct machtrace_own_thread *thread = &capture->threads[index];
        if (!capture->together && ports[index] != MACH_PORT_NULL)
            suspended[index] = suspend(thread, ports[index]);
        if (!suspended[index])
            continue;
        copy_suspended(capture, thread, ports[index]);
        if (!capture->together)
            resume(thread, ports[index]);
    }
    for (size_t index = 0; capture->together && index < capture->thread_count; index++)
        if (suspended[index])
            resume(&capture->threads[index], ports[index]);
    release_ports(&list);
}

void machtrace_own_copy_here(const struct machtrace_own_capture *capture,
                             struct machtrace_own_thread *thread)
{
    struct machtrace_here here;
    memset(&here, 0, sizeof here);
    MACHTRACE_TAKE_HERE(&here);
    uint64_t words[MACHTRACE_OWN_REGISTERS_MAX / 8] = {0};
#if defined(__aarch64__)
    for (size_t index = 0; index < 32; index++)
        words[index] = here.values[index]; /* x0 to x30, sp */
    words[32] = here.pc;
#else
    static const unsigned char order[16] = {0, 3, 2, 1, 5, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    for (size_t index = 0; index < 16; index++)
        words[index] = here.values[order[index]];
    words[16] = here.pc;
#endif
    thread->error = 0;
    thread->uninterruptible = 0;
    thread->pthread = (uint64_t)(uintptr_t)pthread_self();
    thread->registers_size = sizeof(thread_registers);
    memcpy(thread->registers, words, thread->registers_size);
    thread->asked_at = thread->stopped_at = now();
    add_stack(capture, thread, here.values[MACHTRACE_HERE_SP]);
    thread->resumed_at = thread->stopped_at;
    thread->outcome = MACHTRACE_OWN_COPIED;
}

/* --- one capture at a time --- */

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

int machtrace_own_begin(int signal)
{
    if (signal != 0)
        return EINVAL;
    now(); /* the time base is asked for before anything is suspended */
    pthread_mutex_lock(&turn);
    return 0;
}

void machtrace_own_end(void)
{
    pthread_mutex_unlock(&turn);
}

int machtrace_own_signal(void)
{
    return 0;
}

/* --- images: dyld says when one comes or goes --- */

static _Atomic uint64_t changes;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void image_changed(const struct mach_header *header, intptr_t slide)
{
    (void)header;
    (void)slide;
    atomic_fetch_add(&changes, 1);
}

static void watch_images(void)
{
    _dyld_register_func_for_add_image(image_changed);
    _dyld_register_func_for_remove_image(image_changed);
}

uint64_t machtrace_own_image_changes(void)
{
    pthread_once(&once, watch_images);
    return atomic_load(&changes);
}

extern const struct mach_header_64 __dso_handle; /* of this very image, from the linker */

struct machtrace_own_range machtrace_own_image(void)
{
    uint64_t base = (uint64_t)(uintptr_t)&__dso_handle;
    const struct load_command *command = (const struct load_command *)(const void *)(&__dso_handle + 1);
    uint64_t slide = 0;
    uint64_t end = 0;
    for (uint32_t index = 0; index < __dso_handle.ncmds; index++) {
        if (command->cmd == LC_SEGMENT_64) {
            const struct segment_command_64 *segment = (const void *)command;
            if (strcmp(segment->segname, "__TEXT") == 0)
                slide = base - segment->vmaddr;
            if (segment->filesize != 0 && segment->vmaddr + segment->vmsize > end)
                end = segment->vmaddr + segment->vmsize;
        }
        command = (const void *)((const char *)command + command->cmdsize);
    }
    return (struct machtrace_own_range){base, end + slide};
}

uint64_t machtrace_own_stack_end(void)
{
    return (uint64_t)(uintptr_t)pthread_get_stackaddr_np(pthread_self());
}
