#ifndef LAB_SETJMP_H
#define LAB_SETJMP_H
/* x19 to x30, sp and d8 to d15; of x86-64 rbx, rbp, r12 to r15, rsp and the return address. */
typedef unsigned long jmp_buf[22];
int setjmp(jmp_buf state) __attribute__((returns_twice));
_Noreturn void longjmp(jmp_buf state, int value);
#endif
