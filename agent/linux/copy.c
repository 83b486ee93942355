/* Copies of other threads: see agent/thread.h. */
#define _GNU_SOURCE
#include "thread.h"

#include <stdlib.h>
#include <string.h>

#include "inprocess/core/capture.h"
#include "inprocess/core/linux/shared.h"

#define RANGES_TEXT ((size_t)1 << 22)

/* Readable ranges of the text of /proc/self/maps, in place; how many. */
static size_t parse_ranges(char *text, size_t size, struct machtrace_range *ranges, size_t room)
{
    size_t count = 0;
    for (char *line = text; line < text + size && count < room;) {
        char *end = memchr(line, '\n', (size_t)(text + size - line));
        if (end == NULL)
            break;
        *end = '\0';
        char *at;
        uint64_t first = strtoull(line, &at, 16);
        if (*at == '-') {
            uint64_t last = strtoull(at + 1, &at, 16);
            if (at[0] == ' ' && at[1] == 'r')
                ranges[count++] = (struct machtrace_range){first, last};
        }
        line = end + 1;
    }
    return count;
}

void machtrace_copy_threads(struct machtrace_inprocess_capture *capture)
{
    size_t most = RANGES_TEXT / 32;
    char *text = malloc(RANGES_TEXT);
    struct machtrace_range *ranges = malloc(most * sizeof *ranges);
    int64_t size = text == NULL ? -1 : machtrace_inprocess_mappings(text, RANGES_TEXT);
    if (size > 0 && ranges != NULL) {
        capture->ranges = ranges;
        capture->range_count = parse_ranges(text, (size_t)size, ranges, most);
        capture->answer_limit = 100000000;
        capture->sleep_limit = 20000000;
        machtrace_inprocess_copy(capture);
    } else {
        for (size_t index = 0; index < capture->thread_count; index++)
            capture->threads[index].outcome = MACHTRACE_FAILED;
    }
    free(ranges);
    free(text);
}
