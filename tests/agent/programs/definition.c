/* Libraries for bindings.c and canonical.c, each with a number: FUNCTION, which returns it, and
 * CALLER, which calls CALLED. */
#include <unistd.h>

#ifdef FUNCTION
int FUNCTION(void);

__attribute__((noinline)) int FUNCTION(void)
{
#ifdef IMPORTS
    getpid(); /* which has a version, so that the library has a table of them */
#endif
    return NUMBER;
}
#endif

#ifdef CALLER

int CALLED(void);
int CALLER(void);

int CALLER(void)
{
    int result = CALLED();
    __asm__ volatile("" ::: "memory"); /* no tail call */
    return result;
}
#endif

#ifdef SECOND
int inner(void);
int call_inner(void);

int call_inner(void)
{
    int result = inner();
    __asm__ volatile("" ::: "memory");
    return result;
}
#endif

#ifdef LATER
int defined_later(void);
int call_later(void);

/* Nothing defines it until a plugin is loaded. */
int call_later(void)
{
    int result = defined_later();
    __asm__ volatile("" ::: "memory");
    return result;
}
#endif

#ifdef TABLES
int observed(void);
typedef int function(void);

int call_tables(void);

/* One on pages that are read-only, one on others. */
static function *const fixed[] = {observed};
static function *changing[] = {observed};

int call_tables(void)
{
    function *const *volatile one = fixed;
    function **volatile other = changing;
    int result = (*one)() + (*other)();
    __asm__ volatile("" ::: "memory");
    return result;
}
#endif
