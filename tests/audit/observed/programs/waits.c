/* waits: threads call a library that calls observed(); argv: threads, calls of each.
 *
 * It prints "ready", reads a line, makes the calls, prints "done", and reads another line. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

extern int enter_sdk(int value);
extern int observed(int value);

static long calls;

static void *run(void *argument)
{
    (void)argument;
    for (long i = 0; i < calls; i++)
        enter_sdk(0);
    return NULL;
}

int main(int count, char **words)
{
    enum { MOST = 64 };
    pthread_t threads[MOST];
    int number = count > 1 ? atoi(words[1]) : 1;
    char line[16];
    calls = count > 2 ? atol(words[2]) : 1;
    puts("ready");
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL)
        return 1;
    observed(0);
    for (int i = 0; i < number && i < MOST; i++)
        pthread_create(&threads[i], NULL, run, NULL);
    for (int i = 0; i < number && i < MOST; i++)
        pthread_join(threads[i], NULL);
    puts("done");
    fflush(stdout);
    return fgets(line, sizeof line, stdin) == NULL;
}
