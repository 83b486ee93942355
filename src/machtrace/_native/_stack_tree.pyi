# Trees of stacks in a canonical order, and keys of stacks. See stack_tree/module.c.

from typing_extensions import Buffer

# Depths and frames are 32-bit, nodes too; all are C-contiguous and aligned, in native byte order.
def join(depths: Buffer, frames: Buffer, /) -> tuple[bytearray, bytearray, bytearray]: ...
def join_stacks(frames: Buffer, ends: Buffer, /) -> tuple[bytearray, bytearray, bytearray]: ...
def links(depths: Buffer, /) -> tuple[bytearray, bytearray]: ...
def stack_keys(
    depths: Buffer, frames: Buffer, frame_keys: Buffer, nodes: Buffer, /
) -> bytearray: ...
def heaviest(
    frames: Buffer,
    ends: Buffer,
    sums: Buffer,
    first_calls: Buffer,
    images: Buffer,
    names: Buffer,
    most: int,
    wants_nodes: bool,
    /,
) -> tuple[bytearray, bytearray, bytearray, bytearray]: ...
