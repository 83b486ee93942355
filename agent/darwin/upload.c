/* machtrace_upload: see machtrace.h. An app uses NSURLSession: docs/agent.md. */
#include <errno.h>

#include "machtrace.h"

void machtrace_upload(const char *path, void *context)
{
    machtrace_upload_t *upload = context;
    (void)path;
    if (upload == NULL || upload->size != sizeof *upload)
        return;
    upload->status = upload->curl_code = 0;
    upload->error = ENOTSUP;
    __atomic_fetch_add(&upload->failed, 1, __ATOMIC_RELEASE);
}
