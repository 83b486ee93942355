# One function in which each call-frame instruction is used, spelled out where the assembler has
# no directive for it. ULEB128 and SLEB128 operands are single bytes. By --defsym, DEBUG asks for
# .debug_frame, and NEGATIVE for the one instruction that LLVM does not know.
.ifdef DEBUG
    .cfi_sections .debug_frame
.endif
    .text
    .type every_instruction, @function
every_instruction:
    .cfi_startproc
    nop
    .cfi_def_cfa_offset 16
    .cfi_offset %rbx, -16
    nop
    .cfi_remember_state
    .cfi_def_cfa %rbp, 32
    .cfi_register %r12, %rdx
    .cfi_same_value %r13
    .cfi_undefined %r14
    nop
    .cfi_escape 0x14, 3, 2                  # val_offset rbx, 2 * -8
    .cfi_escape 0x15, 12, 0x7e              # val_offset_sf r12, -2 * -8
    .cfi_escape 0x11, 13, 0x7d              # offset_extended_sf r13, -3 * -8
.ifdef NEGATIVE
    .cfi_escape 0x2f, 15, 2                 # GNU_negative_offset_extended r15, 2
.endif
    nop
    .cfi_escape 0x05, 17, 4                 # offset_extended reg17, 4 * -8
    .cfi_escape 0x12, 7, 0x7f               # def_cfa_sf rsp, -1 * -8
    nop
    .cfi_escape 0x13, 0x7c                  # def_cfa_offset_sf -4 * -8
    .cfi_escape 0x2e, 24                    # GNU_args_size 24
    nop
    .cfi_escape 0x10, 6, 2, 0x77, 8         # expression rbp: breg7 8
    .cfi_escape 0x16, 3, 3, 0x77, 16, 0x06  # val_expression rbx: breg7 16, deref
    .cfi_escape 0x0f, 5, 0x92, 7, 0x20, 0x06, 0x96   # def_cfa_expression: bregx rsp 32, deref, nop
    nop
    .cfi_restore %rbx
    .cfi_escape 0x06, 6                     # restore_extended rbp
    .cfi_def_cfa %rsp, 8
    nop
    .cfi_restore_state
    .cfi_def_cfa_register %rbx
    nop
    .cfi_remember_state
    .cfi_remember_state
    .cfi_restore %rip
    .skip 300, 0x90
    .cfi_undefined %rip
    .skip 70000, 0x90
    .cfi_restore_state
    .cfi_adjust_cfa_offset 24
    nop
    .cfi_restore_state
    nop
    .cfi_endproc
    .size every_instruction, . - every_instruction

    .type signal_frame, @function
signal_frame:
    .cfi_startproc
    .cfi_signal_frame
    .cfi_personality 0x1b, every_instruction
    .cfi_lsda 0x1b, signal_frame
    nop
    nop
    .cfi_endproc
    .size signal_frame, . - signal_frame

# Each operation that call-frame information may use, in no sensible order.
    .type every_operation, @function
every_operation:
    .cfi_startproc
    .cfi_escape 0x0f, 86, 0x03, 1, 2, 3, 4, 5, 6, 7, 8, 0x06, 0x08, 0xff, 0x09, 0xff
    .cfi_escape 0x0a, 0xfe, 0xff, 0x0b, 0xfe, 0xff, 0x0c, 1, 0, 0, 0x80, 0x0d, 1, 0, 0, 0x80
    .cfi_escape 0x0e, 1, 0, 0, 0, 0, 0, 0, 0x80, 0x0f, 1, 0, 0, 0, 0, 0, 0, 0x80
    .cfi_escape 0x10, 0x80, 1, 0x11, 0x80, 0x7f, 0x12, 0x13, 0x14, 0x15, 3, 0x16, 0x17
    .cfi_escape 0x19, 0x1a, 0x1b, 0x1c, 0x1d, 0x1e, 0x1f, 0x20, 0x21, 0x22, 0x23, 0x85, 1
    .cfi_escape 0x24, 0x25, 0x26, 0x27, 0x29, 0x2a, 0x2b, 0x2c, 0x2d, 0x2e
    .cfi_escape 0x94, 4
    nop
    .cfi_escape 0x0f, 17, 0x30, 0x4f, 0x70, 0x7f, 0x86, 0x80, 1, 0x92, 6, 0x7f, 0x28, 1, 0
    .cfi_escape 0x96, 0x2f, 0xfe, 0xff
    nop
    .cfi_endproc
    .size every_operation, . - every_operation
