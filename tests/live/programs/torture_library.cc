/* Native threads for the torture: each does one dangerous thing again and again, and counts it.
 *
 * Hand-offs are between two threads that each wait for the other: if a single wake-up is lost, both
 * stand still, and their counter with them. A system call that a signal ends early is made again
 * where signal(7) says that it may end so, and is an error where it says that it may not.
 */
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <linux/futex.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

namespace {

bool done;
std::uint64_t *counters;
char message[200];

useconds_t pace; /* microseconds that each worker rests between its steps */

/* To a moment, not for a time: each capture ends a sleep, which would make the next step come early
 * and the work grow with the rate of captures. */
void rest()
{
    timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += static_cast<long>(pace % 1000000) * 1000;
    until.tv_sec += pace / 1000000 + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR)
        ;
}

bool goes_on()
{
    if (pace != 0)
        rest();
    return !__atomic_load_n(&done, __ATOMIC_RELAXED);
}

void fail(const char *what)
{
    std::snprintf(message, sizeof message, "%s: %s", what, std::strerror(errno));
    __atomic_store_n(&done, true, __ATOMIC_RELAXED);
}

/* --- hand-offs --- */

struct by_condition {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
    int turn = 0;

    void wait(int side)
    {
        pthread_mutex_lock(&lock);
        while (turn != side)
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
    }
    void pass(int side)
    {
        pthread_mutex_lock(&lock);
        turn = !side;
        pthread_cond_signal(&changed);
        pthread_mutex_unlock(&lock);
    }
};

struct by_semaphore {
    sem_t free[2];

    by_semaphore()
    {
        sem_init(&free[0], 0, 1);
        sem_init(&free[1], 0, 0);
    }
    void wait(int side)
    {
        while (sem_wait(&free[side]) != 0) /* EINTR: only where a handler has no SA_RESTART */
            fail("sem_wait");
    }
    void pass(int side) { sem_post(&free[!side]); }
};

struct by_futex {
    int turn = 0;

    void wait(int side)
    {
        int other;
        while ((other = __atomic_load_n(&turn, __ATOMIC_ACQUIRE)) != side)
            if (syscall(SYS_futex, &turn, FUTEX_WAIT_PRIVATE, other, nullptr, nullptr, 0) != 0 &&
                errno != EAGAIN)
                fail("futex");
    }
    void pass(int side)
    {
        __atomic_store_n(&turn, !side, __ATOMIC_RELEASE);
        syscall(SYS_futex, &turn, FUTEX_WAKE_PRIVATE, 1, nullptr, nullptr, 0);
    }
};

struct by_epoll {
    int event[2], group[2];

    by_epoll()
    {
        for (int side = 0; side < 2; side++) {
            event[side] = eventfd(side == 0, EFD_CLOEXEC);
            group[side] = epoll_create1(EPOLL_CLOEXEC);
            epoll_event wanted = {};
            wanted.events = EPOLLIN;
            epoll_ctl(group[side], EPOLL_CTL_ADD, event[side], &wanted);
        }
    }
    void wait(int side)
    {
        epoll_event found;
        int count;
        do
            count = epoll_wait(group[side], &found, 1, -1);
        while (count < 0 && errno == EINTR); /* never restarted */
        std::uint64_t value = 0;
        if (count != 1 || read(event[side], &value, sizeof value) != sizeof value ||
            (value != 1 && goes_on()))
            fail("epoll_wait");
    }
    void pass(int side)
    {
        std::uint64_t one = 1;
        if (write(event[!side], &one, sizeof one) != sizeof one)
            fail("eventfd");
    }
};

struct by_pipe {
    int ends[2][2];

    by_pipe()
    {
        if (pipe2(ends[0], O_CLOEXEC) != 0 || pipe2(ends[1], O_CLOEXEC) != 0)
            fail("pipe2");
        pass(1);
    }
    void wait(int side)
    {
        char byte;
        if (read(ends[side][0], &byte, 1) != 1) /* restarted */
            fail("read");
    }
    void pass(int side)
    {
        if (write(ends[!side][1], "", 1) != 1)
            fail("write");
    }
};

template <class Way> void hand_off(std::uint64_t *counter, int side)
{
    static Way way;
    const timespec breath = {0, 300000};
    while (goes_on()) {
        way.wait(side);
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
        nanosleep(&breath, nullptr);
        way.pass(side);
    }
    way.pass(side); /* let the other one see that it is over */
}

/* --- one thread alone --- */

struct unwound {
    int *count;
    ~unwound() { ++*count; }
};

__attribute__((noinline)) void throw_from(int depth, int *count)
{
    unwound here{count};
    if (depth == 0)
        throw std::runtime_error("thrown");
    throw_from(depth - 1, count);
}

void throw_and_catch(std::uint64_t *counter, int)
{
    while (goes_on()) {
        int count = 0;
        try {
            try {
                throw_from(40, &count);
            } catch (const std::runtime_error &) {
                throw;
            }
        } catch (const std::exception &error) {
            if (count != 41 || std::strcmp(error.what(), "thrown") != 0)
                fail("exception");
        }
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
        usleep(200);
    }
}

void allocate(std::uint64_t *counter, int)
{
    void *blocks[64] = {};
    unsigned seed = 1;
    while (goes_on()) {
        for (int step = 0; step < 2000; step++) {
            seed = seed * 1103515245 + 12345;
            void *&block = blocks[seed >> 16 & 63];
            std::free(block);
            block = std::malloc(seed >> 8 & 0x3ffff);
            if (block != nullptr)
                std::memset(block, 1, 16 < (seed >> 8 & 0x3ffff) ? 16 : 0);
        }
        malloc_trim(0);
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
        usleep(1000);
    }
    for (void *block : blocks)
        std::free(block);
}

__attribute__((noinline)) std::uint64_t descend(int depth)
{
    volatile unsigned char space[256];
    space[depth & 255] = static_cast<unsigned char>(depth);
    return depth == 0 ? space[0] : descend(depth - 1) + space[depth & 255];
}

void recurse(std::uint64_t *counter, int)
{
    while (goes_on()) {
        descend(500);
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
        usleep(500);
    }
}

std::uint64_t handled;

void handler(int)
{
    int error = errno;
    descend(20);
    __atomic_fetch_add(&handled, 1, __ATOMIC_RELAXED);
    errno = error;
}

void handle_on_alternate_stack(std::uint64_t *counter, int)
{
    stack_t stack = {};
    stack.ss_size = 1 << 17;
    stack.ss_sp = std::malloc(stack.ss_size);
    sigaltstack(&stack, nullptr);
    struct sigaction action = {};
    action.sa_handler = handler;
    action.sa_flags = SA_ONSTACK | SA_RESTART;
    sigaction(SIGUSR2, &action, nullptr);
    while (goes_on()) {
        std::uint64_t before = __atomic_load_n(&handled, __ATOMIC_RELAXED);
        pthread_kill(pthread_self(), SIGUSR2);
        if (__atomic_load_n(&handled, __ATOMIC_RELAXED) != before + 1)
            fail("a signal of the program's own was lost");
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
        usleep(100);
    }
    stack.ss_flags = SS_DISABLE;
    sigaltstack(&stack, nullptr);
    std::free(stack.ss_sp);
}

void block_signals(std::uint64_t *counter, int)
{
    sigset_t all, before;
    sigfillset(&all);
    while (goes_on()) {
        pthread_sigmask(SIG_SETMASK, &all, &before);
        usleep(3000);
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
        usleep(20000);
    }
}

/* Sleeps for all of its time, whatever ends single calls early. */
void sleep_and_poll(std::uint64_t *counter, int)
{
    while (goes_on()) {
        timespec began, ended, left = {0, 5000000};
        clock_gettime(CLOCK_MONOTONIC, &began);
        while (nanosleep(&left, &left) != 0)
            if (errno != EINTR)
                fail("nanosleep");
        clock_gettime(CLOCK_MONOTONIC, &ended);
        long long slept = (ended.tv_sec - began.tv_sec) * 1000000000LL + ended.tv_nsec - began.tv_nsec;
        errno = 0;
        if (slept < 5000000)
            fail("a sleep was cut short");
        if (poll(nullptr, 0, 2) < 0 && errno != EINTR)
            fail("poll");
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
    }
}

/* Both ends of connections that are made all the time: accept, connect, recv, send, close. */
void connect_to_self(std::uint64_t *counter, int)
{
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "torture-%d", getpid());
    int listening = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listening, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0 ||
        listen(listening, 8) != 0)
        return fail("bind");
    while (goes_on()) {
        int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connect(client, reinterpret_cast<sockaddr *>(&address), sizeof address) != 0)
            fail("connect");
        int served = accept4(listening, nullptr, nullptr, SOCK_CLOEXEC);
        char byte = 0;
        if (served < 0 || send(client, "x", 1, 0) != 1 || recv(served, &byte, 1, 0) != 1 || byte != 'x')
            fail("accept");
        close(client);
        close(served);
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
        usleep(300);
    }
    close(listening);
}

void *nothing(void *argument)
{
    return argument;
}

void churn(std::uint64_t *counter, int)
{
    while (goes_on()) {
        pthread_t threads[3];
        int count = 0;
        for (; count < 3; count++)
            if (pthread_create(&threads[count], nullptr, nothing, nullptr) != 0)
                break;
        for (int index = 0; index < count; index++)
            pthread_join(threads[index], nullptr);
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
        usleep(2000);
    }
}

char library[4096];

void load(std::uint64_t *counter, int)
{
    while (goes_on()) {
        void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr)
            return fail("dlopen");
        auto call = reinterpret_cast<int (*)(int)>(dlsym(handle, "call_me"));
        if (call == nullptr || call(20) != 20)
            fail("dlsym");
        dlclose(handle);
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
        usleep(1000);
    }
}

void fork_only(std::uint64_t *counter, int)
{
    while (goes_on()) {
        int status = 1;
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            continue;
        if (status != 0)
            fail("fork");
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
        usleep(10000);
    }
}

int hold_list(dl_phdr_info *, std::size_t, void *)
{
    usleep(100);
    return 1;
}

/* Holds the lock of the loader's list for a while. The callback is not a Python function, which would
 * take the interpreter's lock after the loader's: starting a thread or importing an extension takes
 * them in the opposite order, a deadlock even without captures. */
void iterate(std::uint64_t *counter, int)
{
    while (goes_on()) {
        dl_iterate_phdr(hold_list, nullptr);
        __atomic_fetch_add(counter, 1, __ATOMIC_RELAXED);
        usleep(3000);
    }
}

struct kind {
    const char *name;
    void (*run)(std::uint64_t *, int);
    int threads;
};

constexpr kind kinds[] = {
    {"condition hand-offs", hand_off<by_condition>, 2},
    {"semaphore hand-offs", hand_off<by_semaphore>, 2},
    {"futex hand-offs", hand_off<by_futex>, 2},
    {"epoll hand-offs", hand_off<by_epoll>, 2},
    {"pipe hand-offs", hand_off<by_pipe>, 2},
    {"C++ exceptions", throw_and_catch, 1},
    {"malloc", allocate, 1},
    {"recursion", recurse, 1},
    {"alternate stack", handle_on_alternate_stack, 1},
    {"blocked signals", block_signals, 1},
    {"sleeps", sleep_and_poll, 1},
    {"connections", connect_to_self, 1},
    {"thread churn", churn, 1},
    {"dlopen", load, 1},
    {"loader's list", iterate, 1},
    {"native forks", fork_only, 1},
};
constexpr int kind_count = sizeof kinds / sizeof *kinds;

struct worker {
    const kind *what;
    std::uint64_t *counter;
    int side;
    pthread_t thread;
};
worker workers[64];
int worker_count;

void *run(void *argument)
{
    const worker *self = static_cast<worker *>(argument);
    self->what->run(self->counter, self->side);
    return nullptr;
}

} // namespace

extern "C" {

int native_kinds() { return kind_count; }

const char *native_kind(int index) { return kinds[index].name; }

int native_threads() { return worker_count; }

/* One counter a kind; and the microseconds that each worker rests between its steps. */
void native_start(std::uint64_t *progress, const char *path, unsigned rest)
{
    pace = rest;
    counters = progress;
    std::snprintf(library, sizeof library, "%s", path);
    for (int index = 0; index < kind_count; index++)
        for (int side = 0; side < kinds[index].threads; side++) {
            worker &one = workers[worker_count++];
            one = worker{&kinds[index], &counters[index], side, {}};
            pthread_create(&one.thread, nullptr, run, &one);
        }
}

const char *native_stop()
{
    __atomic_store_n(&done, true, __ATOMIC_RELAXED);
    for (int index = 0; index < worker_count; index++)
        pthread_join(workers[index].thread, nullptr);
    return message;
}

/* Called through ctypes.PyDLL it keeps the interpreter's lock. */
void keep_lock(unsigned microseconds)
{
    timespec left = {0, static_cast<long>(microseconds) * 1000};
    while (nanosleep(&left, &left) != 0)
        continue;
}
}
