/* Write records to a spool until it is killed.
 *
 *     spool_writer PATH SIZE PROGRESS LOG EVENTS
 *
 * PROGRESS is a file of four words: 1 once the spool is there, and how many log records, events and
 * changes of cells have been written; it is mapped, and the words are stored after each. LOG and
 * EVENTS: how often out of 16 steps a log record and events are written. tests/agent/test_spool.py
 * computes the same contents.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "spool.h"

static size_t payload_of(uint64_t number, unsigned char *payload)
{
    size_t size = 1 + (size_t)(number * 37 % 150);
    for (size_t index = 0; index < size; index++)
        payload[index] = (unsigned char)(number + index * 7);
    return size;
}

static struct machtrace_event event_of(uint64_t number)
{
    struct machtrace_event event = {0};
    event.time = number;
    event.stack = (uint32_t)(1 + number * number % 101);
    event.rule = (uint16_t)(number % 7);
    event.calls = (uint32_t)(1 + number % 3);
    return event;
}

int main(int count, char **arguments)
{
    if (count != 6)
        return 2;
    uint64_t log_steps = strtoull(arguments[4], NULL, 10);
    uint64_t event_steps = strtoull(arguments[5], NULL, 10);
    int file = open(arguments[3], O_RDWR);
    _Atomic uint64_t *progress =
        mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    struct machtrace_spool spool;
    if (file < 0 || progress == MAP_FAILED)
        return 1;
    int error = machtrace_spool_create(&spool, arguments[1], strtoull(arguments[2], NULL, 10), 20,
                                       1);
    if (error != 0) {
        fprintf(stderr, "%s\n", strerror(error));
        return 1;
    }
    atomic_store(&progress[0], 1);
    uint64_t records = 0, events = 0, changes = 0;
    for (uint64_t step = 0;; step++) {
        if (step % 16 < log_steps) {
            unsigned char payload[256];
            size_t size = payload_of(records, payload);
            if (machtrace_spool_log(&spool, MACHTRACE_SPOOL_INCIDENT, payload, size))
                atomic_store(&progress[1], ++records);
        }
        if ((step + 5) % 16 < event_steps) {
            struct machtrace_event some[16];
            size_t batch = 1 + step % 16;
            for (size_t index = 0; index < batch; index++)
                some[index] = event_of(events + index);
            machtrace_spool_events(&spool, some, batch);
            events += batch;
            atomic_store(&progress[2], events);
        }
        if (step % 16 == 9) {
            machtrace_spool_count(&spool, 7, (uint32_t)(changes % 13), 2);
            atomic_store(&progress[3], ++changes);
        }
    }
}
