/* machtrace_upload: see machtrace.h. libcurl is loaded when the first spool is uploaded.
 *
 * Numbers and prototypes are those of libcurl's ABI 4: include/curl/curl.h, which only adds to them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "drain.h"
#include "machtrace.h"
#include "recorder.h"
#include "thread.h"

#define DEFAULT_TIMEOUT 60000

/* CURLoption: numbers from 10000 on have pointers, from 20000 on functions, from 30000 on
 * curl_off_t, and the others long. */
enum {
    CURLOPT_URL = 10002,
    CURLOPT_READDATA = 10009,
    CURLOPT_WRITEFUNCTION = 20011,
    CURLOPT_READFUNCTION = 20012,
    CURLOPT_HTTPHEADER = 10023,
    CURLOPT_NOPROGRESS = 43,
    CURLOPT_UPLOAD = 46,
    CURLOPT_POST = 47,
    CURLOPT_NOSIGNAL = 99,
    CURLOPT_INFILESIZE_LARGE = 30115,
    CURLOPT_POSTFIELDSIZE_LARGE = 30120,
    CURLOPT_TIMEOUT_MS = 155,
    CURLOPT_SEEKFUNCTION = 20167,
    CURLOPT_SEEKDATA = 10168,
    CURLOPT_XFERINFOFUNCTION = 20219
};
enum { CURLINFO_RESPONSE_CODE = 0x200002 };
enum { CURL_GLOBAL_ALL = 3, CURL_READFUNC_ABORT = 0x10000000 };
enum { /* CURLcode */
    CURLE_OK = 0,
    CURLE_UNSUPPORTED_PROTOCOL = 1,
    CURLE_URL_MALFORMAT = 3,
    CURLE_COULDNT_RESOLVE_HOST = 6,
    CURLE_COULDNT_CONNECT = 7,
    CURLE_OPERATION_TIMEDOUT = 28,
    CURLE_ABORTED_BY_CALLBACK = 42,
    CURLE_GOT_NOTHING = 52,
    CURLE_SEND_ERROR = 55,
    CURLE_RECV_ERROR = 56
};

static struct curl {
    int (*global_init)(long flags);
    void *(*easy_init)(void);
    int (*easy_setopt)(void *handle, int option, ...);
    int (*easy_perform)(void *handle);
    int (*easy_getinfo)(void *handle, int info, ...);
    void (*easy_cleanup)(void *handle);
    void *(*slist_append)(void *list, const char *line);
    void (*slist_free_all)(void *list);
} curl;

static const char names[][24] = {/* in the order of the structure */
                                 "curl_global_init",   "curl_easy_init",    "curl_easy_setopt",
                                 "curl_easy_perform",  "curl_easy_getinfo", "curl_easy_cleanup",
                                 "curl_slist_append", "curl_slist_free_all"};
_Static_assert(sizeof curl == sizeof names / sizeof *names * sizeof(void *), "a name for each");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of an upload */
static bool is_loaded;
static _Atomic bool is_exiting;

/* --- libcurl --- */

static void child_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
}

/* Wait for the end of an upload, before libraries that it uses end: they were loaded earlier. */
static void end_at_exit(void)
{
    atomic_store(&is_exiting, true);
    pthread_mutex_lock(&lock);
    pthread_mutex_unlock(&lock);
}

static bool load(const char *name)
{
    void *addresses[sizeof names / sizeof *names];
    bool has_all = true;
    if (is_loaded)
        return true;
    void *library = dlopen(name != NULL ? name : "libcurl.so.4", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return false;
    for (size_t index = 0; index < sizeof names / sizeof *names; index++) {
        addresses[index] = dlsym(library, names[index]);
        has_all &= addresses[index] != NULL;
    }
    memcpy(&curl, addresses, sizeof curl);
    is_loaded = has_all && curl.global_init(CURL_GLOBAL_ALL) == CURLE_OK &&
                pthread_atfork(NULL, NULL, child_after_fork) == 0 && atexit(end_at_exit) == 0;
    if (!is_loaded)
        dlclose(library);
    return is_loaded;
}

static int error_of(int code)
{
    static const uint8_t errors[] = {[CURLE_UNSUPPORTED_PROTOCOL] = EINVAL,
                                     [CURLE_URL_MALFORMAT] = EINVAL,
                                     [CURLE_COULDNT_RESOLVE_HOST] = EHOSTUNREACH,
                                     [CURLE_COULDNT_CONNECT] = ECONNREFUSED,
                                     [CURLE_OPERATION_TIMEDOUT] = ETIMEDOUT,
                                     [CURLE_ABORTED_BY_CALLBACK] = ECANCELED,
                                     [CURLE_GOT_NOTHING] = ECONNRESET,
                                     [CURLE_SEND_ERROR] = ECONNRESET,
                                     [CURLE_RECV_ERROR] = ECONNRESET};
    bool is_known = code > 0 && (size_t)code < sizeof errors && errors[code] != 0;
    return code == CURLE_OK || is_known ? errors[code] : EIO;
}

/* --- what libcurl calls --- */

struct body {
    int file;
    uint64_t size, sent;
};

static size_t read_body(char *to, size_t size, size_t count, void *data)
{
    struct body *body = data;
    size_t room = size * count;
    if (room > body->size - body->sent)
        room = (size_t)(body->size - body->sent);
    if (room == 0)
        return 0;
    ssize_t got = pread(body->file, to, room, (off_t)body->sent);
    if (got <= 0)
        return CURL_READFUNC_ABORT;
    body->sent += (uint64_t)got;
    return (size_t)got;
}

/* A connection is repeated from some offset. */
static int seek_body(void *data, int64_t offset, int origin)
{
    struct body *body = data;
    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > body->size)
        return 1;
    body->sent = (uint64_t)offset;
    return 0;
}

static size_t ignore_response(char *from, size_t size, size_t count, void *data)
{
    (void)from;
    (void)data;
    return size * count;
}

/* At least once a second. Not 0: end the upload. */
static int should_end(void *data, int64_t to_receive, int64_t received, int64_t to_send,
                      int64_t sent)
{
    (void)data;
    (void)to_receive;
    (void)received;
    (void)to_send;
    (void)sent;
    return atomic_load(&is_exiting) || machtrace_drain_is_ending();
}

/* --- an upload --- */

static bool add_header(void **list, const char *line)
{
    void *longer = curl.slist_append(*list, line);
    if (longer == NULL)
        return false;
    *list = longer;
    return true;
}

static int add_headers(const machtrace_upload_t *upload, void **list)
{
    bool has_type = false;
    for (size_t index = 0; index < upload->header_count; index++) {
        const char *line = upload->headers[index];
        if (line == NULL || strpbrk(line, "\r\n") != NULL)
            return EINVAL;
        has_type |= strncasecmp(line, "content-type:", 13) == 0;
        if (!add_header(list, line))
            return ENOMEM;
    }
    return has_type || add_header(list, "Content-Type: application/octet-stream") ? 0 : ENOMEM;
}

static int send_body(machtrace_upload_t *upload, struct body *body, void *handle, void *headers)
{
    long status = 0;
    int64_t size = (int64_t)body->size;
    long timeout = upload->timeout_ms != 0 ? (long)upload->timeout_ms : DEFAULT_TIMEOUT;
    int (*set)(void *, int, ...) = curl.easy_setopt, code = 0;
    code |= set(handle, CURLOPT_URL, upload->url);
    code |= set(handle, CURLOPT_HTTPHEADER, headers);
    code |= set(handle, CURLOPT_NOSIGNAL, 1L);
    code |= set(handle, CURLOPT_TIMEOUT_MS, timeout);
    code |= set(handle, CURLOPT_READFUNCTION, read_body);
    code |= set(handle, CURLOPT_READDATA, body);
    code |= set(handle, CURLOPT_SEEKFUNCTION, seek_body);
    code |= set(handle, CURLOPT_SEEKDATA, body);
    code |= set(handle, CURLOPT_WRITEFUNCTION, ignore_response);
    code |= set(handle, CURLOPT_XFERINFOFUNCTION, should_end);
    code |= set(handle, CURLOPT_NOPROGRESS, 0L);
    if (upload->uses_put) {
        code |= set(handle, CURLOPT_UPLOAD, 1L);
        code |= set(handle, CURLOPT_INFILESIZE_LARGE, size);
    } else {
        code |= set(handle, CURLOPT_POST, 1L);
        code |= set(handle, CURLOPT_POSTFIELDSIZE_LARGE, size);
    }
    if (code != CURLE_OK)
        return ENOTSUP;
    code = curl.easy_perform(handle);
    curl.easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
    upload->curl_code = code;
    upload->status = (int32_t)status;
    if (code == CURLE_OK && (status / 100 != 2 || body->sent != body->size))
        return EPROTO;
    return error_of(code);
}

static int send_file(machtrace_upload_t *upload, struct body *body)
{
    bool is_http = strncasecmp(upload->url, "http://", 7) == 0 ||
                   strncasecmp(upload->url, "https://", 8) == 0;
    if (!is_http)
        return EINVAL;
    if (!load(upload->library))
        return ENOTSUP;
    void *headers = NULL, *handle = curl.easy_init();
    int error = handle == NULL ? ENOMEM : add_headers(upload, &headers);
    if (error == 0)
        error = send_body(upload, body, handle, headers);
    if (handle != NULL)
        curl.easy_cleanup(handle);
    curl.slist_free_all(headers);
    return error;
}

/* Remove the file that was sent, unless another one has its name by now. */
static int delete_sent(const char *path, const struct stat *sent)
{
    struct stat now;
    if (lstat(path, &now) != 0)
        return errno;
    if (now.st_dev != sent->st_dev || now.st_ino != sent->st_ino)
        return ESTALE;
    return unlink(path) == 0 ? 0 : errno;
}

static int upload_file(machtrace_upload_t *upload, const char *path, bool *is_sent)
{
    struct stat status;
    struct body body = {open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), 0, 0};
    if (body.file < 0)
        return errno;
    int error = fstat(body.file, &status) != 0 ? errno : S_ISREG(status.st_mode) ? 0 : EINVAL;
    if (error == 0) {
        body.size = (uint64_t)status.st_size;
        error = send_file(upload, &body);
    }
    close(body.file);
    *is_sent = error == 0;
    return *is_sent && upload->delete_when_done ? delete_sent(path, &status) : error;
}

/* Writing to a connection that was closed raises SIGPIPE, which is blocked: take it back. */
static void discard_signal(void)
{
    struct timespec none = {0, 0};
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    while (sigtimedwait(&pipe, NULL, &none) < 0 && errno == EINTR)
        continue;
}

void machtrace_upload(const char *path, void *context)
{
    machtrace_upload_t *upload = context;
    if (upload == NULL || upload->size != sizeof *upload)
        return;
    char name[16] = "";
    sigset_t pending;
    int before = errno;
    machtrace_ignore_enter();
    pthread_mutex_lock(&lock);
    sigpending(&pending);
    /* Threads that libcurl starts, to look up names, have this name as well. */
    prctl(PR_GET_NAME, name);
    prctl(PR_SET_NAME, MACHTRACE_UPLOAD_THREAD);
    upload->status = upload->curl_code = 0;
    bool is_valid = path != NULL && upload->url != NULL &&
                    (upload->header_count == 0 || upload->headers != NULL);
    bool is_sent = false;
    upload->error = is_valid ? upload_file(upload, path, &is_sent) : EINVAL;
    /* Last: who sees these may read the others. */
    if (upload->error != 0)
        __atomic_fetch_add(&upload->failed, 1, __ATOMIC_RELEASE);
    if (is_sent)
        __atomic_fetch_add(&upload->uploaded, 1, __ATOMIC_RELEASE);
    prctl(PR_SET_NAME, name);
    if (sigismember(&pending, SIGPIPE) == 0)
        discard_signal();
    pthread_mutex_unlock(&lock);
    machtrace_ignore_leave();
    errno = before;
}
