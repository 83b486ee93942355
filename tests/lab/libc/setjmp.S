// The C library's names for what tests/lab/programs has.
#define _set_jump _setjmp
#define _long_jump _longjmp
#include "../programs/jumps.S"
