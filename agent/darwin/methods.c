/* Hooks on Objective-C methods: the implementation is replaced by a stub, whose target it is.
 *
 * No message is sent to a class, and none is initialised: of a class its list of methods is read,
 * and those of its superclasses. A method that a class inherits is watched where it is implemented,
 * for all classes that inherit it. The runtime's functions take its lock and may take dyld's, so
 * the lock here is none that a callback of dyld waits for.
 */
#include <dlfcn.h>
#include <objc/runtime.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "imports.h"
#include "recorder.h"
#include "thread.h"

#if defined(__arm64e__)
#include <ptrauth.h>
#endif

/* Looked up, since programs without Objective-C have no runtime. */
#define FUNCTIONS(X)            \
    X(objc_lookUpClass)         \
    X(object_getClass)          \
    X(class_getSuperclass)      \
    X(class_getName)            \
    X(class_copyMethodList)     \
    X(sel_registerName)         \
    X(sel_getName)              \
    X(method_getName)           \
    X(method_getImplementation) \
    X(method_setImplementation)

static struct {
#define POINTER(name) __typeof__(name) *name;
    FUNCTIONS(POINTER)
} objc;

static struct {
    Method method;
    IMP original, stub;
    uint16_t rule;
} replaced[MACHTRACE_RULES_MAX];
static size_t replaced_count;
static _Atomic bool is_missing; /* the method of a rule */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool find_runtime(void)
{
    bool is_whole = true;
#define LOOK_UP(name)                                                                  \
    objc.name = (__typeof__(name) *)(uintptr_t)dlsym(RTLD_DEFAULT, #name);             \
    is_whole = is_whole && objc.name != NULL;
    if (objc.method_setImplementation == NULL) {
        FUNCTIONS(LOOK_UP)
    }
    return is_whole;
}

static uint64_t address_of(IMP implementation)
{
    return machtrace_slot_address((uint64_t)(uintptr_t)implementation);
}

static void *function_at(uint64_t address)
{
    void *function = (void *)(uintptr_t)address;
#if defined(__arm64e__)
    function = ptrauth_sign_unauthenticated(function, ptrauth_key_function_pointer, 0);
#endif
    return function;
}

/* --- looking up --- */

struct found {
    Method method;
    Class owner;
    char other[MACHTRACE_SYMBOL_MAX]; /* a method of the owner with the same implementation */
};

static void write_name(char *text, char kind, Class owner, const char *selector)
{
    const char *name = objc.class_getName(owner);
    if (strlen(name) + strlen(selector) + 5 > MACHTRACE_SYMBOL_MAX) {
        text[0] = '\0';
        return;
    }
    text[0] = kind;
    text[1] = '[';
    strcpy(text + 2, name);
    strcat(text, " ");
    strcat(text, selector);
    strcat(text, "]");
}

static bool find_in_class(Class owner, SEL selector, char kind, struct found *found)
{
    unsigned count = 0;
    Method *methods = objc.class_copyMethodList(owner, &count);
    found->method = NULL;
    found->owner = owner;
    found->other[0] = '\0';
    for (unsigned index = 0; index < count && found->method == NULL; index++)
        if (objc.method_getName(methods[index]) == selector)
            found->method = methods[index];
    for (unsigned index = 0; index < count && found->method != NULL; index++) {
        uint64_t address = address_of(objc.method_getImplementation(methods[index]));
        if (methods[index] != found->method &&
            address == address_of(objc.method_getImplementation(found->method)))
            write_name(found->other, kind, owner,
                       objc.sel_getName(objc.method_getName(methods[index])));
    }
    free(methods);
    return found->method != NULL;
}

/* The method of a rule's name, "-[Class selector:]" or "+[Class selector]". */
static bool find_method(const char *rule, struct found *found)
{
    char name[MACHTRACE_SYMBOL_MAX];
    strcpy(name, rule + 2);
    char *selector = strchr(name, ' ');
    size_t length = strlen(name);
    if (selector == NULL || name[length - 1] != ']')
        return false;
    name[length - 1] = '\0';
    *selector++ = '\0';
    Class owner = objc.objc_lookUpClass(name);
    if (owner != Nil && rule[0] == '+')
        owner = objc.object_getClass((id)owner);
    SEL wanted = objc.sel_registerName(selector);
    for (; owner != Nil; owner = objc.class_getSuperclass(owner))
        if (find_in_class(owner, wanted, rule[0], found))
            return true;
    return false;
}

/* --- replacing --- */

static bool is_replaced(uint32_t rule)
{
    for (size_t index = 0; index < replaced_count; index++)
        if (replaced[index].rule == rule)
            return true;
    return false;
}

/* If another rule has replaced it, the stubs follow each other. */
static void replace(uint16_t number, const struct found *found,
                    struct machtrace_imports_result *result)
{
    struct machtrace_watched *rule = &machtrace_rules[number];
    IMP original = objc.method_getImplementation(found->method);
    int binding = machtrace_bind_target(number, address_of(original));
    if (binding < 0) {
        atomic_store(&rule->state, MACHTRACE_RULE_NO_STUB);
        return;
    }
    char owned[MACHTRACE_SYMBOL_MAX];
    write_name(owned, rule->symbol[0], found->owner,
               objc.sel_getName(objc.method_getName(found->method)));
    enum machtrace_rule_state state = MACHTRACE_RULE_BOUND;
    if (strcmp(owned, rule->symbol) != 0)
        state = MACHTRACE_RULE_INHERITED;
    else if (found->other[0] != '\0')
        state = MACHTRACE_RULE_SHARED;
    strcpy(rule->other, state == MACHTRACE_RULE_INHERITED ? owned : found->other);
    IMP stub = (IMP)(uintptr_t)function_at((uint64_t)(uintptr_t)machtrace_stubs +
                                           (uint64_t)binding * MACHTRACE_STUB_SIZE);
    replaced[replaced_count].method = found->method;
    replaced[replaced_count].original = original;
    replaced[replaced_count].stub = stub;
    replaced[replaced_count++].rule = number;
    objc.method_setImplementation(found->method, stub);
    atomic_store(&rule->target, address_of(original));
    atomic_store(&rule->slots, 1);
    atomic_store(&rule->state, state);
    result->changed++;
}

bool machtrace_bind_methods(struct machtrace_imports_result *result, bool waits)
{
    struct found found;
    if (waits)
        pthread_mutex_lock(&lock);
    else if (pthread_mutex_trylock(&lock) != 0)
        return false;
    uint32_t count = atomic_load(&machtrace_rule_count);
    bool are_all_found = true;
    for (uint32_t rule = 0; rule < count && machtrace_imports_are_enabled(); rule++) {
        const char *symbol = machtrace_rules[rule].symbol;
        if ((symbol[0] != '-' && symbol[0] != '+') || symbol[1] != '[' ||
            !atomic_load(&machtrace_rules[rule].is_active) || is_replaced(rule))
            continue;
        if (find_runtime() && find_method(symbol, &found))
            replace((uint16_t)rule, &found, result);
        else
            are_all_found = false;
    }
    atomic_store(&is_missing, !are_all_found);
    pthread_mutex_unlock(&lock);
    return true;
}

/* In the reverse order, since stubs may follow each other. */
void machtrace_restore_methods(struct machtrace_imports_result *result)
{
    pthread_mutex_lock(&lock);
    for (size_t index = replaced_count; index-- > 0;) {
        Method method = replaced[index].method;
        if (address_of(objc.method_getImplementation(method)) == address_of(replaced[index].stub)) {
            objc.method_setImplementation(method, replaced[index].original);
            result->changed++;
        } else {
            result->left++;
        }
    }
    replaced_count = 0;
    pthread_mutex_unlock(&lock);
}

void machtrace_methods_after_fork(void)
{
    pthread_mutex_init(&lock, NULL);
}

/* --- images that are loaded later --- */

/* dyld reports an image before its classes are registered, and its initialisers run before dlopen(3)
 * returns. Loads by the system itself are seen a little later, by the agent's thread. */
static void *open_image(const char *path, int mode)
{
    void *(*real)(const char *, int) =
        (void *(*)(const char *, int))(uintptr_t)function_at(machtrace_real[MACHTRACE_DLOPEN]);
    struct machtrace_imports_result result = {0};
    void *handle = real(path, mode);
    machtrace_ignore_enter();
    if (handle != NULL && machtrace_bind_methods(&result, false) && result.changed != 0)
        machtrace_publish_bodies();
    machtrace_ignore_leave();
    return handle;
}

/* Where a method is missing. Other paths than absolute ones depend on the image that calls. */
uint64_t machtrace_replacement_of(const struct machtrace_binding *binding,
                                  const uint64_t arguments[3], uint64_t caller)
{
    const char *path = (const char *)(uintptr_t)arguments[0];
    (void)caller;
    if (binding->replacement != MACHTRACE_DLOPEN || !atomic_load(&is_missing) || path == NULL ||
        path[0] != '/')
        return atomic_load(&binding->target);
    return machtrace_slot_address((uint64_t)(uintptr_t)open_image);
}
