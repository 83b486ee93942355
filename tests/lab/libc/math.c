/* Functions of numbers, by range reduction and series: right to some 15 digits. */
#include <math.h>
#include <stdint.h>

/* Or the compiler takes some for what they are, and calls the function that it is in. */
#define ITSELF __attribute__((no_builtin))

union bits {
    double number;
    uint64_t word;
};

static double from_word(uint64_t word) { return (union bits){.word = word}.number; }
static uint64_t to_word(double x) { return (union bits){.number = x}.word; }
static int exponent_of(double x) { return (int)(to_word(x) >> 52 & 0x7FF) - 1023; }

ITSELF double fabs(double x) { return from_word(to_word(x) & ~0ull >> 1); }
ITSELF float fabsf(float x) { return (float)fabs(x); }
ITSELF double copysign(double x, double y) {
    return from_word((to_word(x) & ~0ull >> 1) | (to_word(y) & 1ull << 63));
}
ITSELF double trunc(double x) {
    int exponent = exponent_of(x);
    if (exponent >= 52) {
        return x;
    }
    if (exponent < 0) {
        return copysign(0, x);
    }
    return from_word(to_word(x) & ~(~0ull >> 12 >> exponent));
}
ITSELF double floor(double x) {
    double whole = trunc(x);
    return whole > x ? whole - 1 : whole;
}
ITSELF double ceil(double x) { return -floor(-x); }
float floorf(float x) { return (float)floor(x); }
ITSELF double round(double x) {
    double whole = trunc(x);
    return fabs(x - whole) >= 0.5 ? whole + copysign(1, x) : whole;
}
ITSELF double rint(double x) {
    if (!(fabs(x) < 0x1p52)) {
        return x;
    }
    volatile double big = copysign(0x1p52, x);
    return copysign(x + big - big, x);
}
double nearbyint(double x) { return rint(x); }
long lrint(double x) { return (long)rint(x); }
long long llrint(double x) { return (long long)rint(x); }
ITSELF double fmin(double x, double y) { return x < y || isnan(y) ? x : y; }
ITSELF double fmax(double x, double y) { return x > y || isnan(y) ? x : y; }

ITSELF double scalbn(double x, int exponent) {
    for (; exponent > 1023; exponent -= 1023) {
        x *= 0x1p1023;
        if (exponent > 4096) {
            exponent = 4096;
        }
    }
    for (; exponent < -969; exponent += 969) {
        x *= 0x1p-969;
        if (exponent < -4096) {
            exponent = -4096;
        }
    }
    return x * from_word((uint64_t)(exponent + 1023) << 52);
}
ITSELF double ldexp(double x, int exponent) { return scalbn(x, exponent); }
double frexp(double x, int *exponent) {
    *exponent = 0;
    if (x == 0 || !isfinite(x)) {
        return x;
    }
    if (exponent_of(x) == -1023) {
        x = frexp(x * 0x1p64, exponent);
        *exponent -= 64;
        return x;
    }
    *exponent = exponent_of(x) + 1;
    return from_word((to_word(x) & ~(0x7FFull << 52)) | 1022ull << 52);
}
double modf(double x, double *whole) {
    *whole = trunc(x);
    return isinf(x) ? copysign(0, x) : copysign(x - *whole, x);
}
double fmod(double x, double y) {
    if (!isfinite(x) || isnan(y) || y == 0) {
        return NAN;
    }
    double left = fabs(x), by = fabs(y);
    while (left >= by) {
        int shift = exponent_of(left) - exponent_of(by);
        double part = scalbn(by, shift);
        left -= part > left ? scalbn(by, shift - 1) : part;
    }
    return copysign(left, x);
}

double sqrt(double x) { return __builtin_sqrt(x); }
float sqrtf(float x) { return __builtin_sqrtf(x); }
double cbrt(double x) {
    if (x == 0 || !isfinite(x)) {
        return x;
    }
    double root = copysign(exp(log(fabs(x)) / 3), x);
    return root - (root * root * root - x) / (3 * root * root);
}
double hypot(double x, double y) { return sqrt(x * x + y * y); }

double exp(double x) {
    if (isnan(x)) {
        return x;
    }
    if (x > 710) {
        return INFINITY;
    }
    if (x < -746) {
        return 0;
    }
    double whole = rint(x / M_LN2);
    double rest = (x - whole * 0x1.62e42fefa3800p-1) - whole * 0x1.ef35793c76730p-45;
    double sum = 1;
    for (int i = 14; i; i--) {
        sum = 1 + sum * rest / i;
    }
    return scalbn(sum, (int)whole);
}
double expm1(double x) {
    if (fabs(x) > 0.5) {
        return exp(x) - 1;
    }
    double sum = 1;
    for (int i = 15; i > 1; i--) {
        sum = 1 + sum * x / i;
    }
    return sum * x;
}
static double log_near_one(double y) {
    double ratio = y / (2 + y), square = ratio * ratio, sum = 0;
    for (int i = 31; i > 0; i -= 2) {
        sum = sum * square + 2.0 / i;
    }
    return sum * ratio;
}
double log(double x) {
    if (x < 0) {
        return NAN;
    }
    if (x == 0) {
        return -INFINITY;
    }
    if (!isfinite(x)) {
        return x;
    }
    int exponent;
    double part = frexp(x, &exponent);
    if (part < 0.70710678118654752) {
        part *= 2;
        exponent--;
    }
    return exponent * 0x1.62e42fefa3800p-1 + (exponent * 0x1.ef35793c76730p-45 + log_near_one(part - 1));
}
double log1p(double x) { return fabs(x) < 0.25 ? log_near_one(x) : log(1 + x); }
double log2(double x) {
    int exponent;
    if (frexp(x, &exponent) == 0.5) {
        return exponent - 1;
    }
    return log(x) / M_LN2;
}
double log10(double x) {
    double found = log(x) / M_LN10, whole = rint(found);
    return fabs(found - whole) < 1e-13 ? whole : found;
}
double pow(double x, double y) {
    if (y == 0 || x == 1) {
        return 1;
    }
    if (y == trunc(y) && fabs(y) < 1024) {
        double result = 1, base = x;
        for (unsigned left = (unsigned)fabs(y); left; left >>= 1, base *= base) {
            if (left & 1) {
                result *= base;
            }
        }
        return y < 0 ? 1 / result : result;
    }
    if (x < 0) {
        if (y != trunc(y)) {
            return NAN;
        }
        double size = exp(y * log(-x));
        return fmod(y, 2) != 0 ? -size : size;
    }
    return exp(y * log(x));
}

/* The sine of x + quarters * π/2, x in [-π/4, π/4]. */
static double sine(double x, unsigned quarters) {
    double square = x * x, sum = 0, factor = quarters & 1 ? 1 : x;
    for (int i = 20 + (quarters & 1 ? 0 : 1); i > 1; i -= 2) {
        sum = -(sum + 1) * square / (i * (i - 1));
    }
    sum = factor * (1 + sum);
    return quarters & 2 ? -sum : sum;
}
static double reduced(double x, unsigned *quarters) {
    double whole = rint(x / (M_PI / 2));
    *quarters = (unsigned)(int64_t)whole;
    return (x - whole * 0x1.921fb54442d00p0) - whole * 0x1.8469898cc5170p-48;
}
double sin(double x) {
    unsigned quarters;
    double rest = reduced(x, &quarters);
    return sine(rest, quarters);
}
double cos(double x) {
    unsigned quarters;
    double rest = reduced(x, &quarters);
    return sine(rest, quarters + 1);
}
double tan(double x) { return sin(x) / cos(x); }
double atan(double x) {
    if (fabs(x) > 1) {
        return copysign(M_PI / 2, x) - atan(1 / x);
    }
    int halvings = 0;
    for (; fabs(x) > 0.1; halvings++) {
        x /= 1 + sqrt(1 + x * x);
    }
    double square = x * x, sum = 0;
    for (int i = 17; i > 0; i -= 2) {
        sum = 1.0 / i - sum * square;
    }
    return scalbn(sum * x, halvings);
}
double atan2(double y, double x) {
    if (x > 0) {
        return atan(y / x);
    }
    if (x < 0) {
        return atan(y / x) + copysign(M_PI, y);
    }
    return y == 0 ? 0 : copysign(M_PI / 2, y);
}
double asin(double x) { return atan2(x, sqrt((1 - x) * (1 + x))); }
double acos(double x) { return M_PI / 2 - asin(x); }
double sinh(double x) { return (expm1(x) - expm1(-x)) / 2; }
double cosh(double x) { return (exp(x) + exp(-x)) / 2; }
double tanh(double x) {
    double twice = expm1(2 * x);
    return isinf(twice) ? 1 : twice / (twice + 2);
}
double asinh(double x) { return copysign(log(fabs(x) + sqrt(x * x + 1)), x); }
double acosh(double x) { return log(x + sqrt(x * x - 1)); }
double atanh(double x) { return log1p(2 * x / (1 - x)) / 2; }
