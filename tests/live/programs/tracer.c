/* Traces the thread named on its command line, without stopping it. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    if (count < 2 || ptrace(PTRACE_SEIZE, atoi(arguments[1]), NULL, NULL) != 0)
        return 1;
    puts("ready");
    fflush(stdout);
    pause();
}
