/* Signals of crashes that do not crash, threads that come and go, then an end by a signal or a status. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sigjmp_buf back;
static volatile int handled;

static void recover(int number) {
    (void)number;
    handled++;
    siglongjmp(back, 1);
}

static void *brief(void *unused) {
    return unused;
}

int main(int count, char **words) {
    signal(SIGTRAP, SIG_IGN);
    kill(getpid(), SIGTRAP);
    for (int round = 0; round < 3; round++) {
        signal(SIGSEGV, recover);
        if (sigsetjmp(back, 1) == 0)
            *(volatile int *)0 = 1;
        pthread_t thread;
        pthread_create(&thread, 0, brief, 0);
        pthread_join(thread, 0);
    }
    if (fork() == 0)
        abort(); /* a child's crash is its own */
    printf("handled %d\n", handled);
    fflush(stdout);
    if (count > 1 && !strcmp(words[1], "exec"))
        execv(words[2], words + 2);
    if (count > 1 && !strcmp(words[1], "abort")) {
        signal(SIGABRT, SIG_DFL);
        abort();
    }
    if (count > 1 && !strcmp(words[1], "wait")) {
        getchar();
        abort();
    }
    return 5;
}
