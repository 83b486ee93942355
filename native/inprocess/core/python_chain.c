/* Copying Python frames of this process: see python_chain.h. */
#include "inprocess/core/python_chain.h"

#include <string.h>

#include "inprocess/core/capture.h"

#define INTERPRETERS_MAX 64
#define PAGE 4096
#define FRAME_MAX 128 /* bytes of a frame's fields */
#define TEXT_MAX (1 << 12)
#define LINES_MAX (1 << 15)
#define TYPE_NAME 8 /* bytes of "bytes", "code" and "str" that are copied */

static bool read_word(uint64_t address, uint64_t *value)
{
    *value = 0;
    return address != 0 && machtrace_inprocess_read(address, value, sizeof *value) == sizeof *value;
}

static uint64_t word_in(const unsigned char *bytes, uint64_t offset)
{
    uint64_t value;
    memcpy(&value, bytes + offset, sizeof value);
    return value;
}

void machtrace_python_list(const struct machtrace_python_layout *layout,
                           struct machtrace_python_states *states)
{
    uint64_t interpreter, state;
    states->count = 0;
    if (!read_word(layout->runtime + layout->interpreters_head, &interpreter))
        return;
    for (int count = 0; interpreter != 0 && count < INTERPRETERS_MAX; count++) {
        read_word(interpreter + layout->threads_head, &state);
        while (state != 0 && states->count < MACHTRACE_PYTHON_THREADS_MAX) {
            struct machtrace_python_state *item = &states->items[states->count];
            if (!read_word(state + layout->thread_native_id, &item->thread))
                break;
            item->address = state;
            states->count++;
            if (!read_word(state + layout->thread_next, &state))
                break;
        }
        if (!read_word(interpreter + layout->interpreter_next, &interpreter))
            break;
    }
}

uint64_t machtrace_python_state_of(const struct machtrace_python_states *states, uint64_t thread)
{
    for (size_t index = 0; index < states->count; index++)
        if (states->items[index].thread == thread)
            return states->items[index].address;
    return 0;
}

uint64_t machtrace_python_thread_of(const struct machtrace_python_layout *layout, uint64_t state)
{
    uint64_t thread;
    return state != 0 && read_word(state + layout->thread_native_id, &thread) ? thread : 0;
}

void machtrace_python_read_gil(const struct machtrace_python_layout *layout,
                               struct machtrace_gil *gil)
{
    uint64_t address = 0, interpreter;
    memset(gil, 0, sizeof *gil);
    if (layout->runtime_gil != MACHTRACE_NOWHERE)
        address = layout->runtime + layout->runtime_gil;
    else if (read_word(layout->runtime + layout->interpreters_head, &interpreter) &&
             interpreter != 0)
        read_word(interpreter + layout->interpreter_gil, &address);
    /* interval, last_holder, locked, switch_number: Include/internal/pycore_gil.h */
    unsigned char fields[64];
    uint64_t last = layout->gil_locked + 2 * sizeof(uint64_t);
    if (address == 0 || last > sizeof fields ||
        machtrace_inprocess_read(address, fields, (size_t)last) != last)
        return;
    gil->address = address;
    gil->holder = word_in(fields, layout->gil_holder);
    gil->is_locked = (uint32_t)word_in(fields, layout->gil_locked) == 1;
    gil->switches = word_in(fields, layout->gil_locked + sizeof(uint64_t));
}

/* --- frames --- */

/* A few bytes, by the page that they are in: most frames are beside each other. */
static const unsigned char *cached(struct machtrace_python_chain *chain, uint64_t address,
                                   size_t size)
{
    if (address < chain->cache_start ||
        address + size > chain->cache_start + chain->cache_size) {
        uint64_t start = address & ~(uint64_t)(PAGE - 1);
        if (address + size > start + PAGE)
            start = address;
        chain->cache_start = start;
        chain->cache_size = machtrace_inprocess_read(start, chain->cache, PAGE);
        if (address + size > start + chain->cache_size)
            return NULL;
    }
    return chain->cache + (address - chain->cache_start);
}

static bool is_known(const struct machtrace_python_chain *chain, uint64_t frame)
{
    for (size_t index = 0; index < chain->row_count; index++)
        if (chain->rows[index].address == frame)
            return true;
    return false;
}

static uint64_t most_of(const uint64_t *offsets, size_t count)
{
    uint64_t most = 0;
    for (size_t index = 0; index < count; index++)
        if (offsets[index] != MACHTRACE_NOWHERE && offsets[index] > most)
            most = offsets[index];
    return most + sizeof(uint64_t);
}

/* Copy the frames from this one on, up to one that was copied before. */
static void copy_frames(const struct machtrace_python_layout *layout, uint64_t frame,
                        struct machtrace_python_chain *chain)
{
    const uint64_t fields[] = {layout->frame_code, layout->frame_previous,
                               layout->frame_instruction};
    uint64_t size = most_of(fields, 3);
    uint64_t bytes[] = {layout->frame_owner, layout->frame_is_entry};
    for (size_t index = 0; index < 2; index++)
        if (bytes[index] != MACHTRACE_NOWHERE && bytes[index] >= size)
            size = bytes[index] + 1;
    size_t first = chain->row_count;
    while (frame != 0) {
        if (first != 0 && is_known(chain, frame))
            return;
        const unsigned char *data = size > FRAME_MAX ? NULL : cached(chain, frame, (size_t)size);
        if (data == NULL || chain->row_count == MACHTRACE_CHAIN_ROWS) {
            chain->is_truncated = 1;
            return;
        }
        chain->rows[chain->row_count++] = (struct machtrace_python_row){
            .address = frame,
            .previous = word_in(data, layout->frame_previous),
            .instruction = word_in(data, layout->frame_instruction),
            .code = word_in(data, layout->frame_code) & ~layout->code_tags,
            .owner = data[layout->frame_owner],
            .is_entry =
                layout->frame_is_entry == MACHTRACE_NOWHERE ? 0 : data[layout->frame_is_entry],
        };
        frame = chain->rows[chain->row_count - 1].previous;
    }
}

void machtrace_python_copy_chain(const struct machtrace_python_layout *layout, uint64_t state,
                                 uint64_t thread, struct machtrace_python_chain *chain)
{
    uint64_t here;
    chain->state = 0;
    chain->link_count = chain->row_count = chain->is_truncated = 0;
    chain->cache_start = chain->cache_size = 0;
    if (state == 0 || machtrace_python_thread_of(layout, state) != thread)
        return;
    chain->state = state;
    if (!read_word(state + layout->thread_frame, &here)) {
        chain->is_truncated = 1;
        return;
    }
    if (layout->c_frame_current == MACHTRACE_NOWHERE) {
        chain->links[chain->link_count++] = (struct machtrace_python_link){0, here};
    } else {
        while (here != 0) {
            uint64_t frame, previous;
            if (chain->link_count == MACHTRACE_CHAIN_LINKS ||
                !read_word(here + layout->c_frame_current, &frame) ||
                !read_word(here + layout->c_frame_previous, &previous)) {
                chain->is_truncated = 1;
                return;
            }
            chain->links[chain->link_count++] = (struct machtrace_python_link){here, frame};
            here = previous;
        }
    }
    for (size_t index = 0; index < chain->link_count; index++)
        copy_frames(layout, chain->links[index].frame, chain);
}

/* --- code --- */

struct blocks {
    unsigned char *to;
    size_t room, size;
    uint32_t count;
};

static const unsigned char *add_block(struct blocks *blocks, uint64_t address, uint64_t size)
{
    uint64_t head[2] = {address, size};
    size_t padded = ((size_t)size + 7) & ~(size_t)7;
    if (size > LINES_MAX + PAGE || blocks->room - blocks->size < sizeof head + padded)
        return NULL;
    unsigned char *place = blocks->to + blocks->size;
    memcpy(place, head, sizeof head);
    if (machtrace_inprocess_read(address, place + sizeof head, (size_t)size) != size)
        return NULL;
    blocks->size += sizeof head + padded;
    blocks->count++;
    return place + sizeof head;
}

static bool add_type(struct blocks *blocks, const struct machtrace_python_layout *layout,
                     uint64_t type)
{
    uint64_t name;
    return read_word(type + layout->type_name, &name) &&
           add_block(blocks, type + layout->type_name, sizeof name) != NULL &&
           add_block(blocks, name, TYPE_NAME) != NULL;
}

static bool add_text(struct blocks *blocks, const struct machtrace_python_layout *layout,
                     uint64_t address)
{
    unsigned char head[128];
    if (layout->text_compact > sizeof head ||
        machtrace_inprocess_read(address, head, (size_t)layout->text_compact) !=
            layout->text_compact)
        return false;
    uint64_t length = word_in(head, layout->text_length);
    uint64_t width = word_in(head, layout->text_state) >> 2 & 7;
    return length <= TEXT_MAX && width <= 4 &&
           add_block(blocks, address, layout->text_compact + length * width) != NULL &&
           add_type(blocks, layout, word_in(head, layout->object_type));
}

static bool add_bytes(struct blocks *blocks, const struct machtrace_python_layout *layout,
                      uint64_t address)
{
    uint64_t size, type;
    return read_word(address + layout->size, &size) && size <= LINES_MAX &&
           read_word(address + layout->object_type, &type) &&
           add_block(blocks, address, layout->bytes_start + size) != NULL &&
           add_type(blocks, layout, type);
}

size_t machtrace_python_copy_code(const struct machtrace_python_layout *layout, uint64_t code,
                                  unsigned char *to, size_t room, uint32_t *blocks)
{
    struct blocks all = {.to = to, .room = room};
    const uint64_t fields[] = {layout->object_type, layout->size,       layout->code_file,
                               layout->code_name,   layout->code_lines, layout->code_first_line};
    *blocks = 0;
    const unsigned char *head = add_block(&all, code, most_of(fields, 6));
    if (head == NULL)
        return 0;
    if (!add_type(&all, layout, word_in(head, layout->object_type)) ||
        !add_text(&all, layout, word_in(head, layout->code_file)) ||
        !add_text(&all, layout, word_in(head, layout->code_name)) ||
        !add_bytes(&all, layout, word_in(head, layout->code_lines)))
        return 0;
    *blocks = all.count;
    return all.size;
}
