/* Call two SDKs of this program from threads, then print how often each called what.
 *
 *     app THREADS CALLS
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "counts.h"

int alpha_direct(int), alpha_tail(int), alpha_chain(int), alpha_by_name(int), alpha_never(int);
int beta_direct(int), beta_tail(int), beta_chain(int), beta_by_name(int), beta_never(int);
int alpha_through(int), alpha_sizes(const char *, int), beta_sizes(const char *, int);

atomic_ulong counts[LIBRARIES][FUNCTIONS];
static int calls, file;
static volatile int is_never;

static void *run(void *argument)
{
    for (int number = 0; number < calls; number++) {
        alpha_direct(number);
        alpha_tail(number);
        beta_chain(number);
        beta_by_name(number);
        alpha_through(number);
        alpha_sizes("/", file);
        beta_sizes("/", file);
        COUNT(APP, OBSERVED);
        observed(number);
        NO_TAIL_CALL;
    }
    if (is_never)
        return (void *)(long)(alpha_never(1) + beta_never(2) + alpha_chain(1) + alpha_by_name(1));
    return argument;
}

int main(int count, char **arguments)
{
    pthread_t threads[64];
    if (count != 3)
        return 2;
    int many = atoi(arguments[1]);
    calls = atoi(arguments[2]);
    file = open("/", O_RDONLY);
    for (int thread = 0; thread < many; thread++)
        pthread_create(&threads[thread], 0, run, 0);
    for (int thread = 0; thread < many; thread++)
        pthread_join(threads[thread], 0);
    static const char *const names[] = {"app", "alpha", "beta"};
    static const char *const functions[] = {"observed", "stat", "fstat"};
    for (int library = 0; library < LIBRARIES; library++)
        for (int function = 0; function < FUNCTIONS; function++)
            printf("%s %s %lu\n", names[library], functions[function], counts[library][function]);
    return 0;
}
