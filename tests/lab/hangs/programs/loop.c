/* A program with a main loop. It executes commands from standard input and states when each began and ended.
 *
 *   loop MODE [LAUNCH_MS]
 *
 * A command is a line "ID ACTION MS COUNT". It is executed as one callback of the loop. With MS = 0 it lasts until a byte arrives at
 * descriptor 4. After the callback one JSON line goes to descriptor 3; times are CLOCK_BOOTTIME nanoseconds. `switches` are the
 * voluntary context switches of the callback, which began at `entered`: a thread that waits once and is stopped by nobody has one.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TRUTH 3
#define RELEASE 4
#define MS 1000000ll
#define CULPRIT __attribute__((noinline, noclone, optimize("no-optimize-sibling-calls")))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

static int64_t now_of(clockid_t clock)
{
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static long voluntary_switches(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

static void sleep_ns(int64_t ns)
{
    struct timespec rest = {ns / 1000000000, ns % 1000000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, &rest) == EINTR)
        ;
}

/* The helper ends what the main thread waits for. */

enum act { ACT_FLAG, ACT_PIPE, ACT_SOCKET, ACT_ACCEPT, ACT_FLOCK, ACT_MUTEX, ACT_RWLOCK, ACT_CONDITION, ACT_SEMAPHORE };
struct request {
    enum act act;
    long ms;
};

static int request_pipe[2], data_pipe[2], data_sockets[2], listener = -1;
static struct sockaddr_un listener_address = {.sun_family = AF_UNIX};
static pthread_mutex_t contended_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t contended_rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_mutex_t condition_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t condition = PTHREAD_COND_INITIALIZER;
static sem_t semaphore, is_taken;
static bool is_signalled;
static atomic_bool is_released;
static char lock_path[64], data_path[64];

static void until_release(long ms)
{
    char byte;
    if (ms > 0)
        sleep_ns(ms * MS);
    else
        while (read(RELEASE, &byte, 1) < 0 && errno == EINTR)
            ;
}

static void *helper_main(void *unused)
{
    struct request request;
    (void)unused;
    int lock_file = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    while (read(request_pipe[0], &request, sizeof request) == sizeof request) {
        if (request.act == ACT_FLOCK)
            flock(lock_file, LOCK_EX);
        else if (request.act == ACT_MUTEX)
            pthread_mutex_lock(&contended_mutex);
        else if (request.act == ACT_RWLOCK)
            pthread_rwlock_wrlock(&contended_rwlock);
        sem_post(&is_taken);
        until_release(request.ms);
        switch (request.act) {
        case ACT_FLAG:
            atomic_store(&is_released, true);
            break;
        case ACT_PIPE:
            (void)!write(data_pipe[1], "x", 1);
            break;
        case ACT_SOCKET:
            (void)!write(data_sockets[1], "x", 1);
            break;
        case ACT_ACCEPT:
            for (int count = 0; count < 2; ++count)
                close(accept(listener, NULL, NULL));
            break;
        case ACT_FLOCK:
            flock(lock_file, LOCK_UN);
            break;
        case ACT_MUTEX:
            pthread_mutex_unlock(&contended_mutex);
            break;
        case ACT_RWLOCK:
            pthread_rwlock_unlock(&contended_rwlock);
            break;
        case ACT_CONDITION:
            pthread_mutex_lock(&condition_mutex);
            is_signalled = true;
            pthread_cond_signal(&condition);
            pthread_mutex_unlock(&condition_mutex);
            break;
        case ACT_SEMAPHORE:
            sem_post(&semaphore);
            break;
        }
    }
    return NULL;
}

static void ask_helper(enum act act, long ms)
{
    struct request request = {act, ms};
    (void)!write(request_pipe[1], &request, sizeof request);
    while (sem_wait(&is_taken))
        ;
}

/* Callbacks. The function that is the culprit has the time between `begin` and `end`. */

struct task {
    long id, ms, count;
    char action[32];
};

static struct {
    int64_t entered, began, ended, cpu;
    long switches;
    char more[65536];
} truth;

static void begin(void)
{
    truth.more[0] = 0;
    truth.switches = voluntary_switches();
    truth.cpu = now_of(CLOCK_THREAD_CPUTIME_ID);
    truth.began = now_of(CLOCK_BOOTTIME);
}

static void end(void)
{
    truth.ended = now_of(CLOCK_BOOTTIME);
    truth.cpu = now_of(CLOCK_THREAD_CPUTIME_ID) - truth.cpu;
    truth.switches = voluntary_switches() - truth.switches;
}

/* Whether a loop that burns `ms` of processor time, or until it is released, is over. Stops tend to hit the system call of this clock,
 * so that it is queried once in about a millisecond. */
static inline __attribute__((always_inline)) bool is_over(int64_t deadline)
{
    for (volatile int spin = 0; spin < 400000; ++spin)
        ;
    return deadline ? now_of(CLOCK_THREAD_CPUTIME_ID) >= deadline : atomic_load(&is_released);
}

static int64_t cpu_deadline(long ms)
{
    if (ms > 0)
        return now_of(CLOCK_THREAD_CPUTIME_ID) + ms * MS;
    atomic_store(&is_released, false);
    ask_helper(ACT_FLAG, 0);
    return 0;
}

CULPRIT static void sleep_in_callback(const struct task *task)
{
    if (task->ms == 0)
        ask_helper(ACT_PIPE, 0);
    begin();
    if (task->ms > 0)
        sleep_ns(task->ms * MS);
    else {
        struct timespec hour = {3600, 0};
        struct pollfd data = {data_pipe[0], POLLIN, 0};
        char byte;
        ppoll(&data, 1, &hour, NULL);
        (void)!read(data_pipe[0], &byte, 1);
    }
    end();
    KEEP_FRAME();
}

CULPRIT static void read_config(const struct task *task)
{
    char byte;
    ask_helper(ACT_PIPE, task->ms);
    begin();
    while (read(data_pipe[0], &byte, 1) < 0 && errno == EINTR)
        ;
    end();
    KEEP_FRAME();
}

CULPRIT static void receive_reply(const struct task *task)
{
    char byte;
    ask_helper(ACT_SOCKET, task->ms);
    begin();
    while (recv(data_sockets[0], &byte, 1, 0) < 0 && errno == EINTR)
        ;
    end();
    KEEP_FRAME();
}

CULPRIT static void connect_to_server(const struct task *task)
{
    /* The first connection fills the queue of length 0, so that the second waits for an accept. */
    int first = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), second = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    socklen_t size = sizeof listener_address.sun_family + 1 + strlen(listener_address.sun_path + 1);
    connect(first, (struct sockaddr *)&listener_address, size);
    ask_helper(ACT_ACCEPT, task->ms);
    begin();
    connect(second, (struct sockaddr *)&listener_address, size);
    end();
    close(first);
    close(second);
    KEEP_FRAME();
}

CULPRIT static void lock_file_in_callback(const struct task *task)
{
    static int file = -1;
    if (file < 0)
        file = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ask_helper(ACT_FLOCK, task->ms);
    begin();
    while (flock(file, LOCK_EX) && errno == EINTR)
        ;
    end();
    flock(file, LOCK_UN);
    KEEP_FRAME();
}

CULPRIT static void take_mutex(const struct task *task)
{
    ask_helper(ACT_MUTEX, task->ms);
    begin();
    pthread_mutex_lock(&contended_mutex);
    end();
    pthread_mutex_unlock(&contended_mutex);
    KEEP_FRAME();
}

CULPRIT static void take_rwlock(const struct task *task)
{
    ask_helper(ACT_RWLOCK, task->ms);
    begin();
    pthread_rwlock_rdlock(&contended_rwlock);
    end();
    pthread_rwlock_unlock(&contended_rwlock);
    KEEP_FRAME();
}

CULPRIT static void wait_for_condition(const struct task *task)
{
    ask_helper(ACT_CONDITION, task->ms);
    begin();
    pthread_mutex_lock(&condition_mutex);
    while (!is_signalled)
        pthread_cond_wait(&condition, &condition_mutex);
    is_signalled = false;
    pthread_mutex_unlock(&condition_mutex);
    end();
    KEEP_FRAME();
}

CULPRIT static void wait_for_semaphore(const struct task *task)
{
    ask_helper(ACT_SEMAPHORE, task->ms);
    begin();
    while (sem_wait(&semaphore))
        ;
    end();
    KEEP_FRAME();
}

static void *sleeper_main(void *ms)
{
    until_release((long)(intptr_t)ms);
    return NULL;
}

CULPRIT static void join_worker(const struct task *task)
{
    pthread_t worker;
    begin();
    pthread_create(&worker, NULL, sleeper_main, (void *)(intptr_t)task->ms);
    pthread_join(worker, NULL);
    end();
    KEEP_FRAME();
}

CULPRIT static void run_child(const struct task *task)
{
    begin();
    pid_t child = fork();
    if (child == 0) {
        until_release(task->ms);
        _exit(0);
    }
    while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    end();
    KEEP_FRAME();
}

/* The kernel lets the parent of vfork wait in state D, as for a disk. */
CULPRIT static void wait_in_vfork(const struct task *task)
{
    struct timespec rest = {task->ms / 1000, task->ms % 1000 * MS};
    char byte;
    begin();
    pid_t child = vfork();
    if (child == 0) {
        if (task->ms > 0)
            nanosleep(&rest, NULL);
        else
            (void)!read(RELEASE, &byte, 1);
        _exit(0);
    }
    end();
    waitpid(child, NULL, 0);
    KEEP_FRAME();
}

CULPRIT static void burn_in_one(const struct task *task)
{
    int64_t deadline = cpu_deadline(task->ms);
    begin();
    while (!is_over(deadline))
        ;
    end();
    KEEP_FRAME();
}

/* Note when this thread was not running for 20 us or more, and whether it had been stopped: a stop is a voluntary switch, a
 * preemption is not. */
CULPRIT static void burn_by_the_clock(const struct task *task)
{
    size_t used = 0;
    begin();
    char *more = truth.more;
    used += snprintf(more, sizeof truth.more, ", \"gaps\": [");
    long switches = voluntary_switches();
    int64_t last = now_of(CLOCK_MONOTONIC), until = last + task->ms * MS;
    while (last < until) {
        int64_t time = now_of(CLOCK_MONOTONIC);
        if (time - last >= 20000) {
            long more_switches = voluntary_switches();
            if (used < sizeof truth.more - 64)
                used += snprintf(more + used, sizeof truth.more - used, "%s[%lld, %ld]", more[used - 1] == '[' ? "" : ", ",
                                 (long long)(time - last), more_switches - switches);
            switches = more_switches;
            time = now_of(CLOCK_MONOTONIC);
        }
        last = time;
    }
    snprintf(more + used, sizeof truth.more - used, "]");
    end();
    KEEP_FRAME();
}

#define LEAF(N)                                                                                                                        \
    CULPRIT static void leaf_##N(void)                                                                                                 \
    {                                                                                                                                  \
        for (volatile int spin = 0; spin < 3000 + 700 * N; ++spin)                                                                     \
            ;                                                                                                                          \
        KEEP_FRAME();                                                                                                                  \
    }
LEAF(0) LEAF(1) LEAF(2) LEAF(3) LEAF(4) LEAF(5) LEAF(6) LEAF(7) LEAF(8) LEAF(9) LEAF(10) LEAF(11) LEAF(12) LEAF(13) LEAF(14) LEAF(15)
static void (*const leaves[])(void) = {leaf_0, leaf_1, leaf_2,  leaf_3,  leaf_4,  leaf_5,  leaf_6,  leaf_7,
                                       leaf_8, leaf_9, leaf_10, leaf_11, leaf_12, leaf_13, leaf_14, leaf_15};

CULPRIT static void loop_over_leaves(const struct task *task)
{
    int64_t deadline = cpu_deadline(task->ms);
    begin();
    do {
        for (unsigned count = 0; count < 64; ++count)
            leaves[count * 7 % 16]();
    } while (deadline ? now_of(CLOCK_THREAD_CPUTIME_ID) < deadline : !atomic_load(&is_released));
    end();
    KEEP_FRAME();
}

/* Callbacks of one task each, which take turns. */
#define SHORT_TASK(N)                                                                                                                  \
    CULPRIT static void short_task_##N(const struct task *task)                                                                        \
    {                                                                                                                                  \
        int64_t deadline = now_of(CLOCK_THREAD_CPUTIME_ID) + task->ms * MS;                                                            \
        begin();                                                                                                                       \
        do {                                                                                                                           \
            for (unsigned count = 0; count < 32; ++count)                                                                              \
                leaf_##N();                                                                                                            \
        } while (now_of(CLOCK_THREAD_CPUTIME_ID) < deadline);                                                                          \
        end();                                                                                                                         \
        KEEP_FRAME();                                                                                                                  \
    }
SHORT_TASK(0) SHORT_TASK(1) SHORT_TASK(2) SHORT_TASK(3) SHORT_TASK(4) SHORT_TASK(5) SHORT_TASK(6) SHORT_TASK(7)
static void (*const short_tasks[])(const struct task *) = {short_task_0, short_task_1, short_task_2, short_task_3,
                                                           short_task_4, short_task_5, short_task_6, short_task_7};

CULPRIT static void costly_a(int64_t ns)
{
    for (int64_t deadline = now_of(CLOCK_THREAD_CPUTIME_ID) + ns; !is_over(deadline);)
        ;
    KEEP_FRAME();
}

CULPRIT static void cheap_b(int64_t ns)
{
    for (int64_t deadline = now_of(CLOCK_THREAD_CPUTIME_ID) + ns; !is_over(deadline);)
        ;
    KEEP_FRAME();
}

CULPRIT static void a_then_b(const struct task *task)
{
    begin();
    costly_a(task->ms * MS * 99 / 100);
    cheap_b(task->ms * MS / 100);
    end();
    KEEP_FRAME();
}

/* At the threshold of 100 ms the costly function has returned. */
CULPRIT static void a_then_more_b(const struct task *task)
{
    begin();
    costly_a(task->ms * MS * 76 / 100);
    cheap_b(task->ms * MS * 24 / 100);
    end();
    KEEP_FRAME();
}

CULPRIT static void touch_pages(const struct task *task)
{
    const size_t size = 32 << 20;
    begin();
    for (int64_t until = truth.began + task->ms * MS; now_of(CLOCK_BOOTTIME) < until;) {
        char *pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        for (size_t at = 0; at < size && now_of(CLOCK_BOOTTIME) < until; at += 4096)
            pages[at] = 1;
        munmap(pages, size);
    }
    end();
    KEEP_FRAME();
}

CULPRIT static void write_direct(const struct task *task)
{
    const size_t size = 1 << 20;
    static char *block;
    if (!block)
        block = aligned_alloc(4096, size);
    int file = open(data_path, O_WRONLY | O_CREAT | O_DIRECT | O_DSYNC | O_CLOEXEC, 0600);
    begin();
    for (int64_t until = truth.began + task->ms * MS; now_of(CLOCK_BOOTTIME) < until;)
        if (pwrite(file, block, size, 0) < 0)
            break;
    end();
    close(file);
    KEEP_FRAME();
}

/* An epoll with a timer: both descriptors in one number. */
static int create_nested_wait(int ms)
{
    int epoll = epoll_create1(EPOLL_CLOEXEC), timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    struct itimerspec spec = {.it_interval = {0, ms * MS}, .it_value = {0, ms * MS}};
    timerfd_settime(timer, 0, &spec, NULL);
    epoll_ctl(epoll, EPOLL_CTL_ADD, timer, &(struct epoll_event){.events = EPOLLIN});
    return epoll << 16 | timer;
}

/* A modal loop that serves a timer each 15 ms: nothing hangs. */
CULPRIT static void run_modal_loop(const struct task *task)
{
    struct epoll_event event;
    int both = create_nested_wait(15), epoll = both >> 16, timer = both & 0xffff;
    uint64_t expirations;
    begin();
    for (int64_t until = truth.began + task->ms * MS; now_of(CLOCK_BOOTTIME) < until;) {
        epoll_wait(epoll, &event, 1, -1);
        (void)!read(timer, &expirations, sizeof expirations);
    }
    end();
    close(timer);
    close(epoll);
    KEEP_FRAME();
}

/* The same with one event only, at the end. */
CULPRIT static void run_idle_modal_loop(const struct task *task)
{
    struct epoll_event event;
    int both = create_nested_wait(task->ms), epoll = both >> 16, timer = both & 0xffff;
    begin();
    epoll_wait(epoll, &event, 1, -1);
    end();
    close(timer);
    close(epoll);
    KEEP_FRAME();
}


static void *worker_main(void *ms)
{
    int64_t deadline = now_of(CLOCK_THREAD_CPUTIME_ID) + (intptr_t)ms * MS;
    while (!is_over(deadline))
        ;
    return NULL;
}

/* A worker runs while the main thread is idle. */
static void start_worker(const struct task *task)
{
    pthread_t worker;
    begin();
    pthread_create(&worker, NULL, worker_main, (void *)(intptr_t)task->ms);
    pthread_detach(worker);
    end();
}

static void spawn(const struct task *task)
{
    (void)task;
    begin();
    pid_t child = fork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    end();
    signal(SIGCHLD, SIG_IGN);
}

static void nothing(const struct task *task)
{
    (void)task;
    begin();
    end();
}

static void exit_now(const struct task *task)
{
    (void)task;
    exit(0);
}

static const struct {
    const char *name;
    void (*run)(const struct task *);
} actions[] = {
    {"sleep", sleep_in_callback}, {"read", read_config},       {"recv", receive_reply},     {"connect", connect_to_server},
    {"flock", lock_file_in_callback}, {"mutex", take_mutex},   {"rwlock", take_rwlock},     {"condition", wait_for_condition},
    {"semaphore", wait_for_semaphore}, {"join", join_worker},  {"child", run_child},        {"vfork", wait_in_vfork},
    {"burn", burn_in_one},        {"clock", burn_by_the_clock}, {"leaves", loop_over_leaves}, {"a-then-b", a_then_b}, {"a-then-more-b", a_then_more_b},
    {"pages", touch_pages},       {"direct", write_direct},    {"modal", run_modal_loop},   {"modal-idle", run_idle_modal_loop},
    {"worker", start_worker},     {"spawn", spawn},            {"nothing", nothing},        {"exit", exit_now},
};

static void state_truth(const struct task *task, const char *action)
{
    static char line[sizeof truth.more + 512];
    int length = snprintf(line, sizeof line,
                          "{\"id\": %ld, \"action\": \"%s\", \"entered\": %lld, \"began\": %lld, \"ended\": %lld, \"cpu\": %lld, "
                          "\"switches\": %ld%s}\n",
                          task->id, action, (long long)truth.entered, (long long)truth.began, (long long)truth.ended, (long long)truth.cpu, truth.switches,
                          truth.more);
    (void)!write(TRUTH, line, length);
}

static void run_task(const struct task *task)
{
    truth.entered = now_of(CLOCK_BOOTTIME);
    if (!strcmp(task->action, "short")) {
        short_tasks[task->count % 8](task);
        return;
    }
    for (size_t index = 0; index < sizeof actions / sizeof *actions; ++index)
        if (!strcmp(actions[index].name, task->action)) {
            actions[index].run(task);
            return;
        }
    fprintf(stderr, "loop: no action %s\n", task->action);
    exit(2);
}

/* The queue, and the loop's wait in each mode. */

static struct task queue[4096];
static atomic_uint queue_start, queue_end;
static char input[65536];
static size_t input_size;
static pthread_mutex_t queue_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t queue_filled = PTHREAD_COND_INITIALIZER;

static void parse_input(void)
{
    char *line = input, *newline;
    while ((newline = memchr(line, '\n', input + input_size - line))) {
        struct task task = {.count = 1};
        *newline = 0;
        if (sscanf(line, "%ld %31s %ld %ld", &task.id, task.action, &task.ms, &task.count) >= 3)
            queue[atomic_fetch_add(&queue_end, 1) % 4096] = task;
        line = newline + 1;
    }
    input_size -= line - input;
    memmove(input, line, input_size);
}

static void read_input(void)
{
    ssize_t size = read(0, input + input_size, sizeof input - input_size);
    if (size == 0)
        exit(0);
    if (size > 0) {
        input_size += size;
        parse_input();
    }
}

static void *reader_main(void *unused)
{
    (void)unused;
    for (;;) {
        ssize_t size = read(0, input + input_size, sizeof input - input_size);
        if (size <= 0)
            exit(0);
        input_size += size;
        pthread_mutex_lock(&queue_mutex);
        parse_input();
        pthread_cond_signal(&queue_filled);
        pthread_mutex_unlock(&queue_mutex);
    }
    return NULL;
}

static bool is_pending(void)
{
    return atomic_load(&queue_start) != atomic_load(&queue_end);
}

static void wait_epoll(int epoll, int timeout)
{
    struct epoll_event event;
    if (epoll_wait(epoll, &event, 1, is_pending() ? 0 : timeout) > 0)
        read_input();
}

static void wait_poll(int timeout)
{
    struct pollfd source = {0, POLLIN, 0};
    if (poll(&source, 1, is_pending() ? 0 : timeout) > 0)
        read_input();
}

static void wait_select(void)
{
    fd_set sources;
    struct timeval none = {0, 0};
    FD_ZERO(&sources);
    FD_SET(0, &sources);
    if (select(1, &sources, NULL, NULL, is_pending() ? &none : NULL) > 0)
        read_input();
}

static void wait_condition(void)
{
    pthread_mutex_lock(&queue_mutex);
    while (!is_pending())
        pthread_cond_wait(&queue_filled, &queue_mutex);
    pthread_mutex_unlock(&queue_mutex);
}

static void launch(long ms)
{
    for (int64_t until = now_of(CLOCK_BOOTTIME) + ms * MS; now_of(CLOCK_BOOTTIME) < until;)
        ;
}

int main(int count, char **arguments)
{
    const char *mode = count > 1 ? arguments[1] : "epoll";
    setvbuf(stdout, NULL, _IONBF, 0);
    snprintf(lock_path, sizeof lock_path, "hangs-%d.lock", getpid());
    snprintf(data_path, sizeof data_path, "hangs-%d.data", getpid());
    snprintf(listener_address.sun_path + 1, sizeof listener_address.sun_path - 1, "machtrace-hangs-%d", getpid());
    if (pipe2(request_pipe, O_CLOEXEC) || pipe2(data_pipe, O_CLOEXEC) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, data_sockets))
        return 2;
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&listener_address,
             sizeof listener_address.sun_family + 1 + strlen(listener_address.sun_path + 1)) ||
        listen(listener, 0))
        return 2;
    sem_init(&semaphore, 0, 0);
    sem_init(&is_taken, 0, 0);
    pthread_t helper, reader;
    pthread_create(&helper, NULL, helper_main, NULL);
    pthread_setname_np(helper, "helper");
    dprintf(TRUTH, "{\"started\": %lld}\n", (long long)now_of(CLOCK_BOOTTIME));
    if (count > 2)
        launch(atol(arguments[2]));
    dprintf(TRUTH, "{\"ready\": %lld}\n", (long long)now_of(CLOCK_BOOTTIME));
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(epoll, EPOLL_CTL_ADD, 0, &(struct epoll_event){.events = EPOLLIN});
    if (!strcmp(mode, "condition"))
        pthread_create(&reader, NULL, reader_main, NULL);
    if (!strcmp(mode, "sleep"))
        fcntl(0, F_SETFL, fcntl(0, F_GETFL) | O_NONBLOCK);
    for (;;) {
        if (!strcmp(mode, "epoll"))
            wait_epoll(epoll, -1);
        else if (!strcmp(mode, "epoll-30ms"))
            wait_epoll(epoll, 30);
        else if (!strcmp(mode, "epoll-1s"))
            wait_epoll(epoll, 1000);
        else if (!strcmp(mode, "poll"))
            wait_poll(-1);
        else if (!strcmp(mode, "select"))
            wait_select();
        else if (!strcmp(mode, "condition"))
            wait_condition();
        else if (!strcmp(mode, "read")) {
            if (!is_pending())
                read_input();
        } else if (!strcmp(mode, "sleep")) {
            if (!is_pending())
                sleep_ns(16 * MS);
            read_input();
        } else
            return 2;
        if (is_pending()) {
            struct task *task = &queue[atomic_load(&queue_start) % 4096];
            run_task(task);
            state_truth(task, task->action);
            if (--task->count <= 0)
                atomic_fetch_add(&queue_start, 1);
        }
    }
}
