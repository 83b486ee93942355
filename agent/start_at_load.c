/* Start when the agent is loaded, if the environment states what to watch:
 *
 *     MACHTRACE_WATCH   functions whose calls are recorded, separated by commas
 *     MACHTRACE_COUNT   functions whose calls are counted
 *     MACHTRACE_CONSENT functions that are called when the user consents
 *     MACHTRACE_ENTRY   functions whose calls are recorded at their first instruction
 *     MACHTRACE_HANG    how long the main thread may be busy: 250ms
 *     MACHTRACE_CPU     processor time of the process, over a time: 80%/60s
 *     MACHTRACE_MEMORY  resident bytes: 500MB
 *     MACHTRACE_SPOOL   the file; %p in it becomes the process' number. machtrace-%p.spool
 *
 * That is for LD_PRELOAD. What cannot be started is stated on the standard error stream, and the
 * program runs without it.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "event.h"
#include "machtrace.h"

#define PATH_SIZE 4096

static machtrace_function_t functions[MACHTRACE_RULES_MAX];
static char names[4][PATH_SIZE];

/* Append the functions of a list; how many there are then. */
static size_t read_list(const char *variable, char *copy, uint32_t flags, size_t count)
{
    const char *list = getenv(variable);
    char *rest = NULL;
    if (list == NULL)
        return count;
    if (strlen(list) >= PATH_SIZE) {
        fprintf(stderr, "machtrace: %s is too long\n", variable);
        return count;
    }
    strcpy(copy, list);
    for (char *name = strtok_r(copy, ", ", &rest); name != NULL && count < MACHTRACE_RULES_MAX;
         name = strtok_r(NULL, ", ", &rest))
        functions[count++] = (machtrace_function_t){name, flags};
    return count;
}

static void expand(const char *pattern, char *path)
{
    size_t length = 0;
    for (; *pattern != '\0' && length < PATH_SIZE - 16; pattern++) {
        if (pattern[0] == '%' && pattern[1] == 'p') {
            length += (size_t)snprintf(path + length, 16, "%d", (int)getpid());
            pattern++;
        } else {
            path[length++] = *pattern;
        }
    }
    path[length] = '\0';
}

/* A number and its unit, in the smallest of these units; 0 if the variable is not set. */
static uint64_t read_quantity(const char *variable, const char *text, const char *const units[],
                              uint64_t factor)
{
    char *rest = NULL;
    if (text == NULL)
        return 0;
    uint64_t value = strtoull(text, &rest, 10), scale = 1;
    for (size_t unit = 0; rest != text && units[unit] != NULL; unit++) {
        if (strcmp(rest, units[unit]) == 0 && value < UINT32_MAX)
            return value * scale;
        scale *= factor;
    }
    fprintf(stderr, "machtrace: %s is invalid\n", variable);
    return 0;
}

static void read_watchdog(machtrace_options_t *options)
{
    static const char *const times[] = {"ms", "s", NULL};
    static const char *const seconds[] = {"s", "", NULL};
    static const char *const percent[] = {"%", NULL};
    static const char *const sizes[] = {"", "KB", "MB", "GB", NULL};
    char share[16];
    const char *cpu = getenv("MACHTRACE_CPU");
    options->hang_ms =
        (uint32_t)read_quantity("MACHTRACE_HANG", getenv("MACHTRACE_HANG"), times, 1000);
    options->memory_limit =
        read_quantity("MACHTRACE_MEMORY", getenv("MACHTRACE_MEMORY"), sizes, 1000);
    if (cpu == NULL)
        return;
    size_t length = strcspn(cpu, "/");
    snprintf(share, sizeof share, "%.*s", length < sizeof share ? (int)length : 0, cpu);
    options->cpu_percent = (uint32_t)read_quantity("MACHTRACE_CPU", share, percent, 1);
    if (cpu[length] == '/')
        options->cpu_seconds =
            (uint32_t)read_quantity("MACHTRACE_CPU", cpu + length + 1, seconds, 1);
}

__attribute__((constructor(101))) static void start_at_load(void)
{
    char path[PATH_SIZE];
    size_t count = read_list("MACHTRACE_WATCH", names[0], 0, 0);
    count = read_list("MACHTRACE_COUNT", names[1], MACHTRACE_COUNT_ONLY, count);
    count = read_list("MACHTRACE_ENTRY", names[2], MACHTRACE_AT_ENTRY, count);
    count = read_list("MACHTRACE_CONSENT", names[3], MACHTRACE_GIVES_CONSENT, count);
    machtrace_options_t options = {.size = sizeof options,
                                   .spool_path = path,
                                   .functions = functions,
                                   .function_count = count};
    read_watchdog(&options);
    if (count == 0 && options.hang_ms == 0 && options.cpu_percent == 0 && options.memory_limit == 0)
        return;
    const char *pattern = getenv("MACHTRACE_SPOOL");
    expand(pattern != NULL ? pattern : "machtrace-%p.spool", path);
    int error = machtrace_start(&options);
    if (error != 0)
        fprintf(stderr, "machtrace: %s: %s\n", path, strerror(error));
}

__attribute__((destructor)) static void stop_at_exit(void)
{
    machtrace_stop();
}
