/* Start when the agent is loaded, if the environment states what to watch:
 *
 *     MACHTRACE_WATCH   functions whose calls are recorded, separated by commas
 *     MACHTRACE_COUNT   functions whose calls are counted
 *     MACHTRACE_BUDGET  functions whose calls are counted, with some of their stacks
 *     MACHTRACE_CONSENT functions that are called when the user consents
 *     MACHTRACE_ENTRY   functions whose calls are recorded at their first instruction
 *     MACHTRACE_HANG    how long the main thread may be busy: 250ms
 *     MACHTRACE_CPU     processor time of the process, over a time: 80%/60s
 *     MACHTRACE_MEMORY  resident bytes: 500MB, 1GiB
 *     MACHTRACE_SPOOL   the file; %p in it becomes the process' number, %t the time: a process that
 *                       runs another program has two then. machtrace-%p.spool
 *     MACHTRACE_ROTATE  how old a file becomes before another one follows: 1h
 *     MACHTRACE_UPLOAD  where finished files are sent: http://127.0.0.1:8080/spools
 *     MACHTRACE_UPLOAD_HEADER  a line of such a request: Authorization: Bearer ...
 *
 * That is for LD_PRELOAD. Children of fork(2) record, too, if the file's name has %p. What cannot be started is stated on the standard error stream, and the
 * program runs without it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if !defined(__APPLE__)
#include <link.h>
#endif

#include "event.h"
#include "imports.h"
#include "machtrace.h"
#include "recorder.h"

#define PATH_SIZE 4096
#define DEFAULT_PATTERN "machtrace-%p.spool"

static machtrace_function_t functions[MACHTRACE_RULES_MAX];
static char names[5][PATH_SIZE];

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
    for (; *pattern != '\0' && length < PATH_SIZE - 32; pattern++) {
        if (pattern[0] == '%' && pattern[1] == 'p') {
            length += (size_t)snprintf(path + length, 16, "%d", (int)getpid());
            pattern++;
        } else if (pattern[0] == '%' && pattern[1] == 't') {
            struct timespec now;
            clock_gettime(CLOCK_MONOTONIC, &now);
            length += (size_t)snprintf(path + length, 32, "%lld.%09ld", (long long)now.tv_sec,
                                       now.tv_nsec);
            pattern++;
        } else {
            path[length++] = *pattern;
        }
    }
    path[length] = '\0';
}

struct unit {
    const char *name; /* NULL ends a list */
    uint64_t size;
};

/* Set a value that is a number and its unit; false unless it is one, up to this. */
static bool read_quantity(const char *text, const struct unit *unit, uint64_t most,
                          uint64_t *value)
{
    char *rest = NULL;
    uint64_t number = strtoull(text, &rest, 10);
    while (unit->name != NULL && strcmp(rest, unit->name) != 0)
        unit++;
    if (*text < '0' || *text > '9' || unit->name == NULL || number == 0 ||
        number > most / unit->size)
        return false;
    *value = number * unit->size;
    return true;
}

static void read_limit(const char *variable, const struct unit *units, uint64_t most,
                       uint64_t *value)
{
    const char *text = getenv(variable);
    if (text != NULL && !read_quantity(text, units, most, value))
        fprintf(stderr, "machtrace: %s is invalid\n", variable);
}

static void read_watchdog(machtrace_options_t *options)
{
    static const struct unit times[] = {{"ms", 1}, {"s", 1000}, {NULL, 0}};
    static const struct unit seconds[] = {{"s", 1}, {"", 1}, {NULL, 0}};
    static const struct unit percent[] = {{"%", 1}, {NULL, 0}};
    static const struct unit sizes[] = {
        {"", 1},          {"KB", 1000},     {"MB", 1000000},  {"GB", 1000000000},
        {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {NULL, 0}};
    char share[16] = "";
    uint64_t hang = 0, cpu = 0, window = 0;
    const char *text = getenv("MACHTRACE_CPU");
    read_limit("MACHTRACE_HANG", times, UINT32_MAX, &hang);
    read_limit("MACHTRACE_MEMORY", sizes, INT64_MAX, &options->memory_limit);
    options->hang_ms = (uint32_t)hang;
    if (text == NULL)
        return;
    size_t length = strcspn(text, "/");
    if (length < sizeof share)
        memcpy(share, text, length);
    if (read_quantity(share, percent, UINT32_MAX, &cpu) &&
        (text[length] == '\0' || read_quantity(text + length + 1, seconds, UINT32_MAX, &window))) {
        options->cpu_percent = (uint32_t)cpu;
        options->cpu_seconds = (uint32_t)window;
    } else {
        fprintf(stderr, "machtrace: MACHTRACE_CPU is invalid\n");
    }
}

static void upload_file(const char *path, void *context)
{
    const machtrace_upload_t *upload = context;
    machtrace_upload(path, context);
    if (upload->status != 0 && upload->error != 0)
        fprintf(stderr, "machtrace: %s: not uploaded, HTTP status %d\n", path, upload->status);
    else if (upload->error != 0)
        fprintf(stderr, "machtrace: %s: not uploaded: %s\n", path, strerror(upload->error));
}

static void read_rotation(machtrace_options_t *options)
{
    static const struct unit times[] = {{"s", 1}, {"m", 60}, {"h", 3600}, {NULL, 0}};
    static machtrace_upload_t upload = {.size = sizeof upload};
    static const char *header;
    uint64_t seconds = 0;
    read_limit("MACHTRACE_ROTATE", times, UINT32_MAX, &seconds);
    options->rotate_seconds = (uint32_t)seconds;
    upload.url = getenv("MACHTRACE_UPLOAD");
    header = getenv("MACHTRACE_UPLOAD_HEADER");
    upload.headers = &header;
    upload.header_count = header != NULL;
    if (upload.url == NULL)
        return;
    options->spool_finished = upload_file;
    options->spool_context = &upload;
}

static bool start(void)
{
    char path[PATH_SIZE];
    size_t count = read_list("MACHTRACE_WATCH", names[0], 0, 0);
    count = read_list("MACHTRACE_COUNT", names[1], MACHTRACE_COUNT_ONLY, count);
    count = read_list("MACHTRACE_ENTRY", names[2], MACHTRACE_AT_ENTRY, count);
    count = read_list("MACHTRACE_CONSENT", names[3], MACHTRACE_GIVES_CONSENT, count);
    count = read_list("MACHTRACE_BUDGET", names[4], MACHTRACE_BUDGET, count);
    machtrace_options_t options = {.size = sizeof options,
                                   .spool_path = path,
                                   .functions = functions,
                                   .function_count = count};
    read_watchdog(&options);
    read_rotation(&options);
    if (count == 0 && options.hang_ms == 0 && options.cpu_percent == 0 && options.memory_limit == 0)
        return false;
    const char *pattern = getenv("MACHTRACE_SPOOL");
    expand(pattern != NULL ? pattern : DEFAULT_PATTERN, path);
    int error = machtrace_start(&options);
    if (error != 0)
        fprintf(stderr, "machtrace: %s: %s\n", path, strerror(error));
    return error == 0;
}

/* --- children --- */

#if defined(__APPLE__)

static bool start_first(void)
{
    return start();
}

#else

static _Atomic bool has_looked;

static int see_nothing(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)info;
    (void)size;
    (void)data;
    return 1;
}

static void *look(void *unused)
{
    dl_iterate_phdr(see_nothing, NULL);
    atomic_store(&has_looked, true);
    return unused;
}

/* A thread of the parent may have had the loader's lock, which the child has for ever then: another
 * thread tries it. */
static bool can_use_loader(void)
{
    struct timespec pause = {0, 100000};
    pthread_t thread;
    atomic_store(&has_looked, false);
    if (pthread_create(&thread, NULL, look, NULL) != 0)
        return false;
    for (int pauses = 0; pauses < 2000 && !atomic_load(&has_looked); pauses++)
        nanosleep(&pause, NULL);
    if (atomic_load(&has_looked))
        return pthread_join(thread, NULL) == 0;
    pthread_detach(thread);
    return false;
}

/* The user's consent is that of the parent. */
static void start_in_child(void)
{
    int before = errno;
    uint16_t state = atomic_load(&machtrace_recorders.app_state);
    machtrace_ignore_enter();
    if (!can_use_loader())
        fprintf(stderr, "machtrace: process %d is not recorded: its parent used the loader\n",
                (int)getpid());
    else if (start() && state != 0)
        atomic_store(&machtrace_recorders.app_state, state);
    machtrace_ignore_leave();
    errno = before;
}

static bool start_first(void)
{
    const char *pattern = getenv("MACHTRACE_SPOOL");
    /* After the handler of machtrace_start. */
    if (!start())
        return false;
    if (strstr(pattern != NULL ? pattern : DEFAULT_PATTERN, "%p") != NULL)
        pthread_atfork(NULL, NULL, start_in_child);
    return true;
}

#endif

#if defined(__GLIBC__)
/* As the first of all images (-z initfirst) this one is initialised before libc, which has no
 * environment yet. */
__attribute__((constructor(101))) static void start_at_load(int count, char **arguments,
                                                            char **environment)
{
    (void)count;
    (void)arguments;
    if (environ == NULL) {
        environ = environment;
        machtrace_imports_before_initialisers();
        start_first();
    } else if (start_first()) {
        /* Another image is linked so that it is the first, or the process runs. */
        machtrace_mark("the agent was initialised after other images");
    }
}
#else
__attribute__((constructor(101))) static void start_at_load(void)
{
    start_first();
}
#endif

__attribute__((destructor)) static void stop_at_exit(void)
{
    machtrace_stop();
}
