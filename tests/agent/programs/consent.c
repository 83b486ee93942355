/* consent SPOOL THREADS COUNT: threads call a watched function COUNT times each in every state of
 * the app; then all at once while the state changes. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "machtrace.h"
int observed(int value);



static long count;
static atomic_long before, between, after;

static void *call(void *unused)
{
    (void)unused;
    for (long left = count; left > 0; left--)
        observed((int)left);
    return NULL;
}

static void *call_while_it_changes(void *unused)
{
    (void)unused;
    for (long left = count; left > 0; left--) {
        machtrace_consent_t first = machtrace_consent();
        observed((int)left);
        machtrace_consent_t last = machtrace_consent();
        if (first != last)
            atomic_fetch_add(&between, 1);
        else
            atomic_fetch_add(first == MACHTRACE_CONSENT_GIVEN ? &after : &before, 1);
    }
    return NULL;
}

static void in_threads(int number, void *(*function)(void *), void (*meanwhile)(void))
{
    pthread_t threads[64];
    for (int index = 0; index < number; index++)
        pthread_create(&threads[index], NULL, function, NULL);
    if (meanwhile != NULL)
        meanwhile();
    for (int index = 0; index < number; index++)
        pthread_join(threads[index], NULL);
}

static void give_consent(void)
{
    getppid();
}

int main(int argc, char **argv)
{
    static const machtrace_function_t functions[] = {{"observed", 0},
                                                     {"getppid", MACHTRACE_GIVES_CONSENT}};
    machtrace_options_t options = {.size = sizeof options,
                                   .spool_path = argv[1],
                                   .functions = functions,
                                   .function_count = 2};
    int threads = argc == 4 ? atoi(argv[2]) : 0;
    if (threads == 0 || machtrace_start(&options) != 0)
        return 1;
    count = atol(argv[3]);
    in_threads(threads, call, NULL); /* absent */
    in_threads(1, call, NULL);
    getppid();
    in_threads(threads, call, NULL); /* given */
    machtrace_set_background(true);
    machtrace_mark("the app is in the background");
    in_threads(threads, call, NULL);
    machtrace_set_background(false);
    machtrace_set_consent(MACHTRACE_CONSENT_WITHDRAWN);
    in_threads(threads, call, NULL);
    machtrace_set_consent(MACHTRACE_CONSENT_UNSTATED);
    in_threads(threads, call_while_it_changes, give_consent);
    machtrace_stop();
    printf("before %ld between %ld after %ld\n", (long)before, (long)between, (long)after);
    return 0;
}
