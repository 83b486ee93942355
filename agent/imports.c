/* See imports.h and hooks.h. */
#define _GNU_SOURCE
#include "imports.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "app_state.h"
#include "entries.h"
#include "recorder.h"
#include "rule_names.h"
#include "saved_words.h"

#define UNBOUND "import slots that the loader has not bound are not watched"
#define REMEDY "set LD_BIND_NOW=1"

_Atomic bool machtrace_imports_are_pending;
uint64_t machtrace_real[MACHTRACE_REPLACEMENTS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool is_enabled; /* from the start to the stop */

/* --- changes --- */

static bool is_loaded(const struct machtrace_agent_image *image)
{
    return atomic_load(&image->is_loaded);
}

static bool is_agent(const struct machtrace_agent_image *image)
{
#ifdef MACHTRACE_AGENT_LIBRARY
    uint64_t address = (uint64_t)(uintptr_t)machtrace_stubs;
    return address >= image->start && address < image->end;
#else
    (void)image;
    return false;
#endif
}

/* Whether a slot leads to a stub: in the child of a fork, or since the slot was left at a stop. */
static bool is_bound(int rule, uint64_t value)
{
    int stub = machtrace_stub_at(value);
    if (stub >= 0 && rule >= 0 && machtrace_bindings[stub].rule == rule)
        atomic_store(&machtrace_rules[rule].state, MACHTRACE_RULE_BOUND);
    return stub >= 0;
}

struct machtrace_change *machtrace_add_change(struct machtrace_changes *changes,
                                              const struct machtrace_agent_image *image,
                                              const char *symbol, uint64_t slot)
{
    uint64_t value = atomic_load((_Atomic uint64_t *)(uintptr_t)slot);
    uint64_t before;
    int rule = -1;
    if (changes->names != NULL) {
        rule = machtrace_rule_of_name(changes->names, symbol);
        if (rule == MACHTRACE_RULE_NONE || is_bound(rule, machtrace_slot_address(value)))
            return NULL;
    } else if (machtrace_stub_at(machtrace_slot_address(value)) < 0 &&
               !machtrace_saved_word(slot, &before)) {
        return NULL;
    }
    if (changes->count == changes->room) {
        size_t room = changes->room == 0 ? 256 : 2 * changes->room;
        struct machtrace_change *larger = realloc(changes->all, room * sizeof *larger);
        if (larger == NULL) {
            changes->is_complete = false;
            return NULL;
        }
        changes->all = larger;
        changes->room = room;
    }
    struct machtrace_change *change = &changes->all[changes->count++];
    *change = (struct machtrace_change){
        .slot = slot, .value = value, .rule = rule, .image = image};
    return change;
}

void machtrace_drop_change(struct machtrace_changes *changes)
{
    changes->count--;
}

/* Phase one: what to change, in images that are held from now on. Without names the images alone. */
static void prepare(struct machtrace_changes *changes, const struct machtrace_names *names,
                    uint32_t version)
{
    memset(changes, 0, sizeof *changes);
    changes->is_complete = true;
    changes->names = names;
    uint32_t count = machtrace_image_count();
    changes->images = calloc(count + 1, sizeof *changes->images);
    if (changes->images == NULL) {
        changes->is_complete = false;
        return;
    }
    for (uint32_t index = 0; index < count; index++) {
        struct machtrace_agent_image *image = machtrace_image(index);
        if (!is_loaded(image) || is_agent(image) ||
            (names != NULL && atomic_load(&image->hooked) == version))
            continue;
        void *handle = machtrace_hold_image(image);
        if (handle == NULL)
            continue;
        changes->images[changes->image_count++] = (struct machtrace_held){image, handle};
        if (names == NULL)
            continue;
        size_t before = changes->count;
        machtrace_find_slots(changes, image, handle);
        if (changes->count > before)
            atomic_store(&image->slot, changes->all[before].slot);
    }
}

/* Phase three. */
static void finish(struct machtrace_changes *changes)
{
    for (size_t index = 0; index < changes->image_count; index++)
        if (changes->images[index].handle != NULL)
            machtrace_release_image(changes->images[index].handle);
    free(changes->images);
    free(changes->all);
}

static bool replace(const struct machtrace_change *change, uint64_t expected, uint64_t value)
{
    return atomic_compare_exchange_strong((_Atomic uint64_t *)(uintptr_t)change->slot, &expected,
                                          value);
}

/* Apply changes in order; those of the same pages are consecutive, so they change twice. */
static void apply(const struct machtrace_changes *changes, struct machtrace_imports_result *result,
                  void (*one)(const struct machtrace_change *change,
                              struct machtrace_imports_result *result))
{
    const struct machtrace_change *writable = NULL;
    for (size_t index = 0; index < changes->count; index++) {
        const struct machtrace_change *change = &changes->all[index];
        if (change->pages_end != 0 &&
            (writable == NULL || writable->pages_start != change->pages_start)) {
            if (writable != NULL)
                machtrace_protect(writable, false);
            writable = machtrace_protect(change, true) ? change : NULL;
            if (writable == NULL) {
                result->left++;
                continue;
            }
        }
        one(change, result);
    }
    if (writable != NULL)
        machtrace_protect(writable, false);
}

static void leave(const struct machtrace_change *change, struct machtrace_watched *rule,
                  struct machtrace_imports_result *result)
{
    result->unbound++;
    result->unbound_image = change->image;
    /* The reason, unless another slot of it is hooked. */
    if (rule == NULL || atomic_load(&rule->state) == MACHTRACE_RULE_BOUND)
        return;
    strcpy(rule->other, "the loader has not bound it: " REMEDY);
    atomic_store(&rule->state, MACHTRACE_RULE_REFUSED);
}

static void bind_one(const struct machtrace_change *change, struct machtrace_imports_result *result)
{
    struct machtrace_watched *rule = change->rule < 0 ? NULL : &machtrace_rules[change->rule];
    enum machtrace_replacement replacement =
        rule == NULL ? (enum machtrace_replacement)(MACHTRACE_RULE_NONE - change->rule)
                     : machtrace_replacement_of_name(rule->symbol);
    if (replacement != MACHTRACE_NOT_REPLACED && machtrace_real[replacement] == 0) {
        if (change->target == 0)
            return;
        machtrace_real[replacement] = change->target;
    }
    int stub = machtrace_bind_change(
        change, rule == NULL ? MACHTRACE_NO_RULE : (uint16_t)change->rule, replacement);
    if (stub < 0) {
        if (change->unbound.info != 0)
            leave(change, rule, result);
        else if (rule != NULL)
            atomic_store(&rule->state, MACHTRACE_RULE_NO_STUB);
        return;
    }
    if (!machtrace_save_word(change->slot, change->value))
        return;
    uint64_t address = (uint64_t)(uintptr_t)machtrace_stubs +
                       (uint64_t)stub * MACHTRACE_STUB_SIZE;
    /* If the loader has resolved it meanwhile, it leads to the same function; that is restored
     * then, and not what was before. */
    uint64_t value = change->value, word = machtrace_slot_word(change, address);
    while (!replace(change, value, word)) {
        value = atomic_load((_Atomic uint64_t *)(uintptr_t)change->slot);
        if (machtrace_stub_at(machtrace_slot_address(value)) >= 0)
            return;
        machtrace_save_word(change->slot, value);
    }
    result->changed++;
    if (rule != NULL) {
        if (change->unbound.info == 0)
            atomic_store(&rule->target, change->target);
        else if (atomic_load(&rule->state) != MACHTRACE_RULE_BOUND)
            atomic_store(&rule->target, 0); /* until the loader has bound one */
        atomic_store(&rule->state, MACHTRACE_RULE_BOUND);
        atomic_fetch_add(&rule->slots, 1);
    }
}

static void restore_one(const struct machtrace_change *change, struct machtrace_imports_result *result)
{
    uint64_t before;
    if (!machtrace_saved_word(change->slot, &before))
        return;
    if (machtrace_stub_at(machtrace_slot_address(change->value)) >= 0 &&
        replace(change, change->value, before))
        result->changed++;
    else if (change->value != before)
        result->left++;
}

/* --- all of it --- */

static void find_absent(void)
{
    uint32_t count = atomic_load(&machtrace_rule_count);
    for (uint32_t index = 0; index < count; index++) {
        struct machtrace_watched *rule = &machtrace_rules[index];
        uint32_t state = atomic_load(&rule->state);
        if (state != MACHTRACE_RULE_UNUSED && state != MACHTRACE_RULE_ABSENT)
            continue;
        void *function = dlsym(RTLD_DEFAULT, rule->symbol);
        atomic_store(&rule->target, machtrace_slot_address((uint64_t)(uintptr_t)function));
        atomic_store(&rule->state,
                     function == NULL ? MACHTRACE_RULE_ABSENT : MACHTRACE_RULE_UNUSED);
    }
}

int machtrace_bind_target(uint16_t rule, uint64_t target)
{
    pthread_mutex_lock(&lock);
    int stub = machtrace_bind(rule, target, MACHTRACE_NOT_REPLACED);
    pthread_mutex_unlock(&lock);
    return stub;
}

/* Once on the standard error stream, and in each spool. */
static void say_unbound(const struct machtrace_imports_result *result)
{
    static _Atomic bool is_said;
    char text[MACHTRACE_MARK_TEXT_MAX];
    struct timespec time;
    if (result->unbound == 0)
        return;
    const char *name = strrchr(result->unbound_image->path, '/');
    snprintf(text, sizeof text, UNBOUND ": %" PRIu64 ", one in %.64s; " REMEDY,
             result->unbound, name == NULL ? result->unbound_image->path : name + 1);
    if (!atomic_exchange(&is_said, true))
        fprintf(stderr, "machtrace: %s\n", text);
    clock_gettime(CLOCK_MONOTONIC, &time);
    machtrace_log_mark((uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec,
                       atomic_load(&machtrace_recorders.app_state) >> MACHTRACE_STATE_SHIFT, text);
}

/* False if another thread does the same: then that is done later. */
bool machtrace_bind_all(struct machtrace_imports_result *result, bool waits)
{
    struct machtrace_names names;
    struct machtrace_changes changes;
    uint32_t version = atomic_load(&machtrace_rules_version);
    if (version == 0)
        return true;
    if (!machtrace_images_update(waits))
        return false;
    machtrace_read_rule_names(&names);
    prepare(&changes, &names, version);
    bool is_locked = true;
    if (waits)
        pthread_mutex_lock(&lock);
    else
        is_locked = pthread_mutex_trylock(&lock) == 0;
    if (is_locked && !is_enabled) {
        pthread_mutex_unlock(&lock);
    } else if (is_locked) {
        apply(&changes, result, bind_one);
        for (size_t index = 0; index < changes.image_count && changes.is_complete; index++)
            atomic_store(&changes.images[index].image->hooked, version);
        pthread_mutex_unlock(&lock);
        machtrace_publish_bodies();
        find_absent();
    }
    finish(&changes);
    say_unbound(result);
    uint64_t before = result->changed;
    machtrace_bind_methods(result, waits);
    if (!machtrace_bind_entries(result, waits))
        atomic_store(&machtrace_imports_are_pending, true);
    if (result->changed != before)
        machtrace_publish_bodies();
    return is_locked;
}

void machtrace_bind_image(struct machtrace_agent_image *image)
{
    struct machtrace_names names;
    struct machtrace_changes changes = {.is_complete = true, .names = &names};
    struct machtrace_imports_result result = {0};
    if (is_agent(image))
        return;
    machtrace_read_rule_names(&names);
    machtrace_find_slots(&changes, image, NULL);
    pthread_mutex_lock(&lock);
    if (is_enabled)
        apply(&changes, &result, bind_one);
    pthread_mutex_unlock(&lock);
    if (result.changed != 0)
        machtrace_publish_bodies();
    finish(&changes);
}

bool machtrace_imports_are_enabled(void)
{
    return atomic_load(&is_enabled);
}

void machtrace_bind_imports(struct machtrace_imports_result *result)
{
    memset(result, 0, sizeof *result);
    machtrace_ignore_enter();
    atomic_store(&machtrace_imports_are_pending, false);
    machtrace_bind_all(result, true);
    machtrace_ignore_leave();
}

void machtrace_enable_imports(void)
{
    machtrace_imports_begin();
    pthread_mutex_lock(&lock);
    is_enabled = true;
    pthread_mutex_unlock(&lock);
}

void machtrace_restore_imports(struct machtrace_imports_result *result)
{
    struct machtrace_changes changes;
    memset(result, 0, sizeof *result);
    machtrace_ignore_enter();
    /* Nothing is bound from here on, so all that is will be found. */
    pthread_mutex_lock(&lock);
    is_enabled = false;
    pthread_mutex_unlock(&lock);
    machtrace_restore_methods(result);
    machtrace_restore_entries(result);
    machtrace_images_update(true);
    prepare(&changes, NULL, 0);
    pthread_mutex_lock(&lock);
    for (size_t index = 0; index < changes.image_count; index++)
        machtrace_find_slots(&changes, changes.images[index].image, changes.images[index].handle);
    apply(&changes, result, restore_one);
    result->left += !changes.is_complete;
    machtrace_forget_saved_words();
    uint32_t count = machtrace_image_count();
    for (uint32_t index = 0; index < count; index++)
        atomic_store(&machtrace_image(index)->hooked, 0);
    pthread_mutex_unlock(&lock);
    finish(&changes);
    machtrace_ignore_leave();
}

void machtrace_imports_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
    machtrace_methods_after_fork();
    machtrace_entries_after_fork();
}
