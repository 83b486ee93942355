/* A signal whose handler returns to code that no table describes, as musl's and Go's do. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#if defined(__x86_64__)
__asm__(".text\n.globl before\nbefore: ret\n"
        ".globl long_restorer\nlong_restorer: mov $15, %rax\n syscall\n"
        ".globl short_restorer\nshort_restorer: mov $15, %eax\n syscall\n");
#define SAVED_PC(context) ((context)->uc_mcontext.gregs[REG_RIP])
#elif defined(__aarch64__)
__asm__(".text\n.globl before\nbefore: ret\n"
        ".globl long_restorer\nlong_restorer: mov x8, #139\n svc #0\n"
        ".globl short_restorer\nshort_restorer: mov x8, #139\n svc #0\n");
#define SAVED_PC(context) ((context)->uc_mcontext.pc)
#endif

void long_restorer(void);
void short_restorer(void);

struct kernel_action {
    void (*handler)(int, siginfo_t *, void *);
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};

static volatile long sum;

static void handler(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)info;
    printf("ready\n%llx\n", (unsigned long long)SAVED_PC((ucontext_t *)context));
    fflush(stdout);
    for (;;)
        pause();
}

__attribute__((noinline)) static void interrupted(int depth)
{
    if (depth > 0) {
        interrupted(depth - 1);
        sum += depth;
        return;
    }
    kill(getpid(), SIGUSR1);
    for (;;)
        sum++;
}

int main(int count, char **words)
{
    (void)words;
    struct kernel_action action = {
        .handler = handler,
        .flags = SA_SIGINFO | 0x04000000 /* SA_RESTORER */,
        .restorer = count > 1 ? short_restorer : long_restorer,
    };
    if (syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, sizeof action.mask))
        return 1;
    interrupted(5);
    return 0;
}
