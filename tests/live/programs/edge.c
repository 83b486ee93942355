/* Waits with its stack pointer 32 bytes above memory that cannot be read. */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

int main(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *memory = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(memory, page, PROT_NONE);
    mprotect(memory + 2 * page, page, PROT_NONE);
    char *sp = memory + page + 32;
    puts("ready");
    fflush(stdout);
#if defined __x86_64__
    __asm__ volatile("mov %0, %%rsp\n1: mov $34, %%eax\nsyscall\njmp 1b" : : "r"(sp));
#elif defined __aarch64__
    __asm__ volatile("mov sp, %0\n1: mov x8, #73\nmov x0, #0\nmov x1, #0\nmov x2, #0\nmov x3, #0\n"
                     "svc #0\nb 1b"
                     :
                     : "r"(sp));
#else
#error "no stack switch for this machine"
#endif
}
