#define _GNU_SOURCE
#include "ptrace/python.h"

#include <stdlib.h>
#include <string.h>

#include "ptrace/python_memory.h"

/* The bounds of cpython/threads.py and objects.py, for all threads of one copy. */
#define INTERPRETERS_MAX (1 << 10)
#define THREADS_MAX (1 << 16)
#define FRAMES_MAX (1 << 17)
#define TEXT_MAX (1 << 14)
#define TABLE_MAX (1 << 21)
#define CODE_MAX (1 << 26)
#define TEXTS_MAX (1 << 23)

/* Bytes of known code from which on all is forgotten. */
#define KNOWN_BYTES_MAX ((size_t)64 << 20)

#define COMPACT (1 << 5) /* PyASCIIObject.state */
#define ASCII (1 << 6)

struct known_code {
    uint64_t address;
    uint64_t serial;
    uint64_t copy; /* in which it was last confirmed */
    size_t size;
    unsigned char *contents; /* a code_head, then name, file and lines */
};

/* A code object's contents without what changes while it lives: counts of references, caches. */
struct code_head {
    uint64_t first_line;
    uint64_t instruction_count;
    uint64_t name_width;
    uint64_t name_size;
    uint64_t file_width;
    uint64_t file_size;
    uint64_t lines_size;
};

static size_t largest(const uint64_t *offsets, size_t count)
{
    uint64_t most = 0;
    for (size_t index = 0; index < count; index++)
        if (offsets[index] != MACHTRACE_NOWHERE && offsets[index] > most)
            most = offsets[index];
    return (size_t)most + sizeof(uint64_t);
}

/* --- objects --- */

static bool has_type(struct machtrace_python_reader *reader, uint64_t type, const char *name)
{
    uint64_t text;
    if (!machtrace_python_word(reader, type + reader->layout.type_name, &text))
        return false;
    size_t size = strlen(name) + 1;
    const unsigned char *data = machtrace_python_memory(reader, text, size);
    return data != NULL && memcmp(data, name, size) == 0;
}

/* Append `size` bytes at `address` to the contents that are being built. */
static enum machtrace_python_error append_bytes(struct machtrace_python_reader *reader,
                                                struct machtrace_python_array *contents,
                                                uint64_t address, uint64_t size)
{
    if (size > reader->text_left)
        return MACHTRACE_PYTHON_TOO_LARGE;
    if (size == 0)
        return MACHTRACE_PYTHON_READ;
    const unsigned char *data = machtrace_python_memory(reader, address, size);
    if (data == NULL)
        return MACHTRACE_PYTHON_UNREADABLE;
    if (!machtrace_array_reserve(contents, contents->count + size, 1))
        return MACHTRACE_PYTHON_NO_MEMORY;
    memcpy((char *)contents->items + contents->count, data, size);
    contents->count += size;
    return MACHTRACE_PYTHON_READ;
}

static enum machtrace_python_error append_text(struct machtrace_python_reader *reader,
                                               struct machtrace_python_array *contents,
                                               uint64_t address, uint64_t *width, uint64_t *size)
{
    const struct machtrace_python_layout *layout = &reader->layout;
    const uint64_t fields[] = {layout->object_type, layout->text_length, layout->text_state};
    const unsigned char *head = machtrace_python_memory(reader, address, largest(fields, 3));
    if (head == NULL)
        return MACHTRACE_PYTHON_UNREADABLE;
    uint64_t type = word_in(head, layout->object_type);
    uint64_t length = word_in(head, layout->text_length);
    uint32_t state = (uint32_t)word_in(head, layout->text_state);
    if (!has_type(reader, type, "str"))
        return MACHTRACE_PYTHON_NO_TEXT;
    *width = state >> 2 & 7;
    if ((*width != 1 && *width != 2 && *width != 4) || (state & COMPACT) == 0 || length > TEXT_MAX)
        return MACHTRACE_PYTHON_NO_TEXT;
    *size = length * *width;
    uint64_t start = (state & ASCII) != 0 ? layout->text_ascii : layout->text_compact;
    return append_bytes(reader, contents, address + start, *size);
}

/* Build the contents of the code object at `address`. */
static enum machtrace_python_error code_contents(struct machtrace_python_reader *reader,
                                                 uint64_t address,
                                                 struct machtrace_python_array *contents)
{
    const struct machtrace_python_layout *layout = &reader->layout;
    const uint64_t fields[] = {layout->object_type, layout->size,       layout->code_file,
                               layout->code_name,   layout->code_lines, layout->code_first_line};
    const unsigned char *object = machtrace_python_memory(reader, address, largest(fields, 6));
    if (object == NULL)
        return MACHTRACE_PYTHON_UNREADABLE;
    uint64_t type = word_in(object, layout->object_type);
    uint64_t name = word_in(object, layout->code_name);
    uint64_t file = word_in(object, layout->code_file);
    uint64_t lines = word_in(object, layout->code_lines);
    struct code_head head = {
        .first_line = (uint32_t)word_in(object, layout->code_first_line),
        .instruction_count = word_in(object, layout->size),
    };
    if (!has_type(reader, type, "code"))
        return MACHTRACE_PYTHON_NO_CODE;
    if (head.instruction_count > CODE_MAX)
        return MACHTRACE_PYTHON_TOO_LARGE;
    contents->count = 0;
    if (!machtrace_array_reserve(contents, sizeof head, 1))
        return MACHTRACE_PYTHON_NO_MEMORY;
    contents->count = sizeof head;
    enum machtrace_python_error error =
        append_text(reader, contents, name, &head.name_width, &head.name_size);
    if (error == MACHTRACE_PYTHON_READ)
        error = append_text(reader, contents, file, &head.file_width, &head.file_size);
    if (error != MACHTRACE_PYTHON_READ)
        return error;
    const uint64_t table_fields[] = {layout->object_type, layout->size};
    const unsigned char *table = machtrace_python_memory(reader, lines, largest(table_fields, 2));
    if (table == NULL)
        return MACHTRACE_PYTHON_UNREADABLE;
    type = word_in(table, layout->object_type);
    head.lines_size = word_in(table, layout->size);
    if (!has_type(reader, type, "bytes"))
        return MACHTRACE_PYTHON_NO_BYTES;
    if (head.lines_size > TABLE_MAX)
        return MACHTRACE_PYTHON_TOO_LARGE;
    error = append_bytes(reader, contents, lines + layout->bytes_start, head.lines_size);
    memcpy(contents->items, &head, sizeof head);
    return error;
}

/* Report a code object with a new serial. */
static bool report_code(struct machtrace_python_reader *reader, const struct known_code *known)
{
    struct code_head head;
    memcpy(&head, known->contents, sizeof head);
    size_t size = known->size - sizeof head;
    size_t offset = reader->texts.count;
    if (!machtrace_array_reserve(&reader->texts, offset + size, 1))
        return false;
    memcpy((char *)reader->texts.items + offset, known->contents + sizeof head, size);
    reader->texts.count += size;
    struct machtrace_python_code *code = machtrace_array_append(&reader->codes, sizeof *code);
    if (code == NULL)
        return false;
    size_t file = offset + head.name_size;
    *code = (struct machtrace_python_code){
        .serial = known->serial,
        .first_line = head.first_line,
        .instruction_count = head.instruction_count,
        .name = {head.name_width, offset, head.name_size},
        .file = {head.file_width, file, head.file_size},
        .lines = {1, file + head.file_size, head.lines_size},
    };
    return true;
}

static struct known_code *known_at(struct machtrace_python_reader *reader, uint64_t address)
{
    if (!machtrace_slots_widen(&reader->known_slots, &reader->known, sizeof(struct known_code)))
        return NULL;
    uint32_t *slot =
        machtrace_find_slot(&reader->known_slots, &reader->known, sizeof(struct known_code),
                                                            address);
    if (*slot != 0)
        return (struct known_code *)reader->known.items + (*slot - 1);
    struct known_code *known = machtrace_array_append(&reader->known, sizeof *known);
    if (known == NULL)
        return NULL;
    *known = (struct known_code){.address = address};
    *slot = (uint32_t)reader->known.count;
    return known;
}

/* The serial of the code object at `address`: the one that it had before if it is still the same.
   */
static enum machtrace_python_error code_serial(struct machtrace_python_reader *reader,
                                               uint64_t address, uint64_t *serial,
                                               struct machtrace_python_array *contents)
{
    struct known_code *known = known_at(reader, address);
    if (known == NULL)
        return MACHTRACE_PYTHON_NO_MEMORY;
    *serial = known->serial;
    if (known->copy == reader->copies)
        return MACHTRACE_PYTHON_READ;
    enum machtrace_python_error error = code_contents(reader, address, contents);
    if (error != MACHTRACE_PYTHON_READ)
        return error;
    known->copy = reader->copies;
    if (known->size == contents->count && memcmp(known->contents, contents->items,
                                                 known->size) == 0)
        return MACHTRACE_PYTHON_READ;
    unsigned char *copy = malloc(contents->count);
    if (copy == NULL) {
        known->copy = 0;
        return MACHTRACE_PYTHON_NO_MEMORY;
    }
    memcpy(copy, contents->items, contents->count);
    reader->known_bytes += contents->count - known->size;
    reader->text_left -= contents->count - sizeof(struct code_head) < reader->text_left
                             ? contents->count - sizeof(struct code_head)
                             : reader->text_left;
    free(known->contents);
    known->contents = copy;
    known->size = contents->count;
    known->serial = *serial = ++reader->last_serial;
    if (report_code(reader, known))
        return MACHTRACE_PYTHON_READ;
    known->copy = 0;
    known->size = 0;
    return MACHTRACE_PYTHON_NO_MEMORY;
}

static void forget_codes(struct machtrace_python_reader *reader)
{
    struct known_code *known = reader->known.items;
    for (size_t index = 0; index < reader->known.count; index++)
        free(known[index].contents);
    reader->known.count = 0;
    reader->known_bytes = 0;
    machtrace_slots_clear(&reader->known_slots);
}

/* --- threads --- */

/* Add rows for a chain of frames, up to one that has a row. */
static enum machtrace_python_error copy_frames(struct machtrace_python_reader *reader,
                                               uint64_t frame, uint64_t visitor,
                                               struct machtrace_python_array *contents)
{
    const struct machtrace_python_layout *layout = &reader->layout;
    const uint64_t fields[] = {layout->frame_code, layout->frame_previous,
layout->frame_instruction,
                               layout->frame_owner, layout->frame_is_entry};
    size_t size = largest(fields, 3);
    for (size_t index = 3; index < 5; index++)
        if (fields[index] != MACHTRACE_NOWHERE && fields[index] + 1 > size)
            size = (size_t)fields[index] + 1;
    while (frame != 0) {
        struct machtrace_python_piece *piece = machtrace_python_piece(reader, frame, size);
        if (piece == NULL || piece->visitor == visitor)
            break; /* an unreadable frame has no row */
        if (reader->rows.count >= FRAMES_MAX)
            return MACHTRACE_PYTHON_TOO_MANY_FRAMES;
        piece->visitor = visitor;
        const unsigned char *data = (unsigned char *)reader->bytes.items + piece->offset;
        struct machtrace_python_row *row = machtrace_array_append(&reader->rows, sizeof *row);
        if (row == NULL)
            return MACHTRACE_PYTHON_NO_MEMORY;
        *row = (struct machtrace_python_row){
            .address = frame,
            .previous = word_in(data, layout->frame_previous),
            .instruction = word_in(data, layout->frame_instruction),
            .code = word_in(data, layout->frame_code) & ~layout->code_tags,
            .owner = data[layout->frame_owner],
            .is_entry = layout->frame_is_entry == MACHTRACE_NOWHERE
                            ? 0
                            : data[layout->frame_is_entry],
        };
        frame = row->previous;
        row->error = code_serial(reader, row->code, &row->serial, contents);
        if (row->error != 0)
            row->serial = 0;
    }
    return MACHTRACE_PYTHON_READ;
}

static enum machtrace_python_error add_link(struct machtrace_python_reader *reader,
                                            uint64_t address,
                                            uint64_t frame)
{
    struct machtrace_python_link *link = machtrace_array_append(&reader->links, sizeof *link);
    if (link == NULL)
        return MACHTRACE_PYTHON_NO_MEMORY;
    *link = (struct machtrace_python_link){address, frame};
    return MACHTRACE_PYTHON_READ;
}

static enum machtrace_python_error copy_links(struct machtrace_python_reader *reader,
                                              uint64_t first)
{
    const struct machtrace_python_layout *layout = &reader->layout;
    if (layout->c_frame_current == MACHTRACE_NOWHERE)
        return add_link(reader, 0, first);
    const uint64_t fields[] = {layout->c_frame_current, layout->c_frame_previous};
    size_t begin = reader->links.count;
    for (uint64_t here = first; here != 0;) {
        const unsigned char *data = machtrace_python_memory(reader, here, largest(fields, 2));
        if (data == NULL)
            return MACHTRACE_PYTHON_UNREADABLE;
        if (reader->links.count - begin >= FRAMES_MAX)
            return MACHTRACE_PYTHON_ENDLESS;
        uint64_t next = word_in(data, layout->c_frame_previous);
        enum machtrace_python_error error =
            add_link(reader, here, word_in(data, layout->c_frame_current));
        if (error != MACHTRACE_PYTHON_READ)
            return error;
        here = next;
    }
    return MACHTRACE_PYTHON_READ;
}

static enum machtrace_python_error copy_thread(struct machtrace_python_reader *reader,
                                               const unsigned char *state, uint64_t address,
                                               struct machtrace_python_array *contents)
{
    const struct machtrace_python_layout *layout = &reader->layout;
    uint64_t first = word_in(state, layout->thread_frame);
    struct machtrace_python_thread copied = {
        .interpreter = word_in(state, layout->thread_interpreter),
        .state = address,
        .native_id = word_in(state, layout->thread_native_id),
        .ident = word_in(state, layout->thread_ident),
        .first_link = reader->links.count,
        .first_row = reader->rows.count,
        .error_address = first,
    };
    if (copied.native_id == 0)
        return MACHTRACE_PYTHON_READ; /* its thread has not begun, or has ended */
    copied.error = copy_links(reader, first);
    copied.link_count = reader->links.count - copied.first_link;
    for (size_t index = 0; copied.error == 0 && index < copied.link_count; index++) {
        const struct machtrace_python_link *links = reader->links.items;
        copied.error = copy_frames(reader, links[copied.first_link + index].frame,
                                   reader->threads.count + 1, contents);
    }
    copied.row_count = reader->rows.count - copied.first_row;
    struct machtrace_python_thread *thread = machtrace_array_append(&reader->threads,
                                                            sizeof *thread);
    if (thread == NULL)
        return MACHTRACE_PYTHON_NO_MEMORY;
    *thread = copied;
    return MACHTRACE_PYTHON_READ;
}

static enum machtrace_python_error fail(struct machtrace_python_reader *reader,
                                        enum machtrace_python_error error, uint64_t address)
{
    reader->error = error;
    reader->error_address = address;
    return error;
}

static enum machtrace_python_error copy_threads(struct machtrace_python_reader *reader,
                                                uint64_t interpreter, uint64_t first, size_t *left,
                                                struct machtrace_python_array *contents)
{
    const struct machtrace_python_layout *layout = &reader->layout;
    const uint64_t fields[] = {layout->thread_next, layout->thread_interpreter,
                               layout->thread_native_id, layout->thread_ident,
layout->thread_frame};
    size_t size = largest(fields, 5);
    for (uint64_t state = first; state != 0;) {
        if ((*left)-- == 0)
            return fail(reader, MACHTRACE_PYTHON_ENDLESS, state);
        const unsigned char *data = machtrace_python_memory(reader, state, size);
        if (data == NULL)
            return fail(reader, MACHTRACE_PYTHON_UNREADABLE, state);
        if (word_in(data, layout->thread_interpreter) != interpreter)
            return fail(reader, MACHTRACE_PYTHON_OTHER_INTERPRETER, state);
        uint64_t next = word_in(data, layout->thread_next);
        enum machtrace_python_error error = copy_thread(reader, data, state, contents);
        if (error != MACHTRACE_PYTHON_READ)
            return fail(reader, error, state);
        state = next;
    }
    return MACHTRACE_PYTHON_READ;
}

static bool copy_interpreter(struct machtrace_python_reader *reader, uint64_t address)
{
    const struct machtrace_python_layout *layout = &reader->layout;
    struct machtrace_python_interpreter *copied = machtrace_array_append(&reader->interpreters,
                                                            sizeof *copied);
    if (copied == NULL)
        return false;
    *copied = (struct machtrace_python_interpreter){.address = address};
    uint64_t gil = 0;
    if (layout->runtime_gil != MACHTRACE_NOWHERE)
        gil = layout->runtime + layout->runtime_gil;
    else if (layout->interpreter_gil == MACHTRACE_NOWHERE ||
             !machtrace_python_word(reader, address + layout->interpreter_gil, &gil))
        return true;
    const uint64_t fields[] = {layout->gil_holder, layout->gil_locked};
    const unsigned char *data = gil == 0 ? NULL : machtrace_python_memory(reader, gil,
                                                            largest(fields, 2));
    if (data == NULL)
        return true;
    copied->gil = gil;
    copied->gil_holder = word_in(data, layout->gil_holder);
    copied->gil_locked = (uint32_t)word_in(data, layout->gil_locked) == 1;
    return true;
}

static void copy_interpreters(struct machtrace_python_reader *reader,
                              struct machtrace_python_array *contents)
{
    const struct machtrace_python_layout *layout = &reader->layout;
    uint64_t interpreter;
    size_t threads_left = THREADS_MAX;
    if (!machtrace_python_word(reader, layout->runtime + layout->interpreters_head, &interpreter)) {
        fail(reader, MACHTRACE_PYTHON_UNREADABLE, layout->runtime + layout->interpreters_head);
        return;
    }
    while (interpreter != 0) {
        uint64_t first;
        uint64_t next;
        if (reader->interpreters.count >= INTERPRETERS_MAX) {
            fail(reader, MACHTRACE_PYTHON_ENDLESS, interpreter);
            return;
        }
        if (!machtrace_python_word(reader, interpreter + layout->threads_head, &first) ||
            !machtrace_python_word(reader, interpreter + layout->interpreter_next, &next)) {
            fail(reader, MACHTRACE_PYTHON_UNREADABLE, interpreter);
            return;
        }
        if (!copy_interpreter(reader, interpreter)) {
            fail(reader, MACHTRACE_PYTHON_NO_MEMORY, interpreter);
            return;
        }
        if (copy_threads(reader, interpreter, first, &threads_left, contents) != 0)
            return;
        interpreter = next;
    }
}

void machtrace_python_copy(struct machtrace_python_reader *reader, pid_t thread)
{
    struct machtrace_python_array contents = {NULL, 0, 0};
    reader->interpreters.count = 0;
    reader->threads.count = 0;
    reader->links.count = 0;
    reader->rows.count = 0;
    reader->codes.count = 0;
    reader->texts.count = 0;
    reader->pieces.count = 0;
    reader->bytes.count = 0;
    reader->error = MACHTRACE_PYTHON_READ;
    reader->error_address = 0;
    reader->text_left = TEXTS_MAX;
    reader->thread = thread;
    reader->copies++;
    machtrace_slots_clear(&reader->slots);
    size_t known_size = reader->known_bytes + reader->known.count * sizeof(struct known_code);
    reader->forgot = known_size > KNOWN_BYTES_MAX;
    if (reader->forgot)
        forget_codes(reader);
    machtrace_python_prefetch(reader);
    copy_interpreters(reader, &contents);
    machtrace_python_keep_hints(reader);
    free(contents.items);
}

void machtrace_python_release(struct machtrace_python_reader *reader)
{
    forget_codes(reader);
    free(reader->interpreters.items);
    free(reader->threads.items);
    free(reader->links.items);
    free(reader->rows.items);
    free(reader->codes.items);
    free(reader->texts.items);
    free(reader->hints.items);
    free(reader->pieces.items);
    free(reader->bytes.items);
    free(reader->slots.items);
    free(reader->known.items);
    free(reader->known_slots.items);
}
