/* See hooks.h. */
#include "hooks.h"

#include "recorder.h"

struct machtrace_watched machtrace_rules[MACHTRACE_RULES_MAX];
_Atomic uint32_t machtrace_rule_count;
_Atomic uint32_t machtrace_rules_version;
struct machtrace_binding machtrace_bindings[MACHTRACE_STUBS];

static _Atomic uint32_t not_recording;
_Atomic uint32_t *machtrace_recording = &not_recording;

static _Atomic uint32_t binding_count;

uint64_t machtrace_hook_entry(uint32_t stub, uint64_t caller, uint64_t sp, uint64_t fp,
                              const uint64_t *arguments)
{
    const struct machtrace_binding *binding = &machtrace_bindings[stub];
    uint64_t target;
    /* The slot that leads here may be visible to a thread before its binding. A weak import that
     * nothing defines is 0 once the loader has bound it. */
    while ((target = atomic_load_explicit(&binding->target, memory_order_acquire)) == 0 &&
           atomic_load_explicit(&binding->late, memory_order_relaxed) == NULL)
        continue;
    if (atomic_load_explicit(machtrace_recording, memory_order_relaxed) == 0)
        return target;
    uint16_t rule = binding->rule;
    if (rule != MACHTRACE_NO_RULE &&
        atomic_load_explicit(&machtrace_rules[rule].is_active, memory_order_relaxed))
        machtrace_record(
            rule,
            (enum machtrace_stacks)atomic_load_explicit(&machtrace_rules[rule].stacks,
                                                        memory_order_relaxed),
            caller, sp, fp);
    if (rule != MACHTRACE_NO_RULE &&
        atomic_load_explicit(&machtrace_rules[rule].gives_consent, memory_order_relaxed))
        machtrace_give_consent();
    if (binding->replacement == MACHTRACE_NOT_REPLACED || machtrace_is_ignoring())
        return target;
#if defined(__x86_64__)
    const uint64_t first[3] = {arguments[7], arguments[6], arguments[5]};
#else
    const uint64_t *first = arguments;
#endif
    return machtrace_replacement_of(binding, first, caller);
}

const struct machtrace_late *machtrace_late_of(uint32_t stub)
{
    return atomic_load(&machtrace_bindings[stub].late);
}

static int add(uint16_t rule, uint64_t target, const struct machtrace_late *late,
               enum machtrace_replacement replacement)
{
    uint32_t count = atomic_load(&binding_count);
    do {
        if (count == MACHTRACE_STUBS)
            return -1;
    } while (!atomic_compare_exchange_weak(&binding_count, &count, count + 1));
    struct machtrace_binding *binding = &machtrace_bindings[count];
    binding->rule = rule;
    binding->replacement = (uint16_t)replacement;
    atomic_store(&binding->late, late);
    atomic_store(&binding->target, target);
    return (int)count;
}

int machtrace_bind(uint16_t rule, uint64_t target, enum machtrace_replacement replacement)
{
    uint32_t count = atomic_load(&binding_count);
    for (uint32_t index = 0; index < count; index++)
        if (atomic_load(&machtrace_bindings[index].late) == NULL &&
            atomic_load(&machtrace_bindings[index].target) == target &&
            machtrace_bindings[index].rule == rule)
            return (int)index;
    return add(rule, target, NULL, replacement);
}

int machtrace_bind_late(uint16_t rule, const struct machtrace_late *late,
                        enum machtrace_replacement replacement)
{
    return add(rule, MACHTRACE_NOT_BOUND, late, replacement);
}

int machtrace_stub_at(uint64_t address)
{
    uint64_t offset = address - (uint64_t)(uintptr_t)machtrace_stubs;
    if (offset >= (uint64_t)MACHTRACE_STUBS * MACHTRACE_STUB_SIZE ||
        offset % MACHTRACE_STUB_SIZE != 0)
        return -1;
    return (int)(offset / MACHTRACE_STUB_SIZE);
}
