#ifndef LAB_SETJMP_H
#define LAB_SETJMP_H
/* What jumps.S saves: of arm64 x19 to x30, sp, a free word and d8 to d15. */
typedef unsigned long jmp_buf[22];
int setjmp(jmp_buf state) __attribute__((returns_twice));
_Noreturn void longjmp(jmp_buf state, int value);
#endif
