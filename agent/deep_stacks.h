/* Stacks with more frames than a recorder has room for.
 *
 * They are walked in windows of MACHTRACE_FRAMES_MAX frames. The outer windows are inserted first,
 * the outermost before all, so that stacks with equal inner frames and different origins are
 * different nodes, as others are.
 */
#ifndef MACHTRACE_AGENT_DEEP_STACKS_H
#define MACHTRACE_AGENT_DEEP_STACKS_H

#include "recorder.h"
#include "walk/frame_records.h"

/* Append the frames of the thread, which is at `sp`, from walk->fp on: those of its own stack are read
 * in place, those of another one through copies, since that may be unmapped. */
void machtrace_walk_frames(struct machtrace_recorder *recorder, uint64_t sp,
                           struct machtrace_records_walk *walk);

/* Find the windows behind the first one, which begins at `fp` and at whose end `walk` is full. The
 * walk stays full if they are more than MACHTRACE_WINDOWS_MAX; then the recorder has none. */
void machtrace_take_windows(struct machtrace_recorder *recorder, uint64_t sp,
                            struct machtrace_records_walk *walk, uint64_t fp);

/* The node of the outer windows below `base`. Sets MACHTRACE_EVENT_INCOMPLETE and `*count` to 0 if
 * the tree is full, and MACHTRACE_EVENT_NO_FRAME_POINTER if an address is none of code: then the
 * frames outside of it are not inserted. */
uint32_t machtrace_insert_windows(struct machtrace_recorder *recorder, uint32_t base, uint64_t sp,
                                  uint64_t fp, size_t *count, uint8_t *flags);

#endif
