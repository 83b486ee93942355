#ifndef LAB_FENV_H
#define LAB_FENV_H
#define FE_TONEAREST 0
#define FE_DOWNWARD 1
#define FE_UPWARD 2
#define FE_TOWARDZERO 3
/* The mode is always "to nearest" here, and asking for another changes nothing. */
static inline int fegetround(void) { return FE_TONEAREST; }
static inline int fesetround(int mode) { return mode != FE_TONEAREST; }
#endif
