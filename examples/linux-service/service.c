/* A service that watches itself: which code opens files and connects, and when its loop hangs.
 *
 *     service SOCKET SPOOL
 *
 * answers lines that arrive on a local socket: `read PATH` with the first line of a file, `wait MS`
 * after MS milliseconds, `stop` by ending. Its loop has one thread: while it waits for one
 * client, the others wait too, which is the mistake that the spool shows.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "machtrace.h"

#define LINE 1024

static bool is_stopping;

static void read_first_line(const char *path, char *answer, size_t size)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, answer, size - 1);
    if (length < 0)
        length = snprintf(answer, size, "%s", strerror(errno));
    answer[length] = '\0';
    answer[strcspn(answer, "\n")] = '\0';
    if (file >= 0)
        close(file);
}

static void wait_for(long ms)
{
    struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static void serve(int client)
{
    char line[LINE], answer[LINE] = "ok";
    ssize_t length = read(client, line, sizeof line - 1);
    if (length <= 0) {
        close(client);
        return;
    }
    line[length] = '\0';
    line[strcspn(line, "\n")] = '\0';
    if (strncmp(line, "read ", 5) == 0)
        read_first_line(line + 5, answer, sizeof answer - 1);
    else if (strncmp(line, "wait ", 5) == 0)
        wait_for(strtol(line + 5, NULL, 10));
    else if (strcmp(line, "stop") == 0)
        is_stopping = true;
    else
        strcpy(answer, "unknown: read PATH, wait MS or stop");
    strcat(answer, "\n");
    if (write(client, answer, strlen(answer)) < 0)
        close(client);
}

static int listen_at(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int server = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (server < 0 || strlen(path) >= sizeof address.sun_path)
        return -1;
    strcpy(address.sun_path, path);
    unlink(path);
    if (bind(server, (struct sockaddr *)&address, sizeof address) != 0 || listen(server, 16) != 0)
        return -1;
    return server;
}

static void run(int server)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = server};
    int queue = epoll_create1(EPOLL_CLOEXEC);
    epoll_ctl(queue, EPOLL_CTL_ADD, server, &event);
    while (!is_stopping) {
        if (epoll_wait(queue, &event, 1, -1) != 1)
            continue;
        if (event.data.fd != server) {
            serve(event.data.fd);
            continue;
        }
        struct epoll_event added = {.events = EPOLLIN};
        added.data.fd = accept4(server, NULL, NULL, SOCK_CLOEXEC);
        if (added.data.fd >= 0)
            epoll_ctl(queue, EPOLL_CTL_ADD, added.data.fd, &added);
    }
    close(queue);
}

int main(int argc, char **argv)
{
    static const machtrace_function_t functions[] = {{"open", 0}, {"connect", 0}, {"getaddrinfo", 0}};
    if (argc != 3) {
        fprintf(stderr, "usage: service SOCKET SPOOL\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    machtrace_options_t options = {.size = sizeof options,
                                   .spool_path = argv[2],
                                   .functions = functions,
                                   .function_count = sizeof functions / sizeof *functions,
                                   .hang_ms = 250};
    int error = machtrace_start(&options);
    if (error != 0) { /* the service is more important than its stacks */
        fprintf(stderr, "service: %s: %s: nothing is recorded\n", argv[2], strerror(error));
    }
    int server = listen_at(argv[1]);
    if (server < 0) {
        fprintf(stderr, "service: %s: %s\n", argv[1], strerror(errno));
        return 1;
    }
    printf("ready\n");
    fflush(stdout);
    run(server);
    close(server);
    unlink(argv[1]);
    machtrace_stop();
    return 0;
}
