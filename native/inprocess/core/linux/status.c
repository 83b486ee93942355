/* The facts in /proc about a thread, read without allocating. */
#define _GNU_SOURCE
#include "inprocess/core/linux/shared.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

static bool hex_after(const char *text, const char *name, uint64_t *value)
{
    const char *at = strstr(text, name);
    if (at == NULL)
        return false;
    *value = 0;
    for (at += strlen(name); *at == '\t' || *at == ' '; at++)
        continue;
    for (; (*at >= '0' && *at <= '9') || (*at >= 'a' && *at <= 'f'); at++)
        *value = *value << 4 | (uint64_t)(*at <= '9' ? *at - '0' : *at - 'a' + 10);
    return true;
}

struct machtrace_thread_status machtrace_status_of(pid_t thread)
{
    struct machtrace_thread_status status = {0, 0, 0};
    char name[64] = "/proc/self/task/";
    size_t length = strlen(name);
    char digits[12];
    size_t count = 0;
    for (unsigned left = (unsigned)thread; left != 0 || count == 0; left /= 10)
        digits[count++] = (char)('0' + left % 10);
    while (count > 0)
        name[length++] = digits[--count];
    memcpy(name + length, "/status", sizeof "/status");
    int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return status;
    char text[4096];
    size_t size = 0;
    ssize_t got;
    while (size < sizeof text - 1 && (got = read(file, text + size, sizeof text - 1 - size)) > 0)
        size += (size_t)got;
    close(file);
    text[size] = '\0';
    const char *state = strstr(text, "\nState:\t");
    if (state == NULL || !hex_after(text, "\nSigPnd:", &status.pending) ||
        !hex_after(text, "\nSigBlk:", &status.blocked))
        return status;
    status.state = state[sizeof "\nState:\t" - 1];
    return status;
}
