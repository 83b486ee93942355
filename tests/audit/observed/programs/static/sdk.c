/* An SDK, built twice: SDK is its number, and NAME the prefix of its functions. */
#include <dlfcn.h>
#include <sys/stat.h>

#include "counts.h"

#define JOINED(prefix, name) prefix##_##name
#define WITH(prefix, name) JOINED(prefix, name)
#define OWN(name) WITH(NAME, name)

WHOLE int OWN(direct)(int value)
{
    COUNT(SDK, OBSERVED);
    int result = observed(value);
    NO_TAIL_CALL;
    return result;
}

/* Ends with a jump, and leaves no frame. */
WHOLE int OWN(tail)(int value)
{
    COUNT(SDK, OBSERVED);
    return observed(value + 1);
}

/* Two jumps: the first is short. */
WHOLE static int last(int value)
{
    COUNT(SDK, OBSERVED);
    return observed(value * 3);
}

WHOLE int OWN(chain)(int value) { return last(value - 1); }

WHOLE int OWN(sizes)(const char *path, int file)
{
    struct stat first, second;
    COUNT(SDK, STAT);
    int result = stat(path, &first);
    COUNT(SDK, FSTAT);
    result += fstat(file, &second);
    COUNT(SDK, FSTAT);
    result += fstat(file, &second);
    return result + (first.st_size != second.st_size);
}

WHOLE int OWN(by_name)(int value)
{
    int (*function)(int) = (int (*)(int))dlsym(RTLD_DEFAULT, "observed");
    COUNT(SDK, OBSERVED);
    int result = function(value);
    NO_TAIL_CALL;
    return result;
}

WHOLE int OWN(never)(int value)
{
    int result = observed(value) + observed(value + 2);
    NO_TAIL_CALL;
    return result;
}

#ifdef OTHER
int WITH(OTHER, tail)(int value);

/* The other SDK calls for this one. */
WHOLE int OWN(through)(int value)
{
    int result = WITH(OTHER, tail)(value);
    NO_TAIL_CALL;
    return result;
}
#endif

#ifdef EARLY
static __attribute__((constructor)) void at_load(void)
{
    OWN(direct)(1);
    OWN(tail)(2);
    NO_TAIL_CALL;
}
#endif
