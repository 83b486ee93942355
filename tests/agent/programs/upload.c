/* upload SPOOL URL TIMEOUT ROTATIONS [put] [delete] [library PATH] [header LINE] [hung] [entry]: call a
 * watched function, rotate, and upload what is finished; `hung` calls on while the upload is not over,
 * flushes, prints a line and waits; `entry` watches the function at its first instruction. Prints what the context has, and how often other
 * watched functions were called, which only libcurl calls. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "machtrace.h"

int observed(int value);

static const char *const of_curl[] = {"getaddrinfo", "connect", "sendto", "send", "poll", "recv"};

static uint64_t done(const machtrace_upload_t *upload)
{
    return __atomic_load_n(&upload->uploaded, __ATOMIC_ACQUIRE) +
           __atomic_load_n(&upload->failed, __ATOMIC_ACQUIRE);
}

int main(int argc, char **argv)
{
    static machtrace_upload_t upload = {.size = sizeof upload};
    const char *headers[8];
    machtrace_function_t functions[8] = {{"observed", 0}};
    size_t count = 1;
    bool is_hung = false;
    if (argc < 5)
        return 2;
    uint64_t earlier = access(argv[1], F_OK) == 0;
    upload.url = argv[2];
    upload.timeout_ms = (uint32_t)atoi(argv[3]);
    upload.headers = headers;
    for (int at = 5; at < argc; at++) {
        if (strcmp(argv[at], "put") == 0)
            upload.uses_put = true;
        else if (strcmp(argv[at], "delete") == 0)
            upload.delete_when_done = true;
        else if (strcmp(argv[at], "library") == 0)
            upload.library = argv[++at];
        else if (strcmp(argv[at], "hung") == 0)
            is_hung = true;
        else if (strcmp(argv[at], "entry") == 0)
            functions[0].flags = MACHTRACE_AT_ENTRY;
        else
            headers[upload.header_count++] = argv[++at];
    }
    for (size_t index = 0; index < sizeof of_curl / sizeof *of_curl; index++)
        functions[count++] = (machtrace_function_t){of_curl[index], 0};
    machtrace_options_t options = {.size = sizeof options,
                                   .spool_path = argv[1],
                                   .spool_size = 1 << 20,
                                   .older_spools = 20,
                                   .functions = functions,
                                   .function_count = count,
                                   .spool_finished = machtrace_upload,
                                   .spool_context = &upload};
    if (machtrace_start(&options) != 0)
        return 1;
    unsigned long long calls = 0, others = 0;
    for (int round = 0; round < atoi(argv[4]); round++) {
        for (int index = 0; index < 1000; index++)
            observed(index);
        if (machtrace_rotate() != 0)
            return 3;
        while (!is_hung && done(&upload) < earlier + (uint64_t)round + 1)
            usleep(1000);
    }
    for (int index = 0; index < 1000; index++)
        observed(index);
    if (is_hung) {
        machtrace_flush();
        printf("flushed\n");
        fflush(stdout);
        pause();
    }
    machtrace_losses_t losses;
    machtrace_get_losses(&losses);
    uint64_t value;
    machtrace_function_state("observed", &value);
    calls = value;
    for (size_t index = 1; index < count; index++) {
        machtrace_function_state(functions[index].name, &value);
        others += value;
    }
    machtrace_stop();
    printf("uploaded %llu failed %llu error %d status %d code %d calls %llu others %llu ignored %llu\n",
           (unsigned long long)upload.uploaded, (unsigned long long)upload.failed, upload.error,
           upload.status, upload.curl_code, calls, others, (unsigned long long)losses.ignored);
    return 0;
}
