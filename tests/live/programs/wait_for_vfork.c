/* The calling thread waits for a child that shares its memory, in uninterruptible sleep. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void wait_for_vfork(int milliseconds);

void wait_for_vfork(int milliseconds)
{
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    pid_t child = vfork();
    if (child == 0) {
        nanosleep(&left, NULL);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}
