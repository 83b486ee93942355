/* Reading /proc/self/task/TID: see thread_files.h. */
#define _GNU_SOURCE
#include "inprocess/core/linux/thread_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#define TEXT 256
#define STATUS_TEXT 4096

static int open_one(uint32_t thread, const char *name)
{
    char path[64] = "/proc/self/task/";
    size_t length = strlen(path);
    char digits[12];
    size_t count = 0;
    for (uint32_t left = thread; left != 0 || count == 0; left /= 10)
        digits[count++] = (char)('0' + left % 10);
    while (count > 0)
        path[length++] = digits[--count];
    memcpy(path + length, name, strlen(name) + 1);
    return open(path, O_RDONLY | O_CLOEXEC);
}

int machtrace_thread_files_open(uint32_t thread, struct machtrace_thread_files *files)
{
    files->status = open_one(thread, "/status");
    if (files->status < 0) {
        files->call = files->schedule = -1;
        return ESRCH;
    }
    files->call = open_one(thread, "/syscall");
    files->schedule = open_one(thread, "/schedstat");
    return 0;
}

static void close_one(int *descriptor)
{
    if (*descriptor >= 0)
        close(*descriptor);
    *descriptor = -1;
}

void machtrace_thread_files_close(struct machtrace_thread_files *files)
{
    close_one(&files->call);
    close_one(&files->schedule);
    close_one(&files->status);
}

/* The text, ended by a zero; its size, or -1. */
static ssize_t read_text(int descriptor, char *text, size_t room)
{
    ssize_t size = descriptor < 0 ? -1 : pread(descriptor, text, room - 1, 0);
    text[size < 0 ? 0 : size] = '\0';
    return size;
}

/* The next number, decimal or after 0x; false if there is none. */
static bool next_number(const char **at, uint64_t *value)
{
    const char *here = *at;
    *value = 0;
    while (*here == ' ' || *here == '\t')
        here++;
    unsigned base = 10;
    if (here[0] == '0' && here[1] == 'x') {
        base = 16;
        here += 2;
    }
    const char *first = here;
    for (;; here++) {
        unsigned digit = 99;
        if (*here >= '0' && *here <= '9')
            digit = (unsigned)(*here - '0');
        else if (*here >= 'a' && *here <= 'f')
            digit = (unsigned)(*here - 'a') + 10;
        if (digit >= base)
            break;
        *value = *value * base + digit;
    }
    *at = here;
    return here != first;
}

bool machtrace_thread_read_call(const struct machtrace_thread_files *files,
                                struct machtrace_thread_call *call)
{
    char text[TEXT];
    memset(call, 0, sizeof *call);
    errno = 0;
    ssize_t size = read_text(files->call, text, sizeof text);
    if (size < 0)
        return errno != ESRCH;
    if (text[0] == 'r') {
        call->is_known = call->is_running = true;
        return true;
    }
    const char *at = text;
    uint64_t number = 0;
    bool is_outside = text[0] == '-';
    at += is_outside;
    if (!next_number(&at, &number))
        return true;
    call->number = is_outside ? -1 : (int64_t)number;
    for (size_t index = 0; !is_outside && index < 6; index++)
        next_number(&at, &call->arguments[index]);
    next_number(&at, &call->sp);
    call->is_known = next_number(&at, &call->pc);
    return true;
}

void machtrace_thread_read_schedule(const struct machtrace_thread_files *files,
                                    struct machtrace_thread_schedule *schedule)
{
    char text[TEXT];
    uint64_t ran, delayed;
    memset(schedule, 0, sizeof *schedule);
    if (read_text(files->schedule, text, sizeof text) <= 0)
        return;
    const char *at = text;
    if (!next_number(&at, &ran) || !next_number(&at, &delayed) ||
        !next_number(&at, &schedule->turns))
        return;
    schedule->ran = (int64_t)ran;
    schedule->delayed = (int64_t)delayed;
    schedule->is_known = true;
}

static uint64_t number_after(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    uint64_t value = 0;
    if (at != NULL) {
        at += strlen(name);
        next_number(&at, &value);
    }
    return value;
}

void machtrace_thread_read_state(const struct machtrace_thread_files *files,
                                 struct machtrace_thread_state *state)
{
    char text[STATUS_TEXT];
    memset(state, 0, sizeof *state);
    if (read_text(files->status, text, sizeof text) <= 0)
        return;
    const char *at = strstr(text, "\nState:\t");
    if (at != NULL)
        state->state = at[sizeof "\nState:\t" - 1];
    state->tracer = (uint32_t)number_after(text, "\nTracerPid:");
    state->voluntary = number_after(text, "\nvoluntary_ctxt_switches:");
    state->involuntary = number_after(text, "\nnonvoluntary_ctxt_switches:");
}
