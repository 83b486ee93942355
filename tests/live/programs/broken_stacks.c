/* Crashes that break the stack: "overflow", in frames of a page each, or "wild", a call through a
 * pointer to no memory. With the second word "handled" the signal is handled on an alternate
 * stack, and the handler prints "ready" and waits. The third is the pointer. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int after_call;

__attribute__((noinline)) int overflow(int depth)
{
    volatile char room[4096];
    room[0] = (char)depth;
    return overflow(depth + 1) + room[0];
}

__attribute__((noinline)) void jump_away(long where)
{
    ((void (*)(void))where)();
    after_call++;
}

static void handle(int number)
{
    (void)!write(1, "ready\n", 6);
    for (;;)
        pause();
    (void)number;
}

int main(int count, char **words)
{
    if (count > 2 && strcmp(words[2], "handled") == 0) {
        stack_t other = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
        struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
        sigaltstack(&other, NULL);
        sigaction(SIGSEGV, &action, NULL);
        sigaction(SIGBUS, &action, NULL);
    }
    if (count > 1 && strcmp(words[1], "overflow") == 0)
        overflow(0);
    else if (count > 1 && strcmp(words[1], "handler") == 0) {
        signal(SIGUSR1, (void (*)(int))0x1234567);
        raise(SIGUSR1);
    } else
        jump_away(count > 3 ? atol(words[3]) : 0x1234567);
    return after_call;
}
