/* Numbers from text and to text, exactly: as long numbers of nine decimal digits a word. */
#include "number.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 130, BILLION = 1000000000 };

/* Least word first. */
struct long_number {
    uint32_t words[WORDS];
    int count;
};

static void multiply(struct long_number *number, uint32_t by, uint32_t carried) {
    uint64_t carry = carried;
    for (int i = 0; i < number->count; i++) {
        carry += (uint64_t)number->words[i] * by;
        number->words[i] = (uint32_t)(carry % BILLION);
        carry /= BILLION;
    }
    if (carry && number->count < WORDS) {
        number->words[number->count++] = (uint32_t)carry;
    }
}

static int digits_of(const struct long_number *number, char *out) {
    int length = 0;
    for (int i = number->count; i--;) {
        uint32_t unit = BILLION / 10;
        for (uint32_t word = number->words[i]; unit; word %= unit, unit /= 10) {
            out[length] = (char)('0' + word / unit);
            length += length || out[0] != '0';
        }
    }
    return length;
}

int lab_decimal_digits(double x, char *digits, int *point) {
    int exponent;
    double part = frexp(fabs(x), &exponent);
    uint64_t whole = (uint64_t)ldexp(part, 53);
    struct long_number number = {{(uint32_t)(whole % BILLION), (uint32_t)(whole / BILLION % BILLION)}, 2};
    exponent -= 53;
    while (whole && exponent < 0 && !(whole & 1)) {
        whole >>= 1;
        exponent++;
        number.words[0] = (uint32_t)(whole % BILLION);
        number.words[1] = (uint32_t)(whole / BILLION % BILLION);
    }
    for (; exponent > 0; exponent--) {
        multiply(&number, 2, 0);
    }
    /* x = n / 2^k is n * 5^k / 10^k. */
    int below = exponent < 0 ? -exponent : 0;
    for (int i = 0; i < below; i++) {
        multiply(&number, 5, 0);
    }
    int length = digits_of(&number, digits);
    *point = length - below;
    return length;
}

/* Compares digits * 10^scale with m * 2^e, all exactly. */
static int compare(const char *digits, int count, int scale, uint64_t m, int e) {
    static struct long_number left, right;
    left.count = right.count = 0;
    for (int i = 0; i < count; i++) {
        multiply(&left, 10, (uint32_t)(digits[i] - '0'));
    }
    multiply(&right, 1, (uint32_t)(m >> 32 >> 16));
    multiply(&right, 1 << 16, (uint32_t)(m >> 32 & 0xFFFF));
    multiply(&right, 1 << 16, (uint32_t)(m >> 16 & 0xFFFF));
    multiply(&right, 1 << 16, (uint32_t)(m & 0xFFFF));
    for (int i = 0; i < scale; i++) {
        multiply(&left, 10, 0);
    }
    for (int i = 0; i > scale; i--) {
        multiply(&right, 10, 0);
    }
    for (int i = 0; i < e; i++) {
        multiply(&right, 2, 0);
    }
    for (int i = 0; i > e; i--) {
        multiply(&left, 2, 0);
    }
    if (left.count != right.count) {
        return left.count < right.count ? -1 : 1;
    }
    for (int i = left.count; i--;) {
        if (left.words[i] != right.words[i]) {
            return left.words[i] < right.words[i] ? -1 : 1;
        }
    }
    return 0;
}

static double nearest(const char *digits, int count, int scale) {
    double found = 0;
    for (int i = 0; i < count; i++) {
        found = found * 10 + (digits[i] - '0');
    }
    if (count <= 15 && scale >= -22 && scale <= 22) {
        double power = 1;
        for (int i = abs(scale); i; i--) {
            power *= 10;
        }
        return scale < 0 ? found / power : found * power;
    }
    for (int i = scale; i > 0; i--) {
        found *= 10;
    }
    for (int i = scale; i < 0; i++) {
        found /= 10;
    }
    if (count > 400 || abs(scale) > 400 || found == 0 || isinf(found)) {
        return found;
    }
    /* Half-way to each neighbour, until the text lies between. */
    for (int steps = 0; steps < 400; steps++) {
        int exponent;
        uint64_t whole = (uint64_t)ldexp(frexp(found, &exponent), 53);
        int above = compare(digits, count, scale, 2 * whole + 1, exponent - 54);
        int below = compare(digits, count, scale, 2 * whole - 1, exponent - 54);
        if (above > 0 || (above == 0 && whole & 1)) {
            found = ldexp((double)(whole + 1), exponent - 53);
        } else if (below < 0 || (below == 0 && whole & 1)) {
            found = ldexp((double)(whole - 1), exponent - 53);
        } else {
            break;
        }
    }
    return found;
}

static const char *sign_of(const char *text, int *negative) {
    while (isspace((unsigned char)*text)) {
        text++;
    }
    *negative = *text == '-';
    return text + (*text == '-' || *text == '+');
}

static const char *exponent_at(const char *text, int letter, int *exponent) {
    if (tolower((unsigned char)*text) != letter) {
        return text;
    }
    const char *at = text + 1;
    int negative = *at == '-', value = 0;
    at += *at == '-' || *at == '+';
    if (!isdigit((unsigned char)*at)) {
        return text;
    }
    for (; isdigit((unsigned char)*at); at++) {
        value = value < 100000 ? 10 * value + *at - '0' : value;
    }
    *exponent += negative ? -value : value;
    return at;
}

static int digit_of(int c) {
    if (isdigit(c)) {
        return c - '0';
    }
    return isalpha(c) ? tolower(c) - 'a' + 10 : 99;
}

static double hexadecimal(const char *text, const char **end) {
    double found = 0;
    int exponent = 0, any = 0, is_behind = 0;
    for (;; text++) {
        if (*text == '.' && !is_behind) {
            is_behind = 1;
            continue;
        }
        int digit = digit_of((unsigned char)*text);
        if (digit > 15) {
            break;
        }
        any = 1;
        exponent -= 4 * is_behind;
        found = found * 16 + digit;
    }
    if (any) {
        *end = exponent_at(text, 'p', &exponent);
    }
    return ldexp(found, exponent);
}

double strtod(const char *text, char **end) {
    int negative, count = 0, scale = 0, any = 0, is_behind = 0;
    char digits[420];
    const char *at = sign_of(text, &negative), *behind = text;
    double found = 0;
    if (at[0] == '0' && tolower((unsigned char)at[1]) == 'x') {
        behind = at + 1;
        found = hexadecimal(at + 2, &behind);
    } else if (!strncmp(at, "inf", 3) || !strncmp(at, "nan", 3)) {
        found = *at == 'i' ? INFINITY : NAN;
        behind = at + 3;
    } else {
        for (;; at++) {
            if (*at == '.' && !is_behind) {
                is_behind = 1;
                continue;
            }
            if (!isdigit((unsigned char)*at)) {
                break;
            }
            any = 1;
            scale -= is_behind;
            if (count || *at != '0') {
                if (count < (int)sizeof digits) {
                    digits[count++] = *at;
                } else {
                    scale++;
                }
            }
        }
        if (any) {
            behind = exponent_at(at, 'e', &scale);
            found = nearest(digits, count, scale < -4096 ? -4096 : scale > 4096 ? 4096 : scale);
        }
    }
    if (end) {
        *end = (char *)behind;
    }
    return negative ? -found : found;
}

unsigned long long strtoull(const char *text, char **end, int base) {
    int negative, any = 0;
    const char *at = sign_of(text, &negative);
    unsigned long long found = 0;
    if ((base == 0 || base == 16) && at[0] == '0' && tolower((unsigned char)at[1]) == 'x') {
        at += 2;
        base = 16;
    } else if (base == 0) {
        base = *at == '0' ? 8 : 10;
    }
    for (int digit; (digit = digit_of((unsigned char)*at)) < base; at++) {
        any = 1;
        if (__builtin_mul_overflow(found, (unsigned)base, &found) ||
            __builtin_add_overflow(found, (unsigned)digit, &found)) {
            errno = ERANGE;
            found = ULLONG_MAX;
        }
    }
    if (end) {
        *end = (char *)(any ? at : text);
    }
    return negative ? -found : found;
}
long long strtoll(const char *text, char **end, int base) {
    return (long long)strtoull(text, end, base);
}
long strtol(const char *text, char **end, int base) { return (long)strtoull(text, end, base); }
unsigned long strtoul(const char *text, char **end, int base) {
    return (unsigned long)strtoull(text, end, base);
}
int atoi(const char *text) { return (int)strtol(text, NULL, 10); }
double atof(const char *text) { return strtod(text, NULL); }
