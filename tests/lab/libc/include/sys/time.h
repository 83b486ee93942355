#ifndef LAB_SYS_TIME_H
#define LAB_SYS_TIME_H
struct timeval {
    long tv_sec;
    int tv_usec;
};
int gettimeofday(struct timeval *result, void *zone);
#endif
