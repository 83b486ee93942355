/* A library whose constructor calls the function whose address is in the environment. */
#include <stdint.h>
#include <stdlib.h>

__attribute__((constructor, used)) static void call_back(void)
{
    void (*function)(void) = (void (*)(void))(uintptr_t)strtoull(getenv("CALLED_BACK"), NULL, 10);
    function();
}
