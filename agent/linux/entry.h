/* Hooks at a function's first instruction: the code, without the process that it is written to.
 *
 * A jump replaces the first bytes, behind the instruction that marks a target of indirect calls
 * (endbr64, bti) or signs the return address. It leads to an island near the function: a jump to
 * the stub, and at MACHTRACE_ISLAND_ENTRY the displaced instructions, and a jump to those behind.
 */
#ifndef MACHTRACE_AGENT_LINUX_ENTRY_H
#define MACHTRACE_AGENT_LINUX_ENTRY_H

#include <stdbool.h>
#include <stdint.h>

#define MACHTRACE_ISLAND_SIZE 96
#define MACHTRACE_ISLAND_ENTRY 16
#define MACHTRACE_PATCH_SIZE 8 /* at most */

enum machtrace_refusal {
    MACHTRACE_NOT_REFUSED,
    MACHTRACE_REFUSED_SHORT,       /* the function ends within the bytes that are replaced */
    MACHTRACE_REFUSED_TARGET,      /* it branches to them */
    MACHTRACE_REFUSED_INSTRUCTION, /* one of them calls, stops, or is unknown */
    MACHTRACE_REFUSED_DISTANCE,    /* what they address is too far from any island */
    MACHTRACE_REFUSED_SAME,        /* they are those of another hook */
    MACHTRACE_REFUSED_RIGHTS,      /* its code cannot be changed */
    MACHTRACE_REFUSED_THREADS      /* a thread may be within them */
};

struct machtrace_displaced {
    uint8_t island[MACHTRACE_ISLAND_SIZE];
    uint32_t island_size;
    uint32_t offset; /* of the patch in the function */
    uint32_t size;   /* of the instructions that it replaces */
    uint32_t patch_size;
    uint8_t patch[MACHTRACE_PATCH_SIZE];
    bool has_call;   /* the last of them pushes its return address by another instruction */
    uint32_t boundaries; /* bit n: an instruction begins n bytes behind the first replaced one */
};

/* Make the code of a hook for the function at an address, whose bytes are `code`, and those up to
 * the next multiple of 16 can be read. Nothing is written elsewhere than to the result. */
enum machtrace_refusal machtrace_displace(const uint8_t *code, uint64_t address, uint64_t size,
                                          uint64_t island, uint64_t stub,
                                          struct machtrace_displaced *result);

/* How far an island may be from its function, in bytes. */
extern const uint64_t machtrace_island_reach;

/* Replace bytes that are writable, while threads execute them; none of them is at an instruction
 * behind the first. */
void machtrace_replace_code(uint8_t *at, const uint8_t *bytes, uint32_t size);

/* Call `change` while all other threads are stopped, and before it `occupy` with each address from
 * `first` to `last` that one of them is at or may return to, or with all where that is unknown. It
 * is not called where they cannot be stopped. Neither may call a function of a library. */
void machtrace_stop_others(uint64_t first, uint64_t last,
                           void (*occupy)(uint64_t first, uint64_t last), void (*change)(void));

/* The length of the instruction at `code`; 0 if it is unknown or not within `size` bytes. */
uint32_t machtrace_instruction_length(const uint8_t *code, uint64_t size);

#endif
