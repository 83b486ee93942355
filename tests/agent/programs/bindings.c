/* Call a watched function from several images, which the loader may bind to different ones.
 *
 *     bindings scopes PLUGIN FLAGS | threads COUNT | churn PLUGIN ROUNDS
 *
 * The results are the numbers of the libraries that have the function: see definition.c.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int observed(void);
int call_observed(void);
int call_later(void) __attribute__((weak));

typedef int function(void);

static function *find(void *plugin, const char *name)
{
    function *found = (function *)dlsym(plugin, name);
    if (found == NULL)
        exit(3);
    return found;
}

static int scopes(const char *path, int flags)
{
    int program = 0, library = 0, bound = 0, inner = 0, later = 0;
    void *plugin = dlopen(path, RTLD_LAZY | flags);
    if (plugin == NULL)
        return 3;
    for (int number = 0; number < 10; number++) {
        program += observed();
        library += call_observed();
        bound += find(plugin, "call_bound")();
        inner += find(plugin, "call_inner")();
        if ((flags & RTLD_GLOBAL) != 0 && call_later != NULL)
            later += call_later();
    }
    printf("program %d library %d plugin %d inner %d later %d\n", program / 10, library / 10,
           bound / 10, inner / 10, later / 10);
    return 0;
}

static pthread_barrier_t barrier;

/* All bind the slots at once. */
static void *call_often(void *argument)
{
    long wrong = 0;
    int expected = *(int *)argument;
    pthread_barrier_wait(&barrier);
    for (int number = 0; number < 1000; number++)
        wrong += observed() != expected || call_observed() != expected;
    return (void *)wrong;
}

static int threads(int count, int expected)
{
    pthread_t running[64];
    long wrong = 0;
    pthread_barrier_init(&barrier, NULL, (unsigned)count);
    for (int index = 0; index < count && index < 64; index++)
        pthread_create(&running[index], NULL, call_often, &expected);
    for (int index = 0; index < count && index < 64; index++) {
        void *result;
        pthread_join(running[index], &result);
        wrong += (long)result;
    }
    printf("wrong %ld\n", wrong);
    return 0;
}

/* The plugin is at another address each time. */
static int churn(const char *path, int rounds)
{
    int sum = 0, moved = 0;
    void *last = NULL;
    for (int number = 0; number < rounds; number++) {
        void *plugin = dlopen(path, RTLD_LAZY);
        if (plugin == NULL)
            return 3;
        function *call = find(plugin, "call_inner");
        sum += call();
        moved += (void *)call != last;
        last = (void *)call;
        dlclose(plugin);
        mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        mmap(NULL, (size_t)1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    }
    printf("sum %d moved %d\n", sum, moved);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "scopes") == 0)
        return scopes(argv[2], atoi(argv[3]));
    if (argc == 4 && strcmp(argv[1], "threads") == 0)
        return threads(atoi(argv[2]), atoi(argv[3]));
    if (argc == 4 && strcmp(argv[1], "churn") == 0)
        return churn(argv[2], atoi(argv[3]));
    return 2;
}
