/* A library whose function does not return. */
#include <stdio.h>
#include <unistd.h>

volatile int calls;

void run(void)
{
    puts("ready");
    fflush(stdout);
    pause();
    calls++;
}
