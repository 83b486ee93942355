/*!
 * @header machtrace.h
 *
 * Call stacks of any thread from inside a program, at any call of a watched function.
 *
 * The agent records calls of the functions that you name, each with the stack of the thread that
 * called, and writes them to a file on this machine, the spool. Nothing leaves the machine
 * unless the program uploads it (machtrace_upload).
 *
 * A call costs the thread that makes it about a quarter of a microsecond. No memory is allocated
 * and no lock is taken; the agent's own thread writes the spool.
 *
 * All functions may be called by any thread unless they state otherwise. Functions that return an
 * error return 0 or a value of errno(2), and do not change errno.
 */
#ifndef MACHTRACE_H
#define MACHTRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

#if defined(__GNUC__)
#define MACHTRACE_EXPORT __attribute__((visibility("default")))
#else
#define MACHTRACE_EXPORT
#endif

/*!
 * @typedef machtrace_thread_t
 * A thread: on Linux the number that gettid(2) returns, on Apple's systems that of
 * pthread_threadid_np(3).
 */
typedef uint64_t machtrace_thread_t;

/*!
 * @constant MACHTRACE_THREAD_SELF
 * The calling thread.
 */
#define MACHTRACE_THREAD_SELF ((machtrace_thread_t)0)

/*!
 * @enum machtrace_function_flags_t
 *
 * @constant MACHTRACE_COUNT_ONLY
 * Count calls, and take no stacks: for functions that are called very often.
 *
 * @constant MACHTRACE_AT_ENTRY
 * Replace the function's first instructions, and no import: then all calls are recorded, those
 * inside its image and those by pointers too. Linux only. The image that defines the function is
 * not unloaded meanwhile.
 *
 * @constant MACHTRACE_GIVES_CONSENT
 * Once this function is called, the user has consented; that call is the last one before. If one of
 * the functions that are watched from the start has this flag, consent is absent at first.
 *
 * @constant MACHTRACE_BUDGET
 * Count all calls by the address that called, and take the stacks of some: at each such address 20 at
 * once, and 20 a second. For functions that are called very often; the spool states how many of the
 * calls have a stack. Has no effect with MACHTRACE_COUNT_ONLY.
 */
typedef enum machtrace_function_flags {
    MACHTRACE_COUNT_ONLY = 1,
    MACHTRACE_AT_ENTRY = 2,
    MACHTRACE_GIVES_CONSENT = 4,
    MACHTRACE_BUDGET = 8
} machtrace_function_flags_t;

/*!
 * @struct machtrace_function_t
 * A function to watch.
 *
 * @field name
 * The symbol's name, without a leading underscore and without a version. On Apple's systems also
 * a method of Objective-C, as -[Class selector:] or +[Class selector].
 *
 * @field flags
 * 0, or values of machtrace_function_flags_t.
 */
typedef struct machtrace_function {
    const char *name;
    uint32_t flags;
} machtrace_function_t;

/*!
 * @enum machtrace_rule_state_t
 * What became of a function that is to be watched.
 *
 * @constant MACHTRACE_STATE_UNUSED
 * The function exists, and no image that is loaded now imports it.
 *
 * @constant MACHTRACE_STATE_WATCHED
 * Calls are recorded.
 *
 * @constant MACHTRACE_STATE_ABSENT
 * No image that is loaded now defines or imports it. It is watched as soon as one does.
 *
 * @constant MACHTRACE_STATE_NO_ROOM
 * Too many functions are watched.
 *
 * @constant MACHTRACE_STATE_INHERITED
 * Calls are recorded: those of the method of a superclass, by all classes that inherit it.
 *
 * @constant MACHTRACE_STATE_SHARED
 * Calls are recorded. Another method of the class has the same implementation; its calls are not
 * recorded by this rule.
 *
 * @constant MACHTRACE_STATE_REFUSED
 * The function's first instructions cannot be replaced (MACHTRACE_AT_ENTRY): it is too short,
 * branches to them, one of them cannot be executed elsewhere, a thread that blocks signals may be
 * among them, or the system allows no change of code. Or the loader has not bound its import slots, and
 * the agent cannot (LD_AUDIT). The spool has the reason. No call is recorded.
 */
typedef enum machtrace_state {
    MACHTRACE_STATE_UNUSED = 0,
    MACHTRACE_STATE_WATCHED = 1,
    MACHTRACE_STATE_ABSENT = 2,
    MACHTRACE_STATE_NO_ROOM = 3,
    MACHTRACE_STATE_INHERITED = 4,
    MACHTRACE_STATE_SHARED = 5,
    MACHTRACE_STATE_REFUSED = 6
} machtrace_state_t;

/*!
 * @struct machtrace_options_t
 * How to start. Set `size` to sizeof(machtrace_options_t) and the rest to zero for defaults.
 *
 * @field size
 * The size of this structure in bytes.
 *
 * @field tree_bits
 * The agent stores 7/8 of 1 << tree_bits different frames; from 8 to 28. 20 by default, which
 * takes at most 10 MiB.
 *
 * @field spool_path
 * The file to write. Required. An older spool is renamed to PATH.1.
 *
 * @field spool_size
 * The file's size in bytes, a multiple of 4096, at least 256 KiB. 16 MiB by default.
 *
 * @field older_spools
 * How many older spools stay; 1 by default.
 *
 * @field threads_max
 * How many threads are recorded at once; 512 by default. Calls of others are counted.
 *
 * @field interval_ms
 * How often events are moved to the spool, in milliseconds; 50 by default. What a process has
 * recorded since the last time is lost if it is killed. Four times as long where nothing is
 * recorded.
 *
 * @field hang_ms
 * Record what the main thread does if it is busy for this time, in milliseconds; also other threads
 * that call machtrace_watch_thread. 0 by default: they are not watched. A thread is idle between
 * machtrace_idle_begin and machtrace_idle_end. On Apple's systems the main run loop states both, by
 * observers; a thread that states nothing is not judged. On Linux such a thread is idle in the
 * outermost wait for several descriptors (epoll_wait, select, poll), which is that of its event
 * loop.
 *
 * @field functions, function_count
 * Functions to watch from the start.
 *
 * @field cpu_percent, cpu_seconds
 * Record the busiest thread if the process uses this share of one processor over this time,
 * which is 60 seconds by default. 0 percent: no such condition.
 *
 * @field memory_limit
 * Record the thread that touches most new memory when this number of bytes is resident. 0: no such
 * condition. On Apple's systems it is the footprint that counts, and the busiest thread is recorded.
 *
 * @field rotate_seconds
 * Begin another spool when the present one is this old, or its log is nearly full; 0 by default:
 * never. See machtrace_rotate.
 *
 * @field spool_finished, spool_context
 * Called with the path of a spool to which nothing is written any more, and with the context: after
 * a rotation, and at the start if an earlier process left one; NULL by default. It may upload or
 * move the file. A thread of the agent calls, all of whose signals are blocked: the function must not
 * call the agent but for machtrace_upload. Until it returns no other rotation begins,
 * machtrace_rotate and machtrace_stop wait, and MACHTRACE_AT_ENTRY may be refused.
 */
typedef struct machtrace_options {
    uint32_t size;
    uint32_t tree_bits;
    const char *spool_path;
    uint64_t spool_size;
    uint32_t older_spools;
    uint32_t threads_max;
    uint32_t interval_ms;
    uint32_t hang_ms;
    const machtrace_function_t *functions;
    size_t function_count;
    uint32_t cpu_percent;
    uint32_t cpu_seconds;
    uint64_t memory_limit;
    void (*spool_finished)(const char *path, void *context);
    void *spool_context;
    uint32_t rotate_seconds;
    uint32_t reserved;
} machtrace_options_t;

/*!
 * @struct machtrace_upload_t
 * How machtrace_upload uploads, and what became of that. Set `size` to sizeof(machtrace_upload_t) and
 * the rest to zero for defaults; it must exist as long as the agent runs.
 *
 * @field size
 * The size of this structure in bytes.
 *
 * @field timeout_ms
 * How long an upload may take, in milliseconds; 60,000 by default.
 *
 * @field url
 * Where to: http:// or https://. Required.
 *
 * @field headers, header_count
 * Lines of the request's head, such as "Authorization: Bearer ...".
 *
 * @field library
 * libcurl, as dlopen(3) finds it; "libcurl.so.4" by default. The first one that is loaded is used.
 *
 * @field uses_put
 * Send PUT; POST by default. The file is the request's body.
 *
 * @field delete_when_done
 * Remove the file once the server has answered with a status from 200 to 299.
 *
 * @field error
 * Set to 0 if the last file was uploaded, else to a value of errno(2): ENOTSUP if there is no libcurl,
 * EPROTO for another status, ETIMEDOUT, ECONNREFUSED, ECONNRESET, EHOSTUNREACH if the server's name
 * is unknown, EINVAL for an invalid address, ECANCELED if the agent was stopped or the program exits.
 *
 * @field status
 * Set to the last answer's status; 0 if there was none.
 *
 * @field curl_code
 * Set to what curl_easy_perform(3) returned.
 *
 * @field uploaded, failed
 * Incremented when a file was uploaded, and when one was not, or could not be removed: after the
 * fields above are set.
 */
typedef struct machtrace_upload_context {
    uint32_t size;
    uint32_t timeout_ms;
    const char *url;
    const char *const *headers;
    size_t header_count;
    const char *library;
    bool uses_put;
    bool delete_when_done;
    int32_t error;
    int32_t status;
    int32_t curl_code;
    uint64_t uploaded;
    uint64_t failed;
} machtrace_upload_t;

/*!
 * @struct machtrace_losses_t
 * What was counted and not stored since the start.
 *
 * @field events_counted
 * Calls whose time and thread are lost; they are counted with their function and stack.
 *
 * @field stacks_incomplete
 * Stacks whose inner frames were not stored, since the tree of frames was full.
 *
 * @field stacks_cut
 * Stacks with more than a million frames, whose outer frames were not stored.
 *
 * @field ignored
 * Calls that the agent itself made.
 */
typedef struct machtrace_losses {
    uint64_t events_counted;
    uint64_t stacks_incomplete;
    uint64_t stacks_cut;
    uint64_t ignored;
} machtrace_losses_t;

/*!
 * @function machtrace_start
 * Create the spool, watch functions, and start the agent's thread.
 *
 * @discussion
 * After fork(2) the child records nothing and its calls reach the functions as before; it may call
 * this function itself, with another path. Do not call it from a signal handler.
 *
 * @param options
 * How; copied before this function returns.
 *
 * @result
 * 0; EALREADY if the agent runs; EINVAL for options that are invalid; EBUSY if another agent writes
 * the file; else why the file cannot be created, such as ENOSPC, EROFS or EACCES. Nothing is watched
 * unless the result is 0.
 */
MACHTRACE_EXPORT int machtrace_start(const machtrace_options_t *options);

/*!
 * @function machtrace_stop
 * Restore every import and instruction that was changed, write what was recorded, and end the agent's thread.
 *
 * @result
 * 0; ESRCH if the agent does not run; EBUSY if other software has replaced a hook of the agent
 * since, which was left. Calls through it still reach the function.
 */
MACHTRACE_EXPORT int machtrace_stop(void);

/*!
 * @function machtrace_rotate
 * End the spool and begin another one.
 *
 * @discussion
 * The ended one is renamed to PATH.1, an older one to PATH.2, and so on as at a start. Each call is in
 * one of them. Each has all that its calls refer to, and can be read alone.
 *
 * @result
 * 0; ESRCH if the agent does not run; else why no other file can be created: the present spool stays.
 */
MACHTRACE_EXPORT int machtrace_rotate(void);

/*!
 * @function machtrace_upload
 * Upload a file by HTTP: for spool_finished, or for files that could not be uploaded before.
 *
 * @discussion
 * Linux: libcurl is loaded at the first call, and the file streamed. libcurl's calls are the agent's
 * own. A file that could not be uploaded stays. Without libcurl, and on Apple's systems, every upload
 * fails with ENOTSUP. machtrace_stop ends an upload of the agent's within a second or so, and
 * exit(3) every one.
 *
 * @param path
 * The file.
 *
 * @param context
 * A machtrace_upload_t; nothing is done if its size is another.
 */
MACHTRACE_EXPORT void machtrace_upload(const char *path, void *context);

/*!
 * @function machtrace_watch
 * Watch further functions, in all images that are loaded, and in those that are loaded later.
 *
 * @param functions
 * Which; copied before this function returns.
 *
 * @param count
 * How many.
 *
 * @result
 * 0; ESRCH if the agent does not run; EINVAL for an invalid name; ENOSPC if there are too many.
 */
MACHTRACE_EXPORT int machtrace_watch(const machtrace_function_t *functions, size_t count);

/*!
 * @function machtrace_watch_thread
 * Watch the calling thread for hangs, as the main thread.
 *
 * @result
 * 0; ESRCH if nothing is watched for hangs, ENOSPC if too many threads are.
 */
MACHTRACE_EXPORT int machtrace_watch_thread(void);

/*!
 * @function machtrace_idle_begin
 * State that the calling thread waits for work from now on.
 */
MACHTRACE_EXPORT void machtrace_idle_begin(void);

/*!
 * @function machtrace_idle_end
 * State that the calling thread begins a piece of work, which ends at the next
 * machtrace_idle_begin, or at the next call of this function.
 */
MACHTRACE_EXPORT void machtrace_idle_end(void);

/*!
 * @function machtrace_function_state
 * What became of a function.
 *
 * @param name
 * As it was given to machtrace_start or machtrace_watch.
 *
 * @param calls
 * Set to its calls so far; may be NULL.
 *
 * @result
 * A machtrace_state_t; -1 if the function is not to be watched.
 */
MACHTRACE_EXPORT int machtrace_function_state(const char *name, uint64_t *calls);

/*!
 * @enum machtrace_consent_t
 * Whether the user has agreed to the use of private data.
 *
 * @constant MACHTRACE_CONSENT_UNSTATED
 * The program does not state it.
 *
 * @constant MACHTRACE_CONSENT_ABSENT
 * Not yet.
 *
 * @constant MACHTRACE_CONSENT_GIVEN
 * Yes.
 *
 * @constant MACHTRACE_CONSENT_WITHDRAWN
 * Not any more.
 */
typedef enum machtrace_consent {
    MACHTRACE_CONSENT_UNSTATED = 0,
    MACHTRACE_CONSENT_ABSENT = 1,
    MACHTRACE_CONSENT_GIVEN = 2,
    MACHTRACE_CONSENT_WITHDRAWN = 3
} machtrace_consent_t;

/*!
 * @function machtrace_set_consent
 * State whether the user has consented. Every call from now on, by all threads, is recorded with it.
 *
 * @discussion
 * The time is stored as a mark. A function that is called when the user agrees can state it as well:
 * see MACHTRACE_GIVES_CONSENT. Calls that are only counted (MACHTRACE_COUNT_ONLY) have no state.
 *
 * @param consent
 * The state; a value that is none has no effect.
 */
MACHTRACE_EXPORT void machtrace_set_consent(machtrace_consent_t consent);

/*!
 * @function machtrace_consent
 * The state that calls are recorded with.
 *
 * @result
 * What was stated last.
 */
MACHTRACE_EXPORT machtrace_consent_t machtrace_consent(void);

/*!
 * @function machtrace_set_background
 * State whether the program is in the background. Every call from now on is recorded with it.
 *
 * @param is_background
 * Whether it is. False at the start.
 */
MACHTRACE_EXPORT void machtrace_set_background(bool is_background);

/*!
 * @function machtrace_mark
 * Store the time and a text, such as the step of a test.
 *
 * @param text
 * In UTF-8; 256 bytes of it are stored.
 */
MACHTRACE_EXPORT void machtrace_mark(const char *text);

/*!
 * @function machtrace_flush
 * Return once all calls that this thread made before are in the spool.
 */
MACHTRACE_EXPORT void machtrace_flush(void);

/*!
 * @function machtrace_get_losses
 * Read what was counted and not stored.
 *
 * @param losses
 * Set to the counts since the start.
 */
MACHTRACE_EXPORT void machtrace_get_losses(machtrace_losses_t *losses);

/*!
 * @function machtrace_backtrace
 * Take the stack of a thread.
 *
 * @discussion
 * Stacks are read along frame pointers: compile with -fno-omit-frame-pointer. A function without
 * one is missing, or ends the stack. The calling thread's stack begins with the function that calls
 * this one; another thread's with the instruction that it is at, and if that is in a function's
 * first instructions, the caller may be missing. Another thread is stopped for some microseconds.
 *
 * Of the calling thread nothing is allocated and no lock is taken, and this function may be called
 * in the handler of a signal. Of another thread it must not.
 *
 * @param thread
 * Which; MACHTRACE_THREAD_SELF for the calling one.
 *
 * @param frames
 * Set to the addresses of the innermost frames, return addresses but for another thread's first.
 *
 * @param capacity
 * How many addresses frames has room for.
 *
 * @result
 * How many frames the stack has, which may be more than capacity; 0 if the thread does not exist or
 * could not be stopped.
 */
MACHTRACE_EXPORT size_t machtrace_backtrace(machtrace_thread_t thread, uint64_t *frames,
                                            size_t capacity);

/*!
 * @function machtrace_app_frames
 * Remove the frames that are not of the app: what remains is its program's, that of libraries in the
 * app's bundle or beside its program, and that of others outside of the system's folders.
 *
 * @discussion
 * Images that were loaded since the agent's last look, at most machtrace_options_t.interval_ms ago,
 * may be missing. May be called in the handler of a signal.
 *
 * @param frames
 * Return addresses, as machtrace_backtrace sets them; changed in place, their order stays.
 *
 * @param frame_count
 * How many addresses frames has.
 *
 * @result
 * How many remain.
 */
MACHTRACE_EXPORT size_t machtrace_app_frames(uint64_t *frames, size_t frame_count);

/*!
 * @function machtrace_stack_identity
 * A number that equal stacks of the calling thread have, and no different ones, in this process.
 *
 * @result
 * The number; 0 if there was no room to store the stack.
 */
MACHTRACE_EXPORT uint32_t machtrace_stack_identity(void);

/*!
 * @function machtrace_call_stack_symbols
 * Write the calling thread's stack as +[NSThread callStackSymbols] has it, a line for each frame.
 *
 * @discussion
 * The text of a stack is computed once. It may allocate and use the loader's lock: not for the
 * handlers of signals.
 *
 * @param text
 * Set to the text, truncated to size, and ended with a zero; NULL if size is 0.
 *
 * @param size
 * Bytes that text has room for.
 *
 * @result
 * The length of the whole text, without the zero.
 */
MACHTRACE_EXPORT size_t machtrace_call_stack_symbols(char *text, size_t size);

#if defined(__cplusplus)
}
#endif

#endif
