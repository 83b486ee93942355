/* See keys.h. */
#include "stack_tree/keys.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 128u
#define OF_BLOCK (BLOCK / MACHTRACE_FRAME_KEY_SIZE) /* frames */
#define WORDS 8u
#define ROUNDS 12u

static const uint64_t initial[WORDS] = {
    UINT64_C(0x6a09e667f3bcc908), UINT64_C(0xbb67ae8584caa73b), UINT64_C(0x3c6ef372fe94f82b),
    UINT64_C(0xa54ff53a5f1d36f1), UINT64_C(0x510e527fade682d1), UINT64_C(0x9b05688c2b3e6c1f),
    UINT64_C(0x1f83d9abfb41bd6b), UINT64_C(0x5be0cd19137e2179),
};

/* RFC 7693, section 2.7; rounds 10 and 11 are 0 and 1 again. */
static const unsigned char schedule[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static inline uint64_t rotated(uint64_t value, unsigned by)
{
    return value >> by | value << (64 - by);
}

static inline uint64_t word(const unsigned char *at)
{
    uint64_t value = 0;
    for (unsigned byte = 0; byte < 8; byte++)
        value |= (uint64_t)at[byte] << (8 * byte);
    return value;
}

#define MIX(a, b, c, d, x, y)                                                                      \
    do {                                                                                           \
        v[a] += v[b] + (x);                                                                        \
        v[d] = rotated(v[d] ^ v[a], 32);                                                           \
        v[c] += v[d];                                                                              \
        v[b] = rotated(v[b] ^ v[c], 24);                                                           \
        v[a] += v[b] + (y);                                                                        \
        v[d] = rotated(v[d] ^ v[a], 16);                                                           \
        v[c] += v[d];                                                                              \
        v[b] = rotated(v[b] ^ v[c], 63);                                                           \
    } while (0)

/* RFC 7693, section 3.2: F, with the number of bytes up to the end of the block. */
static void compress(uint64_t state[WORDS], const unsigned char block[BLOCK], uint64_t bytes,
                     bool is_last)
{
    uint64_t m[16], v[16];
    for (unsigned at = 0; at < 16; at++)
        m[at] = word(block + 8 * at);
    memcpy(v, state, WORDS * sizeof *v);
    memcpy(v + WORDS, initial, WORDS * sizeof *v);
    v[12] ^= bytes;
    if (is_last)
        v[14] = ~v[14];
    for (unsigned round = 0; round < ROUNDS; round++) {
        const unsigned char *s = schedule[round % 10];
        MIX(0, 4, 8, 12, m[s[0]], m[s[1]]);
        MIX(1, 5, 9, 13, m[s[2]], m[s[3]]);
        MIX(2, 6, 10, 14, m[s[4]], m[s[5]]);
        MIX(3, 7, 11, 15, m[s[6]], m[s[7]]);
        MIX(0, 5, 10, 15, m[s[8]], m[s[9]]);
        MIX(1, 6, 11, 12, m[s[10]], m[s[11]]);
        MIX(2, 7, 8, 13, m[s[12]], m[s[13]]);
        MIX(3, 4, 9, 14, m[s[14]], m[s[15]]);
    }
    for (unsigned at = 0; at < WORDS; at++)
        state[at] ^= v[at] ^ v[at + WORDS];
}

/* A path from the root: its frames, and the state after each of its complete blocks. */
struct path {
    uint32_t *frame;
    uint64_t (*state)[WORDS];
    size_t room;
};

static int reserve(struct path *path, size_t depth)
{
    if (depth < path->room)
        return 0;
    size_t room = path->room * 2;
    uint32_t *frame = realloc(path->frame, room * sizeof *frame);
    if (frame == NULL)
        return -1;
    path->frame = frame;
    uint64_t(*state)[WORDS] = realloc(path->state, (room / OF_BLOCK + 1) * sizeof *state);
    if (state == NULL)
        return -1;
    path->state = state;
    path->room = room;
    return 0;
}

static void read_block(const struct machtrace_stacks *all, const struct path *path, size_t begin,
                       size_t end, unsigned char block[BLOCK])
{
    memset(block, 0, BLOCK);
    for (size_t depth = begin; depth < end; depth++)
        memcpy(block + (depth - begin) * MACHTRACE_FRAME_KEY_SIZE,
               all->frame_keys + (size_t)path->frame[depth] * MACHTRACE_FRAME_KEY_SIZE,
               MACHTRACE_FRAME_KEY_SIZE);
}

static void write_key(const struct machtrace_stacks *all, const struct path *path, size_t depth,
                      unsigned char *key)
{
    unsigned char block[BLOCK];
    uint64_t state[WORDS];
    size_t whole = depth == 0 ? 0 : (depth - 1) / OF_BLOCK;
    memcpy(state, path->state[whole], sizeof state);
    read_block(all, path, whole * OF_BLOCK, depth, block);
    compress(state, block, (uint64_t)depth * MACHTRACE_FRAME_KEY_SIZE, true);
    for (unsigned byte = 0; byte < MACHTRACE_STACK_KEY_SIZE; byte++)
        key[byte] = (unsigned char)(state[byte / 8] >> (8 * (byte % 8)));
}

int machtrace_stack_keys(const struct machtrace_stacks *all, unsigned char *keys)
{
    struct path path = {.room = 256};
    path.frame = malloc(path.room * sizeof *path.frame);
    path.state = malloc((path.room / OF_BLOCK + 1) * sizeof *path.state);
    int result = path.frame == NULL || path.state == NULL ? -1 : 0;
    if (result == 0) {
        memcpy(path.state[0], initial, sizeof initial);
        path.state[0][0] ^= UINT64_C(0x01010000) ^ MACHTRACE_STACK_KEY_SIZE;
    }
    size_t next = 0, last = 0;
    for (size_t node = 0; node < all->count && next < all->stacks && result == 0; node++) {
        size_t depth = all->depth[node];
        if (node == 0 ? depth != 0 : depth == 0 || depth > last + 1) {
            result = -2;
            break;
        }
        last = depth;
        if (depth > 0) {
            if (all->frame[node] >= all->frames) {
                result = -2;
                break;
            }
            if (reserve(&path, depth) != 0) {
                result = -1;
                break;
            }
            path.frame[depth - 1] = all->frame[node];
            size_t before = depth - 1;
            if (before > 0 && before % OF_BLOCK == 0) {
                unsigned char block[BLOCK];
                uint64_t *state = path.state[before / OF_BLOCK];
                memcpy(state, path.state[before / OF_BLOCK - 1], sizeof path.state[0]);
                read_block(all, &path, before - OF_BLOCK, before, block);
                compress(state, block, (uint64_t)before * MACHTRACE_FRAME_KEY_SIZE, false);
            }
        }
        for (; next < all->stacks && all->nodes[next] == (int32_t)node; next++)
            write_key(all, &path, depth, keys + next * MACHTRACE_STACK_KEY_SIZE);
    }
    if (result == 0 && next != all->stacks)
        result = -2;
    free(path.frame);
    free(path.state);
    return result;
}
