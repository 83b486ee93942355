/* snprintf and similar functions. */
#include "number.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

struct sink {
    char *out;
    size_t size, length;
};

struct conversion {
    int is_left, shows_sign, shows_space, is_alternate, has_zeros, is_upper;
    int width, precision;
};

static void put(struct sink *sink, char c) {
    if (sink->length + 1 < sink->size) {
        sink->out[sink->length] = c;
    }
    sink->length++;
}

static void put_many(struct sink *sink, char c, int count) {
    while (count-- > 0) {
        put(sink, c);
    }
}

static void put_padded(struct sink *sink, const struct conversion *how, const char *before,
                       const char *text, int length) {
    int prefix = (int)strlen(before), fill = how->width - prefix - length;
    if (!how->is_left && !how->has_zeros) {
        put_many(sink, ' ', fill);
    }
    for (; *before; before++) {
        put(sink, *before);
    }
    if (how->has_zeros && !how->is_left) {
        put_many(sink, '0', fill);
    }
    for (int i = 0; i < length; i++) {
        put(sink, text[i]);
    }
    if (how->is_left) {
        put_many(sink, ' ', fill);
    }
}

static void put_integer(struct sink *sink, struct conversion how, uint64_t value, int is_negative,
                        unsigned base) {
    char digits[512], before[4] = "";
    int length = 0, at = sizeof digits;
    const char *alphabet = how.is_upper ? "0123456789ABCDEF" : "0123456789abcdef";
    int is_zero = value == 0;
    for (; value; value /= base) {
        digits[--at] = alphabet[value % base];
        length++;
    }
    int wanted = how.precision < 0 ? 1 : how.precision > 500 ? 500 : how.precision;
    for (; length < wanted; length++) {
        digits[--at] = '0';
    }
    if (how.is_alternate && base == 8 && (!length || digits[at] != '0')) {
        digits[--at] = '0';
        length++;
    }
    if (is_negative || how.shows_sign || how.shows_space) {
        before[0] = is_negative ? '-' : how.shows_sign ? '+' : ' ';
    }
    if (how.is_alternate && base == 16 && !is_zero) {
        strcat(before, how.is_upper ? "0X" : "0x");
    }
    how.has_zeros = how.has_zeros && how.precision < 0;
    put_padded(sink, &how, before, digits + at, length);
}

/* Rounds to ``wanted`` digits, ties to even; returns 1 where that made a digit more. */
static int rounded(char *digits, int *count, int wanted) {
    if (wanted >= *count) {
        return 0;
    }
    int up = 0;
    if (wanted >= 0) {
        int is_tie = digits[wanted] == '5';
        for (int i = wanted + 1; i < *count; i++) {
            is_tie = is_tie && digits[i] == '0';
        }
        int is_odd = wanted > 0 && (digits[wanted - 1] & 1);
        up = is_tie ? is_odd : digits[wanted] >= '5';
    }
    *count = wanted > 0 ? wanted : 0;
    for (int i = *count; up && i--;) {
        if (digits[i] != '9') {
            digits[i]++;
            return 0;
        }
        digits[i] = '0';
    }
    if (up) {
        memmove(digits + 1, digits, (size_t)*count);
        digits[0] = '1';
        ++*count;
    }
    return up;
}

static int put_exponent(char *out, int exponent, char letter) {
    int length = 0;
    out[length++] = letter;
    out[length++] = exponent < 0 ? '-' : '+';
    exponent = exponent < 0 ? -exponent : exponent;
    if (exponent >= 100) {
        out[length++] = (char)('0' + exponent / 100);
    }
    out[length++] = (char)('0' + exponent / 10 % 10);
    out[length++] = (char)('0' + exponent % 10);
    return length;
}

static int fixed(char *out, const char *digits, int count, int point, int behind, int keeps_point) {
    int length = 0;
    if (point <= 0) {
        out[length++] = '0';
    }
    for (int i = 0; i < point; i++) {
        out[length++] = i < count ? digits[i] : '0';
    }
    if (behind > 0 || keeps_point) {
        out[length++] = '.';
    }
    for (int i = point; i < point + behind; i++) {
        out[length++] = i >= 0 && i < count ? digits[i] : '0';
    }
    return length;
}

static int scientific(char *out, const char *digits, int count, int exponent, int behind, char letter,
                      int keeps_point) {
    int length = fixed(out, digits, count, 1, behind, keeps_point);
    return length + put_exponent(out + length, exponent, letter);
}

static int hexadecimal(char *out, double x, const struct conversion *how) {
    int exponent, length = 0;
    const char *alphabet = how->is_upper ? "0123456789ABCDEF" : "0123456789abcdef";
    double part = frexp(x, &exponent) * 2;
    out[length++] = '0';
    out[length++] = how->is_upper ? 'X' : 'x';
    out[length++] = (char)('0' + (int)part);
    part -= (int)part;
    if (part != 0 || how->precision > 0) {
        out[length++] = '.';
    }
    for (int i = 0; how->precision < 0 ? part != 0 : i < how->precision && i < 64; i++) {
        part *= 16;
        out[length++] = alphabet[(int)part];
        part -= (int)part;
    }
    exponent = x == 0 ? 0 : exponent - 1;
    out[length++] = how->is_upper ? 'P' : 'p';
    out[length++] = exponent < 0 ? '-' : '+';
    exponent = exponent < 0 ? -exponent : exponent;
    for (int unit = 1000, any = 0; unit; unit /= 10) {
        any |= exponent >= unit || unit == 1;
        if (any) {
            out[length++] = (char)('0' + exponent / unit % 10);
        }
    }
    return length;
}

static void put_number(struct sink *sink, struct conversion how, double x, char kind) {
    char digits[LAB_DIGITS], out[LAB_DIGITS + 600], before[2] = "";
    int length, point, count;
    if (signbit(x) || how.shows_sign || how.shows_space) {
        before[0] = signbit(x) ? '-' : how.shows_sign ? '+' : ' ';
    }
    if (!isfinite(x)) {
        how.has_zeros = 0;
        put_padded(sink, &how, before, isnan(x) ? "nan" : "inf", 3);
        return;
    }
    if (kind == 'a') {
        length = hexadecimal(out, fabs(x), &how);
        put_padded(sink, &how, before, out, length);
        return;
    }
    int precision = how.precision < 0 ? 6 : how.precision > 500 ? 500 : how.precision;
    count = lab_decimal_digits(x, digits, &point);
    if (count == 0) {
        point = 1;
    }
    char letter = how.is_upper ? 'E' : 'e';
    if (kind == 'f') {
        point += rounded(digits, &count, point + precision);
        length = fixed(out, digits, count, point, precision, how.is_alternate);
    } else if (kind == 'e') {
        point += rounded(digits, &count, precision + 1);
        length = scientific(out, digits, count, point - 1, precision, letter, how.is_alternate);
    } else {
        precision = precision ? precision : 1;
        point += rounded(digits, &count, precision);
        if (!how.is_alternate) {
            while (count && digits[count - 1] == '0') {
                count--;
            }
        }
        int shown = how.is_alternate ? precision : count;
        if (point < -3 || point > precision) {
            int behind = shown > 1 ? shown - 1 : 0;
            length = scientific(out, digits, count, point - 1, behind, letter, how.is_alternate);
        } else {
            int behind = shown > point ? shown - point : 0;
            length = fixed(out, digits, count, point, behind, how.is_alternate);
        }
    }
    put_padded(sink, &how, before, out, length);
}

static const char *flags(const char *format, struct conversion *how) {
    for (;; format++) {
        switch (*format) {
        case '-': how->is_left = 1; break;
        case '+': how->shows_sign = 1; break;
        case ' ': how->shows_space = 1; break;
        case '#': how->is_alternate = 1; break;
        case '0': how->has_zeros = 1; break;
        default: return format;
        }
    }
}

static int number_at(const char **format) {
    int value = 0;
    for (; **format >= '0' && **format <= '9'; ++*format) {
        value = 10 * value + **format - '0';
    }
    return value;
}

int vsnprintf(char *out, size_t size, const char *format, va_list arguments) {
    struct sink sink = {out, size, 0};
    for (; *format; format++) {
        if (*format != '%') {
            put(&sink, *format);
            continue;
        }
        struct conversion how = {.precision = -1};
        format = flags(format + 1, &how);
        if (*format == '*') {
            how.width = va_arg(arguments, int);
            if (how.width < 0) {
                how.width = -how.width;
                how.is_left = 1;
            }
            format++;
        } else {
            how.width = number_at(&format);
        }
        if (*format == '.') {
            format++;
            if (*format == '*') {
                how.precision = va_arg(arguments, int);
                format++;
            } else {
                how.precision = number_at(&format);
            }
        }
        int size_of = 4;
        for (;; format++) {
            if (*format == 'l' || *format == 'z' || *format == 'j' || *format == 't') {
                size_of = 8;
            } else if (*format == 'h') {
                size_of /= 2;
            } else if (*format != 'L') {
                break;
            }
        }
        switch (*format) {
        case 'd':
        case 'i': {
            int64_t value = size_of == 8 ? va_arg(arguments, long) : va_arg(arguments, int);
            value = size_of == 2 ? (short)value : size_of == 1 ? (signed char)value : value;
            put_integer(&sink, how, value < 0 ? -(uint64_t)value : (uint64_t)value, value < 0, 10);
            break;
        }
        case 'X': how.is_upper = 1; /* fall through */
        case 'x':
        case 'o':
        case 'u': {
            uint64_t value =
                size_of == 8 ? va_arg(arguments, unsigned long) : va_arg(arguments, unsigned);
            value &= size_of == 8 ? ~0ull : (1ull << 8 * size_of) - 1;
            how.shows_sign = how.shows_space = 0;
            put_integer(&sink, how, value, 0, *format == 'u' ? 10 : *format == 'o' ? 8 : 16);
            break;
        }
        case 'p':
            how.is_alternate = 1;
            put_integer(&sink, how, (uint64_t)va_arg(arguments, void *), 0, 16);
            break;
        case 'c': {
            char c = (char)va_arg(arguments, int);
            how.has_zeros = 0;
            put_padded(&sink, &how, "", &c, 1);
            break;
        }
        case 's': {
            const char *text = va_arg(arguments, const char *);
            text = text ? text : "(null)";
            size_t limit = how.precision < 0 ? (size_t)-1 >> 1 : (size_t)how.precision;
            how.has_zeros = 0;
            put_padded(&sink, &how, "", text, (int)strnlen(text, limit));
            break;
        }
        case 'A':
        case 'E':
        case 'F':
        case 'G': how.is_upper = 1; /* fall through */
        case 'a':
        case 'e':
        case 'f':
        case 'g':
            put_number(&sink, how, va_arg(arguments, double), (char)(*format | 0x20));
            break;
        case '%': put(&sink, '%'); break;
        default: put(&sink, *format); format -= !*format; break;
        }
    }
    if (size) {
        out[sink.length < size ? sink.length : size - 1] = 0;
    }
    return (int)sink.length;
}

int snprintf(char *out, size_t size, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(out, size, format, arguments);
    va_end(arguments);
    return length;
}

int sprintf(char *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(out, (size_t)-1 >> 1, format, arguments);
    va_end(arguments);
    return length;
}
