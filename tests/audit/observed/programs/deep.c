/* Call what is watched from the depth that the first word states, then from main. */
#include <stdlib.h>

int observed(int value);

static __attribute__((noinline)) int descend(int depth)
{
    int result = depth ? descend(depth - 1) : observed(depth);
    __asm__ volatile("" ::: "memory"); /* no tail call */
    return result + 1;
}

int main(int count, char **arguments)
{
    int result = count > 1 ? descend(atoi(arguments[1])) : 0;
    result += observed(1);
    __asm__ volatile("" ::: "memory");
    return result == -1;
}
