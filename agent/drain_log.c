/* What the agent's thread writes to the spool's log: see drain_inside.h. */
#define _GNU_SOURCE
#include "drain_inside.h"

#include <string.h>

#include "thread.h"

#define NODE_MAX 24       /* bytes of a node: distance, offset, image, address */
#define CHAIN_MAX 16

/* --- the log --- */

static void set(uint64_t *bits, uint32_t number)
{
    bits[number / 64] |= UINT64_C(1) << number % 64;
}

static bool log_record(enum machtrace_spool_kind kind, const void *payload, size_t size)
{
    pthread_mutex_lock(&machtrace_drain->lock);
    bool is_stored = machtrace_spool_log(&machtrace_drain->spool, kind, payload, size);
    pthread_mutex_unlock(&machtrace_drain->lock);
    return is_stored;
}

bool machtrace_drain_log(enum machtrace_spool_kind kind, const void *payload, uint32_t size)
{
    return machtrace_drain != NULL && log_record(kind, payload, size);
}

bool machtrace_drain_incident(const void *payload, uint32_t size, const uint32_t *nodes,
                              uint32_t count)
{
    struct machtrace_drain *drain = machtrace_drain;
    pthread_mutex_lock(&drain->lock);
    bool is_stored = machtrace_spool_log(&drain->spool, MACHTRACE_SPOOL_INCIDENT, payload, size);
    for (uint32_t index = 0; index < count; index++)
        if (drain->incident_node_count < MACHTRACE_INCIDENT_NODES)
            drain->incident_nodes[drain->incident_node_count++] = nodes[index];
    pthread_mutex_unlock(&drain->lock);
    machtrace_wake(&machtrace_recorders.wake);
    return is_stored;
}

bool machtrace_drain_send_image(const struct machtrace_agent_image *image)
{
    struct {
        uint32_t number, id_size;
        uint64_t start, size, bias;
        uint32_t path_size, flags;
        unsigned char text[MACHTRACE_IMAGE_ID_MAX + MACHTRACE_AGENT_PATH_MAX];
    } record;
    uint32_t index = (uint32_t)(image - machtrace_image(0));
    if (machtrace_bit_is_set(machtrace_drain->sent_images, index))
        return true;
    memset(&record, 0, sizeof record);
    record.number = index + 1;
    record.id_size = image->id_size;
    record.start = image->start;
    record.size = image->end - image->start;
    record.bias = image->bias;
    record.path_size = (uint32_t)strlen(image->path);
    record.flags = image->is_program;
    memcpy(record.text, image->id, image->id_size);
    memcpy(record.text + image->id_size, image->path, record.path_size);
    if (!log_record(MACHTRACE_SPOOL_IMAGE, &record,
                    sizeof record - sizeof record.text + image->id_size + record.path_size))
        return false;
    set(machtrace_drain->sent_images, index);
    return true;
}

void machtrace_drain_log_thread(uint32_t number, uint32_t id)
{
    struct {
        uint32_t number, id;
        char name[16];
    } record = {number, id, ""};
    size_t size = id == 0 ? 0 : machtrace_thread_name(id, record.name, sizeof record.name);
    log_record(MACHTRACE_SPOOL_THREAD, &record, 8 + size);
}

void machtrace_drain_log_rules(void)
{
    struct {
        uint32_t number, state, slots, flags;
        uint64_t target;
        char symbols[2 * MACHTRACE_SYMBOL_MAX];
    } record;
    uint32_t count = atomic_load(&machtrace_rule_count);
    for (uint32_t index = 0; index < count; index++) {
        struct machtrace_watched *rule = &machtrace_rules[index];
        uint32_t state = atomic_load(&rule->state);
        struct machtrace_logged_rule *last = &machtrace_drain->rules[index];
        uint32_t stacks = atomic_load(&rule->stacks);
        uint64_t target = atomic_load(&rule->target);
        if (!atomic_load(&rule->is_active) ||
            (last->is_logged && last->state == state && last->stacks == stacks &&
             last->target == target))
            continue;
        *last = (struct machtrace_logged_rule){state, stacks, target, true};
        memset(&record, 0, sizeof record);
        record.number = index;
        record.state = state;
        record.slots = atomic_load(&rule->slots);
        record.flags = (stacks == MACHTRACE_STACKS_NONE ? 1 : 0) |
                       (atomic_load(&rule->is_at_entry) ? 2 : 0) |
                       (stacks == MACHTRACE_STACKS_BUDGET ? 4 : 0);
        record.target = target;
        size_t length = strlen(rule->symbol);
        memcpy(record.symbols, rule->symbol, length);
        if (state >= MACHTRACE_RULE_INHERITED) {
            strcpy(record.symbols + length + 1, rule->other);
            length += 1 + strlen(rule->other);
        }
        const struct machtrace_agent_image *image =
            machtrace_image_at(record.target, MACHTRACE_ERA_NOW);
        if (image != NULL)
            machtrace_drain_send_image(image);
        log_record(MACHTRACE_SPOOL_RULE, &record, sizeof record - sizeof record.symbols + length);
    }
}

/* --- nodes --- */

static void put(uint64_t value)
{
    for (; value >= 128; value >>= 7)
        machtrace_drain->pending[machtrace_drain->pending_size++] = (unsigned char)(value | 128);
    machtrace_drain->pending[machtrace_drain->pending_size++] = (unsigned char)value;
}

void machtrace_drain_send_nodes(void)
{
    if (machtrace_drain->pending_size != 0)
        log_record(MACHTRACE_SPOOL_NODES, machtrace_drain->pending, machtrace_drain->pending_size);
    machtrace_drain->pending_size = 0;
    machtrace_drain->pending_image = 0;
}

static bool log_has_room(size_t size)
{
    return machtrace_drain->spool.head->log_size - machtrace_drain->spool.log_used > machtrace_drain->pending_size + size;
}

/* The number of the image that has a node's address, from 1; 0 if none has it. */
static uint32_t image_of(uint64_t address, uint32_t era)
{
    if (address < MACHTRACE_MARK_END)
        return 0;
    const struct machtrace_agent_image *image = machtrace_drain->last_image;
    if (image == NULL || era != machtrace_drain->last_era || address < image->start ||
        address >= image->end)
        image = machtrace_image_at(address, era);
    machtrace_drain->last_image = image;
    machtrace_drain->last_era = era;
    return image == NULL ? 0 : (uint32_t)(image - machtrace_image(0)) + 1;
}

/* Whether the images of nodes are in the log. */
static bool send_images(const uint32_t *nodes, size_t count, uint32_t era)
{
    for (size_t index = 0; index < count; index++) {
        uint64_t address = machtrace_stack_tree_address(&machtrace_recorders.tree, nodes[index]);
        uint32_t number = image_of(address, era);
        if (number != 0 && !machtrace_drain_send_image(machtrace_image(number - 1)))
            return false;
    }
    return true;
}

static void put_node(uint32_t node, uint32_t era)
{
    const struct machtrace_stack_tree *tree = &machtrace_recorders.tree;
    uint64_t address = machtrace_stack_tree_address(tree, node);
    uint32_t number = image_of(address, era);
    uint64_t offset = number == 0 ? 0 : address - machtrace_image(number - 1)->start;
    put(machtrace_stack_tree_distance(tree, node));
    put(offset << 1 | (number != machtrace_drain->pending_image));
    if (number != machtrace_drain->pending_image)
        put(number);
    if (number == 0)
        put(address);
    machtrace_drain->pending_image = number;
}

/* The outermost of a stack's nodes whose unsent callers fit into the chain with it. */
static uint32_t first_part(uint32_t node)
{
    const size_t most = sizeof machtrace_drain->chain / sizeof *machtrace_drain->chain;
    uint32_t part = node;
    size_t count = 0;
    for (; node != MACHTRACE_TREE_ROOT && !machtrace_bit_is_set(machtrace_drain->sent, node);
         node = machtrace_stack_tree_parent(&machtrace_recorders.tree, node))
        if (++count > most) {
            part = node;
            count = 1;
        }
    return part;
}

static uint32_t send_part(uint32_t node)
{
    const struct machtrace_stack_tree *tree = &machtrace_recorders.tree;
    uint32_t parent = node, outermost = node, era = 0;
    size_t count = 0;
    for (; parent != MACHTRACE_TREE_ROOT && !machtrace_bit_is_set(machtrace_drain->sent, parent);
         parent = machtrace_stack_tree_parent(tree, parent))
        machtrace_drain->chain[count++] = parent;
    if (count == 0)
        return node;
    for (uint32_t above = parent; above != MACHTRACE_TREE_ROOT;
         above = machtrace_stack_tree_parent(tree, above))
        outermost = above;
    if (parent == MACHTRACE_TREE_ROOT)
        outermost = machtrace_drain->chain[count - 1];
    uint64_t mark = machtrace_stack_tree_address(tree, outermost);
    if (mark >= MACHTRACE_MARK_ERA && mark < MACHTRACE_MARK_END)
        era = (uint32_t)mark - MACHTRACE_MARK_ERA;
    while (count > 0) {
        size_t some = (MACHTRACE_DRAIN_PENDING - CHAIN_MAX) / NODE_MAX;
        some = count < some ? count : some;
        size_t size = CHAIN_MAX + some * NODE_MAX;
        if (size > MACHTRACE_DRAIN_PENDING - machtrace_drain->pending_size)
            machtrace_drain_send_nodes();
        if (!send_images(machtrace_drain->chain + count - some, some, era) || !log_has_room(size + 64)) {
            atomic_fetch_add(&machtrace_drain->spool.head->losses.log_full, 1);
            return parent;
        }
        put(parent);
        put(some);
        for (; some > 0; some--) {
            parent = machtrace_drain->chain[--count];
            put_node(parent, era);
            set(machtrace_drain->sent, parent);
        }
    }
    return node;
}

uint32_t machtrace_drain_send_stack(uint32_t node)
{
    for (;;) {
        uint32_t part = first_part(node);
        uint32_t stored = send_part(part);
        if (stored != part || part == node)
            return stored;
    }
}

void machtrace_drain_send_incidents(void)
{
    struct machtrace_drain *drain = machtrace_drain;
    for (;;) {
        uint32_t node = MACHTRACE_TREE_ROOT;
        pthread_mutex_lock(&drain->lock);
        if (drain->incident_node_count != 0)
            node = drain->incident_nodes[--drain->incident_node_count];
        bool is_last = drain->incident_node_count == 0;
        pthread_mutex_unlock(&drain->lock);
        if (node != MACHTRACE_TREE_ROOT && !machtrace_bit_is_set(drain->sent, node))
            machtrace_drain_send_stack(node);
        if (is_last)
            break;
    }
    machtrace_drain_send_nodes();
}

void machtrace_drain_lock_without_incidents(void)
{
    for (;;) {
        machtrace_drain_send_incidents();
        pthread_mutex_lock(&machtrace_drain->lock);
        if (machtrace_drain->incident_node_count == 0)
            return;
        pthread_mutex_unlock(&machtrace_drain->lock);
    }
}
