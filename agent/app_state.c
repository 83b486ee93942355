/* See app_state.h. */
#define _GNU_SOURCE
#include "app_state.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "drain.h"
#include "machtrace.h"
#include "recorder.h"

void machtrace_log_mark(uint64_t time, uint32_t state, const char *text)
{
    struct {
        uint64_t time;
        uint32_t state, reserved;
        char text[MACHTRACE_MARK_TEXT_MAX];
    } record = {.time = time, .state = state};
    size_t length = strlen(text);
    if (length > sizeof record.text)
        length = sizeof record.text;
    memcpy(record.text, text, length);
    machtrace_drain_log(MACHTRACE_SPOOL_MARK, &record,
                        (uint32_t)(sizeof record - sizeof record.text + length));
}

static void mark_now(const char *text)
{
    struct timespec time;
    if (atomic_load(&machtrace_recorders.consent) != 0)
        machtrace_flush(); /* it precedes this one */
    clock_gettime(CLOCK_MONOTONIC, &time);
    machtrace_log_mark((uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec,
                       atomic_load(&machtrace_recorders.app_state) >> MACHTRACE_STATE_SHIFT, text);
}

/* Whether it differs from the last state. */
static bool change(uint16_t bits, uint16_t value)
{
    _Atomic uint16_t *word = &machtrace_recorders.app_state;
    uint16_t state = atomic_load(word), next;
    do {
        next = (uint16_t)((state & ~bits) | value);
        if (next == state)
            return false;
    } while (!atomic_compare_exchange_weak(word, &state, next));
    return true;
}

static void change_and_mark(uint16_t bits, uint16_t value)
{
    int before = errno;
    machtrace_ignore_enter();
    if (change(bits, value))
        mark_now("");
    machtrace_ignore_leave();
    errno = before;
}

void machtrace_set_consent(machtrace_consent_t consent)
{
    if ((unsigned)consent <= MACHTRACE_CONSENT_WITHDRAWN)
        change_and_mark(MACHTRACE_CONSENT_BITS, (uint16_t)(consent << MACHTRACE_STATE_SHIFT));
}

machtrace_consent_t machtrace_consent(void)
{
    unsigned state = atomic_load(&machtrace_recorders.app_state);
    return (machtrace_consent_t)((state & MACHTRACE_CONSENT_BITS) >> MACHTRACE_STATE_SHIFT);
}

void machtrace_set_background(bool is_background)
{
    change_and_mark(MACHTRACE_BACKGROUND_BIT, is_background ? MACHTRACE_BACKGROUND_BIT : 0);
}

void machtrace_mark(const char *text)
{
    int before = errno;
    machtrace_ignore_enter();
    if (text != NULL)
        mark_now(text);
    machtrace_ignore_leave();
    errno = before;
}
