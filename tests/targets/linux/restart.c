/* Applies machtrace_mark_restart to each register set of standard input (each 2 bytes of size, then
 * that many of registers) and writes whether it was changed, then the registers. */
#include <stdio.h>

#include "common/linux/registers.h"

int main(void)
{
    unsigned char size[2];
    unsigned char registers[512];
    while (fread(size, 1, sizeof size, stdin) == sizeof size) {
        size_t count = (size_t)(size[0] | size[1] << 8);
        if (count > sizeof registers || fread(registers, 1, count, stdin) != count)
            return 1;
        putchar(machtrace_mark_restart(registers, count));
        fwrite(registers, 1, count, stdout);
    }
    return 0;
}
