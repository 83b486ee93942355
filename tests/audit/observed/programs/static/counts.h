/* The truth: how often each library called each function, counted by the caller itself. */
#include <stdatomic.h>

enum { APP, ALPHA, BETA, LIBRARIES };
enum { OBSERVED, STAT, FSTAT, FUNCTIONS };
extern atomic_ulong counts[LIBRARIES][FUNCTIONS];

#define COUNT(library, function) atomic_fetch_add(&counts[library][function], 1)
/* What follows a call cannot be a jump. */
#define NO_TAIL_CALL __asm__ volatile("" ::: "memory")
#define WHOLE __attribute__((noinline, noclone))

int observed(int value);
