/* The few names of <mach/mach.h> that mach_memory.h takes, for where there is none. */
#include <stddef.h>
#include <stdint.h>

typedef int kern_return_t;
typedef uint32_t vm_map_read_t;
typedef int vm_prot_t;
