/* A library that is loaded and unloaded all the time; its constructor takes a while. */
#include <unistd.h>

static volatile int ready;

__attribute__((constructor)) static void begin(void)
{
    usleep(200);
    ready = 1;
}

__attribute__((noinline)) int call_me(int depth)
{
    if (depth == 0) {
        usleep(100);
        return 0;
    }
    return ready + call_me(depth - 1);
}
