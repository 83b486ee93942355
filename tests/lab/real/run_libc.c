/* The library that the other drivers stand on: formats, numbers, sorting, jumps, memory. */
#include "check.h"

#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <time.h>

static jmp_buf back;
static int compared;

static int by_value(const void *left, const void *right) {
    compared++;
    return *(const int *)left - *(const int *)right;
}

static void fall(int depth) {
    char room[64];
    snprintf(room, sizeof room, "%d", depth);
    if (depth == 5) {
        longjmp(back, atoi(room) + 2);
    }
    fall(depth + 1);
}

static void formats(void) {
    char out[200];
    snprintf(out, sizeof out, "%5.2f|%-6s|%06d|%x|%g|%e|%s|%c|%%|%+d|%#o|%.3s", 3.14159, "ab", -42,
             255, 1e100, 12345.678, (char *)0, 'z', 7, 8, "abcdef");
    expect(!strcmp(out, " 3.14|ab    |-00042|ff|1e+100|1.234568e+04|(null)|z|%|+7|010|abc"));
    snprintf(out, sizeof out, "%.17g %a %lld %zu", 0.1, 1.5, -1ll << 62, (size_t)-1);
    expect(!strcmp(out, "0.10000000000000001 0x1.8p+0 -4611686018427387904 18446744073709551615"));
}

static void numbers(void) {
    char *end;
    expect(strtod("  -12.5e-1x", &end) == -1.25 && *end == 'x');
    expect(strtod("8.5e22", 0) == 8.5e22 && strtod("1234567890123456789e5", 0) == 1234567890123456789e5);
    expect(strtol("0x7f", &end, 0) == 127 && strtoul("777", 0, 8) == 511);
    expect(fabs(pow(2, 0.5) - sqrt(2)) < 1e-14 && fabs(sin(1) - 0.8414709848078965) < 1e-14);
    expect(fabs(exp(log(10)) - 10) < 1e-13 && fmod(7.5, 2) == 1.5 && floor(-0.5) == -1);
    expect(fabs(atan2(1, -1) - 2.356194490192345) < 1e-14 && cbrt(27) == 3);
}

int main(void) {
    formats();
    numbers();
    int values[40];
    for (int i = 0; i < 40; i++) {
        values[i] = rand() % 1000;
    }
    qsort(values, 40, sizeof *values, by_value);
    for (int i = 1; i < 40; i++) {
        expect(values[i - 1] <= values[i]);
    }
    expect(compared > 100 && bsearch(&values[7], values, 40, sizeof *values, by_value));
    volatile int times = 0;
    int landed = setjmp(back);
    if (landed == 0) {
        times++;
        fall(1);
    }
    expect(landed == 7 && times == 1);
    char *text = malloc(10);
    strcpy(text, "memory");
    text = realloc(text, 300);
    expect(!strcmp(text, "memory") && strstr(text, "mor") == text + 2 && strcspn(text, "yr") == 4);
    memmove(text + 1, text, 7);
    expect(!strcmp(text, "mmemory") && toupper(text[6]) == 'Y');
    free(text);
    time_t leap = 1582977600;
    expect(gmtime(&leap)->tm_mday == 29 && mktime(gmtime(&leap)) == leap);
    leave();
}
