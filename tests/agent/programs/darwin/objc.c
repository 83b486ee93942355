/* As much of the Objective-C runtime as the lab needs, on the tables that compilers write: layouts
 * of objc4's runtime/objc-runtime-new.h. Messages are in msgsend.S. */
#include <mach-o/loader.h>
#include <objc/runtime.h>
#include <stdlib.h>
#include <string.h>

#if defined(__arm64e__)
#include <ptrauth.h>
#define STRIP(pointer) ((__typeof__(pointer))ptrauth_strip((void *)(pointer), ptrauth_key_asda))
#else
#define STRIP(pointer) (pointer)
#endif

#define EXPORT __attribute__((visibility("default")))
#define SELECTORS_MAX 256
#define CLASSES_MAX 32

struct objc_method {
    SEL name;
    const char *types;
    uintptr_t implementation; /* arm64e: signed with key IA and its address */
};

struct method_list {
    uint32_t entry_size, count;
    struct objc_method methods[];
};

struct class_data {
    uint32_t flags, start, size, reserved;
    const void *ivar_layout;
    const char *name;
    struct method_list *methods;
};

struct class_layout {
    struct class_layout *isa, *superclass;
    void *cache[2];
    struct class_data *data;
};

static const char *selectors[SELECTORS_MAX];
static struct class_layout *classes[CLASSES_MAX];
static size_t selector_count, class_count;

EXPORT void *_objc_empty_cache;
EXPORT void lab_map_image(const struct mach_header_64 *header, intptr_t slide);

static struct class_layout *layout_of(Class owner)
{
    return (struct class_layout *)(void *)owner;
}

static struct class_data *data_of(const struct class_layout *owner)
{
    return STRIP(owner->data);
}

static struct method_list *methods_of(Class owner)
{
    return STRIP(data_of(layout_of(owner))->methods);
}

EXPORT SEL sel_registerName(const char *name)
{
    for (size_t index = 0; index < selector_count; index++)
        if (strcmp(selectors[index], name) == 0)
            return (SEL)(void *)(uintptr_t)selectors[index];
    char *copy = malloc(strlen(name) + 1);
    strncpy(copy, name, strlen(name) + 1);
    selectors[selector_count++] = copy;
    return (SEL)(void *)copy;
}

EXPORT const char *sel_getName(SEL selector)
{
    return (const char *)(void *)selector;
}

EXPORT Class objc_lookUpClass(const char *name)
{
    for (size_t index = 0; index < class_count; index++)
        if (strcmp(data_of(classes[index])->name, name) == 0)
            return (Class)(void *)classes[index];
    return Nil;
}

EXPORT Class object_getClass(id object)
{
    return object == nil ? Nil : (Class)(void *)STRIP(((struct class_layout *)(void *)object)->isa);
}

EXPORT Class class_getSuperclass(Class owner)
{
    return (Class)(void *)STRIP(layout_of(owner)->superclass);
}

EXPORT const char *class_getName(Class owner)
{
    return data_of(layout_of(owner))->name;
}

EXPORT Method *class_copyMethodList(Class owner, unsigned *count)
{
    struct method_list *list = methods_of(owner);
    *count = list == NULL ? 0 : list->count;
    Method *all = *count == 0 ? NULL : malloc((*count + 1) * sizeof *all);
    for (unsigned index = 0; index < *count; index++)
        all[index] = &list->methods[index];
    return all;
}

EXPORT SEL method_getName(Method method)
{
    return method->name;
}

EXPORT IMP method_getImplementation(Method method)
{
#if defined(__arm64e__)
    return (IMP)ptrauth_auth_and_resign((void *)method->implementation, ptrauth_key_asia,
                                        (uintptr_t)&method->implementation,
                                        ptrauth_key_function_pointer, 0);
#else
    return (IMP)method->implementation;
#endif
}

EXPORT IMP method_setImplementation(Method method, IMP implementation)
{
    IMP before = method_getImplementation(method);
#if defined(__arm64e__)
    method->implementation = (uintptr_t)ptrauth_auth_and_resign(
        (void *)implementation, ptrauth_key_function_pointer, 0, ptrauth_key_asia,
        (uintptr_t)&method->implementation);
#else
    method->implementation = (uintptr_t)implementation;
#endif
    return before;
}

/* --- images --- */

static void map_class(struct class_layout *owner)
{
    struct method_list *list = STRIP(data_of(owner)->methods);
    for (uint32_t index = 0; list != NULL && index < list->count; index++)
        list->methods[index].name = sel_registerName(sel_getName(list->methods[index].name));
}

static void map_section(const struct section_64 *section, intptr_t slide)
{
    uintptr_t *words = (uintptr_t *)(section->addr + (uintptr_t)slide);
    int has_selectors = strncmp(section->sectname, "__objc_selrefs", 16) == 0;
    int has_classes = strncmp(section->sectname, "__objc_classlist", 16) == 0;
    size_t count = has_selectors || has_classes ? section->size / 8 : 0;
    for (size_t index = 0; index < count; index++) {
        if (has_selectors) {
            words[index] = (uintptr_t)sel_registerName((const char *)words[index]);
        } else {
            struct class_layout *owner = (struct class_layout *)words[index];
            classes[class_count++] = owner;
            map_class(owner);
            map_class(STRIP(owner->isa));
        }
    }
}

void lab_map_image(const struct mach_header_64 *header, intptr_t slide)
{
    const struct load_command *command = (const void *)(header + 1);
    for (uint32_t index = 0; index < header->ncmds; index++) {
        const struct segment_command_64 *segment = (const void *)command;
        const struct section_64 *sections = (const void *)(segment + 1);
        if (command->cmd == LC_SEGMENT_64)
            for (uint32_t number = 0; number < segment->nsects; number++)
                map_section(&sections[number], slide);
        command = (const void *)((const char *)command + command->cmdsize);
    }
}
