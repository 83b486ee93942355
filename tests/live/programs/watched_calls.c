/* watched_calls THREADS COUNT: after a line of input, each thread calls two functions COUNT times in
 * all; the program counts the calls itself. It prints the addresses of what is watched, then the
 * counts. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

static atomic_long counts[2];
__attribute__((used)) atomic_long own_calls __asm__("own_calls") __attribute__((visibility("hidden")));
static long count;

/* Its first instruction uses its own address. */
long uses_its_address(long n);
#if defined(__x86_64__)
__asm__(".text\n.type uses_its_address, @function\nuses_its_address:\n"
        "lea own_calls(%rip), %rax\nlock incq (%rax)\nlea (%rdi,%rdi,2), %rax\nret\n"
        ".size uses_its_address, . - uses_its_address\n");
#else
__asm__(".text\n.type uses_its_address, %function\nuses_its_address:\n"
        "adrp x9, own_calls\nadd x9, x9, :lo12:own_calls\n1: ldaxr x10, [x9]\nadd x10, x10, 1\n"
        "stlxr w11, x10, [x9]\ncbnz w11, 1b\nadd x0, x0, x0, lsl 1\nret\n"
        ".size uses_its_address, . - uses_its_address\n");
#endif

NOINLINE static long pushes(long n) /* its first instruction is not */
{
    char text[64];
    memset(text, (int)n, sizeof text);
    __asm__ volatile("" : : "r"(text) : "memory");
    atomic_fetch_add(&counts[0], 1);
    return uses_its_address(text[n & 63]) + 1;
}

NOINLINE static long also_pushes(long n)
{
    char text[80];
    memset(text, (int)n, sizeof text);
    __asm__ volatile("" : : "r"(text) : "memory");
    atomic_fetch_add(&counts[1], 1);
    return uses_its_address(text[n & 63]) + 2;
}

static void *work(void *sum)
{
    long total = 0;
    for (long i = 0; i < count; i++)
        total += i % 2 ? pushes(i) : also_pushes(i);
    *(long *)sum = total;
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t threads[64];
    long sums[64];
    int number = atoi(argv[1]);
    char line[8];
    if (argc != 3)
        return 2;
    count = atol(argv[2]);
    printf("ready\n%p %p %p\n", (void *)pushes, (void *)also_pushes, (void *)uses_its_address);
    fflush(stdout);
    if (fgets(line, sizeof line, stdin) == NULL)
        return 2;
    for (int i = 0; i < number; i++)
        pthread_create(&threads[i], NULL, work, &sums[i]);
    for (int i = 0; i < number; i++)
        pthread_join(threads[i], NULL);
    printf("%ld %ld %ld\n", (long)counts[0], (long)counts[1], (long)own_calls);
    fflush(stdout);
    pause();
    return 0;
}
