#ifndef LAB_SIGNAL_H
#define LAB_SIGNAL_H
typedef int sig_atomic_t;
typedef void (*lab_handler)(int);
#define SIG_DFL ((lab_handler)0)
#define SIGINT 2
lab_handler signal(int number, lab_handler handler);
#endif
