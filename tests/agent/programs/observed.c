/* A library whose functions are watched. */
#include <stdarg.h>
#include <string.h>

int observed(int value);
int observed_twice(int value);

__attribute__((noinline)) int observed(int value)
{
    return value + 1;
}

/* Calls the other through its own import slot. */
__attribute__((noinline)) int observed_twice(int value)
{
    int result = observed(value) + 1;
    __asm__ volatile("" ::: "memory");
    return result;
}

struct large {
    long values[6];
};

double observed_arguments(int a, double b, const char *c, long d, float e, int f, int g, int h,
                          double i, long j);
int observed_variadic(const char *format, ...);
struct large observed_result(long first);

/* Arguments in registers of both kinds, and on the stack. */
double observed_arguments(int a, double b, const char *c, long d, float e, int f, int g, int h,
                          double i, long j)
{
    return a + 10 * b + 100 * (double)strlen(c) + 1000 * (double)d + 1e4 * e + 1e5 * f + 1e6 * g +
           1e7 * h + 1e8 * i + 1e9 * (double)j;
}

int observed_variadic(const char *format, ...)
{
    int result = 0;
    va_list arguments;
    va_start(arguments, format);
    for (; *format != '\0'; format++) {
        result *= 10;
        if (*format == 'd')
            result += va_arg(arguments, int);
        else if (*format == 'i')
            result += (int)(2 * va_arg(arguments, double));
        else if (*format == 'L')
            result += (int)va_arg(arguments, long);
        else
            result += (int)strlen(va_arg(arguments, const char *));
    }
    va_end(arguments);
    return result;
}

/* The result is stored where a register points. */
struct large observed_result(long first)
{
    struct large result;
    for (long index = 0; index < 6; index++)
        result.values[index] = first + index;
    return result;
}
