/* See imports.h and hooks.h. */
#define _GNU_SOURCE
#include "imports.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "entries.h"
#include "recorder.h"

_Atomic bool machtrace_imports_are_pending;
uint64_t machtrace_real_dlopen, machtrace_real_dlclose;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool is_enabled; /* from the start to the stop */

/* --- what slots had --- */

struct saved {
    uint64_t slot, value;
};

static struct saved *saved; /* open addressing by slot */
static size_t saved_count, saved_room;

static struct saved *saved_at(uint64_t slot)
{
    size_t index = (size_t)(slot * UINT64_C(0x9e3779b97f4a7c15) >> 32) & (saved_room - 1);
    while (saved[index].slot != 0 && saved[index].slot != slot)
        index = (index + 1) & (saved_room - 1);
    return &saved[index];
}

static bool save(uint64_t slot, uint64_t value)
{
    if (2 * saved_count >= saved_room) {
        size_t old_room = saved_room;
        struct saved *old = saved;
        size_t room = old_room == 0 ? 1024 : 2 * old_room;
        struct saved *larger = calloc(room, sizeof *larger);
        if (larger == NULL)
            return false;
        saved = larger;
        saved_room = room;
        for (size_t index = 0; index < old_room; index++)
            if (old[index].slot != 0)
                *saved_at(old[index].slot) = old[index];
        free(old);
    }
    struct saved *entry = saved_at(slot);
    saved_count += entry->slot == 0;
    *entry = (struct saved){slot, value};
    return true;
}

/* --- the rules by name --- */

#define NAME_SLOTS 2048

struct machtrace_names {
    int16_t rules[NAME_SLOTS]; /* the rule and one; 0 where the slot is free */
    uint32_t count;
};

#define RULE_DLOPEN (-2)
#define RULE_DLCLOSE (-3)

static uint32_t hash_of(const char *name)
{
    uint32_t hash = 5381;
    for (; *name != '\0'; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

static void read_rules(struct machtrace_names *names)
{
    memset(names, 0, sizeof *names);
    names->count = atomic_load(&machtrace_rule_count);
    for (uint32_t rule = 0; rule < names->count; rule++) {
        if (!atomic_load(&machtrace_rules[rule].is_active) || machtrace_is_at_entry(rule))
            continue;
        uint32_t index = hash_of(machtrace_rules[rule].symbol) % NAME_SLOTS;
        while (names->rules[index] != 0)
            index = (index + 1) % NAME_SLOTS;
        names->rules[index] = (int16_t)(rule + 1);
    }
}

/* The rule of a function; -1 if there is none. */
static int rule_of(const struct machtrace_names *names, const char *name)
{
    uint32_t index = hash_of(name) % NAME_SLOTS;
    for (; names->rules[index] != 0; index = (index + 1) % NAME_SLOTS)
        if (strcmp(machtrace_rules[names->rules[index] - 1].symbol, name) == 0)
            return names->rules[index] - 1;
    return strcmp(name, "dlopen") == 0    ? RULE_DLOPEN
           : strcmp(name, "dlclose") == 0 ? RULE_DLCLOSE
                                          : -1;
}

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
    int rule = -1;
    if (changes->names != NULL) {
        rule = rule_of(changes->names, symbol);
        if (rule == -1 || is_bound(rule, machtrace_slot_address(value)))
            return NULL;
    } else if (machtrace_stub_at(machtrace_slot_address(value)) < 0 &&
               (saved_room == 0 || saved_at(slot)->slot == 0)) {
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
        if (names != NULL)
            machtrace_find_slots(changes, image, handle);
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

static void bind_one(const struct machtrace_change *change, struct machtrace_imports_result *result)
{
    struct machtrace_watched *rule = change->rule < 0 ? NULL : &machtrace_rules[change->rule];
    const char *name = rule == NULL ? "" : rule->symbol;
    enum machtrace_replacement replacement = MACHTRACE_NOT_REPLACED;
    if (change->rule == RULE_DLOPEN || strcmp(name, "dlopen") == 0) {
        replacement = MACHTRACE_DLOPEN;
        if (machtrace_real_dlopen == 0)
            machtrace_real_dlopen = change->target;
    } else if (change->rule == RULE_DLCLOSE || strcmp(name, "dlclose") == 0) {
        replacement = MACHTRACE_DLCLOSE;
        if (machtrace_real_dlclose == 0)
            machtrace_real_dlclose = change->target;
    }
    int stub = machtrace_bind(rule == NULL ? MACHTRACE_NO_RULE : (uint16_t)change->rule,
                              change->target, replacement);
    if (stub < 0) {
        if (rule != NULL)
            atomic_store(&rule->state, MACHTRACE_RULE_NO_STUB);
        return;
    }
    if (!save(change->slot, change->value))
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
        save(change->slot, value);
    }
    result->changed++;
    if (rule != NULL) {
        atomic_store(&rule->target, change->target);
        atomic_store(&rule->state, MACHTRACE_RULE_BOUND);
        atomic_fetch_add(&rule->slots, 1);
    }
}

static void restore_one(const struct machtrace_change *change, struct machtrace_imports_result *result)
{
    struct saved *entry = saved_room == 0 ? NULL : saved_at(change->slot);
    if (entry == NULL || entry->slot == 0)
        return;
    if (machtrace_stub_at(machtrace_slot_address(change->value)) >= 0 &&
        replace(change, change->value, entry->value))
        result->changed++;
    else if (change->value != entry->value)
        result->left++;
}

/* --- bodies of watched functions, and rules without imports --- */

static int by_address(const void *one, const void *other)
{
    const uint64_t *first = one, *second = other;
    return *first < *second ? -1 : *first > *second;
}

/* Earlier ones stay, since threads may use them; there are few, since stubs are not released. */
void machtrace_publish_bodies(void)
{
    struct machtrace_recorders *all = &machtrace_recorders;
    const struct machtrace_bodies *last = atomic_load(&all->bodies);
    uint32_t stubs = 0;
    while (stubs < MACHTRACE_STUBS && atomic_load(&machtrace_bindings[stubs].target) != 0)
        stubs++;
    if (last != NULL && last->stubs >= stubs)
        return;
    struct machtrace_bodies *bodies =
        malloc(sizeof *bodies + stubs * sizeof bodies->ranges[0]);
    if (bodies == NULL)
        return;
    size_t count = 0;
    for (uint32_t stub = 0; stub < stubs; stub++) {
        const struct machtrace_binding *binding = &machtrace_bindings[stub];
        uint64_t target = machtrace_entry_function(atomic_load(&binding->target));
        uint64_t size =
            binding->rule == MACHTRACE_NO_RULE ? 0 : machtrace_function_size(target);
        if (size == 0)
            continue;
        bodies->ranges[count].start = target;
        bodies->ranges[count].end = target + size;
        count++;
    }
    qsort(bodies->ranges, count, sizeof bodies->ranges[0], by_address);
    /* Several stubs may lead to one function. */
    bodies->count = 0;
    for (size_t index = 0; index < count; index++)
        if (bodies->count == 0 ||
            bodies->ranges[bodies->count - 1].start != bodies->ranges[index].start)
            bodies->ranges[bodies->count++] = bodies->ranges[index];
    bodies->stubs = stubs;
    bodies->earlier = last;
    if (atomic_compare_exchange_strong(&all->bodies, &last, bodies))
        atomic_fetch_add(&all->generation, 1);
    else
        free(bodies); /* another thread knows as much, or will at the next change */
}

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

/* --- all of it --- */

int machtrace_bind_target(uint16_t rule, uint64_t target)
{
    pthread_mutex_lock(&lock);
    int stub = machtrace_bind(rule, target, MACHTRACE_NOT_REPLACED);
    pthread_mutex_unlock(&lock);
    return stub;
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
    read_rules(&names);
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
        if (result->changed != 0)
            machtrace_publish_bodies();
        find_absent();
    }
    finish(&changes);
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
    struct machtrace_imports_result result = {0, 0};
    if (is_agent(image))
        return;
    read_rules(&names);
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
    if (saved != NULL)
        memset(saved, 0, saved_room * sizeof *saved);
    saved_count = 0;
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
