/* Open and close plugins alternately, in two threads, and call a watched function in each.
 *
 *     churn SPOOL FIRST SECOND ROUNDS
 *
 * Prints how often each plugin called it, and what the agent counted.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "machtrace.h"

int observed(int value);

typedef int function(int value);

static char **paths;
static int rounds;

struct turn {
    unsigned long long calls[2], errors;
    int first;
};

/* Each opens one of them while the other thread has the other one, or none. */
static void *alternate(void *argument)
{
    struct turn *turn = argument;
    for (int round = 0; round < rounds; round++) {
        int which = (round + turn->first) % 2;
        void *handle = dlopen(paths[which], RTLD_NOW | RTLD_LOCAL);
        function *call = handle == NULL ? NULL : (function *)dlsym(handle, "plugged_call");
        if (call == NULL || call(round) != round + 2)
            turn->errors++;
        else
            turn->calls[which]++;
        if (handle != NULL && dlclose(handle) != 0)
            turn->errors++;
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    const machtrace_function_t functions[] = {{"observed", 0}};
    const machtrace_options_t options = {.size = sizeof options,
                                         .spool_path = argv[1],
                                         .interval_ms = 1,
                                         .functions = functions,
                                         .function_count = 1};
    struct turn turns[2] = {{.first = 0}, {.first = 1}};
    uint64_t counted = 0;
    pthread_t other;
    paths = argv + 2;
    rounds = atoi(argv[4]);
    observed(0); /* so that the library stays */
    int error = machtrace_start(&options);
    if (pthread_create(&other, NULL, alternate, &turns[1]) != 0)
        return 1;
    alternate(&turns[0]);
    pthread_join(other, NULL);
    machtrace_function_state("observed", &counted);
    printf("first %llu second %llu errors %llu counted %llu start %d stop %d\n",
           turns[0].calls[0] + turns[1].calls[0], turns[0].calls[1] + turns[1].calls[1],
           turns[0].errors + turns[1].errors, (unsigned long long)counted, error,
           machtrace_stop());
    return 0;
}
