/* A program that takes addresses of functions in its code: at a fixed address, they are those of its own
 * linkage table, for all images.
 *
 *     canonical PLUGIN
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int observed(void);
int call_observed(void);
int call_indirectly(void);
int call_tables(void);

typedef int function(void);

static __attribute__((noinline)) void use(const void *pointer)
{
    __asm__ volatile("" : : "r"(pointer));
}

int main(int argc, char **argv)
{
    int sum = 0;
    if (argc != 2)
        return 2;
    use((const void *)observed);
    use((const void *)dlopen);
    use((const void *)dlclose);
    use((const void *)dlsym);
    for (int number = 0; number < 10; number++) {
        sum += observed();
        sum += call_observed() + call_indirectly() + call_tables();
    }
    void *plugin = dlopen(argv[1], RTLD_LAZY);
    if (plugin == NULL)
        return 3;
    function *call = (function *)dlsym(plugin, "call_bound");
    function *found = (function *)dlsym(RTLD_DEFAULT, "observed");
    for (int number = 0; number < 10; number++)
        sum += call() + found();
    dlclose(plugin);
    printf("sum %d\n", sum);
    return 0;
}
