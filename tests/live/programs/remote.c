/* For an emulator of arm64 Linux, without a C library: a thread waits below
 * calls, and the main one stops itself by a signal below others. */

static volatile int arrived;
static volatile int sink;
static char stack[65536] __attribute__((aligned(16)));

static long call(long number, long a, long b, long c, long d)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    __asm__ volatile("svc #0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
}

__attribute__((noinline)) void wait_forever(void)
{
    arrived = 1;
    sink += (int)call(73, 0, 0, 0, 0); /* ppoll of nothing, without a limit */
}

__attribute__((noinline)) int descend(int depth)
{
    if (depth)
        return descend(depth - 1) + sink;
    wait_forever();
    return sink;
}

__attribute__((noinline)) void work(void)
{
    sink += descend(5);
}

__attribute__((noinline)) int stop_here(int depth)
{
    if (depth)
        return stop_here(depth - 1) + sink;
    while (!arrived)
        call(124, 0, 0, 0, 0);                             /* sched_yield */
    return (int)call(129, call(172, 0, 0, 0, 0), 10, 0, 0); /* kill(getpid(), SIGUSR1) */
}

void _start(void)
{
    /* clone: memory, files and signals shared, as a thread. */
    __asm__ volatile("mov x0, #0x0f00\n movk x0, #5, lsl #16\n mov x1, %0\n"
                     "mov x2, xzr\n mov x3, xzr\n mov x4, xzr\n mov x8, #220\n svc #0\n"
                     "cbnz x0, 1f\n mov x29, xzr\n mov x30, xzr\n bl work\n 1:\n"
                     :
                     : "r"(stack + sizeof stack)
                     : "x0", "x1", "x2", "x3", "x4", "x8", "x30", "memory");
    sink += stop_here(3);
    call(94, 0, 0, 0, 0); /* exit_group */
}
