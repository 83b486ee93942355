/* The calling thread waits for a child that shares its memory, in uninterruptible sleep, until a
 * byte comes from a descriptor, or for a minute. */
#define _GNU_SOURCE
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

void wait_for_vfork(int descriptor);

void wait_for_vfork(int descriptor)
{
    struct pollfd end = {descriptor, POLLIN, 0};
    pid_t child = vfork();
    if (child == 0) {
        poll(&end, 1, 60000);
        _exit(0);
    }
    waitpid(child, NULL, 0);
}
