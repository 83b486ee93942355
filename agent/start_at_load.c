/* Start when the agent is loaded, if the environment states what to watch:
 *
 *     MACHTRACE_WATCH   functions whose calls are recorded, separated by commas
 *     MACHTRACE_COUNT   functions whose calls are counted
 *     MACHTRACE_CONSENT functions that are called when the user consents
 *     MACHTRACE_ENTRY   functions whose calls are recorded at their first instruction
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

__attribute__((constructor(101))) static void start_at_load(void)
{
    char path[PATH_SIZE];
    size_t count = read_list("MACHTRACE_WATCH", names[0], 0, 0);
    count = read_list("MACHTRACE_COUNT", names[1], MACHTRACE_COUNT_ONLY, count);
    count = read_list("MACHTRACE_ENTRY", names[2], MACHTRACE_AT_ENTRY, count);
    count = read_list("MACHTRACE_CONSENT", names[3], MACHTRACE_GIVES_CONSENT, count);
    if (count == 0)
        return;
    const char *pattern = getenv("MACHTRACE_SPOOL");
    expand(pattern != NULL ? pattern : "machtrace-%p.spool", path);
    machtrace_options_t options = {.size = sizeof options,
                                   .spool_path = path,
                                   .functions = functions,
                                   .function_count = count};
    int error = machtrace_start(&options);
    if (error != 0)
        fprintf(stderr, "machtrace: %s: %s\n", path, strerror(error));
}

__attribute__((destructor)) static void stop_at_exit(void)
{
    machtrace_stop();
}
