#ifndef LAB_MATH_H
#define LAB_MATH_H
#define HUGE_VAL __builtin_huge_val()
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define M_PI 3.14159265358979323846
#define M_LN2 0.693147180559945309417
#define M_LN10 2.30258509299404568402
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x) __builtin_signbit(x)

#define LAB_UNARY(name) double name(double x);
LAB_UNARY(fabs) LAB_UNARY(floor) LAB_UNARY(ceil) LAB_UNARY(trunc) LAB_UNARY(rint) LAB_UNARY(round)
LAB_UNARY(sqrt) LAB_UNARY(cbrt) LAB_UNARY(exp) LAB_UNARY(expm1) LAB_UNARY(log) LAB_UNARY(log2)
LAB_UNARY(log10) LAB_UNARY(log1p) LAB_UNARY(sin) LAB_UNARY(cos) LAB_UNARY(tan) LAB_UNARY(asin)
LAB_UNARY(acos) LAB_UNARY(atan) LAB_UNARY(sinh) LAB_UNARY(cosh) LAB_UNARY(tanh) LAB_UNARY(asinh)
LAB_UNARY(acosh) LAB_UNARY(atanh) LAB_UNARY(nearbyint)
#undef LAB_UNARY
double pow(double x, double y);
double fmod(double x, double y);
double atan2(double y, double x);
double hypot(double x, double y);
double fmin(double x, double y);
double fmax(double x, double y);
double copysign(double x, double y);
double ldexp(double x, int exponent);
double scalbn(double x, int exponent);
double frexp(double x, int *exponent);
double modf(double x, double *whole);
long lrint(double x);
long long llrint(double x);
float fabsf(float x);
float sqrtf(float x);
float floorf(float x);
#endif
