#ifndef LAB_TIME_H
#define LAB_TIME_H
#include <stddef.h>
#define CLOCKS_PER_SEC 1000000
typedef long time_t;
typedef unsigned long clock_t;
struct tm {
    int tm_sec, tm_min, tm_hour, tm_mday, tm_mon, tm_year, tm_wday, tm_yday, tm_isdst;
    long tm_gmtoff;
    char *tm_zone;
};
struct timespec {
    time_t tv_sec;
    long tv_nsec;
};
#define CLOCK_REALTIME 0
#define CLOCK_MONOTONIC 6
time_t time(time_t *result);
clock_t clock(void);
int clock_gettime(int clock, struct timespec *result);
time_t mktime(struct tm *parts);
double difftime(time_t later, time_t earlier);
struct tm *gmtime(const time_t *moment);
struct tm *localtime(const time_t *moment);
struct tm *gmtime_r(const time_t *moment, struct tm *parts);
struct tm *localtime_r(const time_t *moment, struct tm *parts);
size_t strftime(char *out, size_t size, const char *format, const struct tm *parts);
#endif
