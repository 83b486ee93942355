/* System functions for programs: a constant time, files that do not exist. */
#include <errno.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

int errno;

/* The emulator ends the run at the trap in leave() and reports a store to no memory as failure. */
_Noreturn void leave(void);
_Noreturn void abort(void) {
    *(volatile int *)8 = 0;
    leave();
}
_Noreturn void exit(int status) {
    if (status) {
        abort();
    }
    leave();
}
char *getenv(const char *name) { return (void)name, NULL; }
int system(const char *command) { return command ? -1 : 0; }
lab_handler signal(int number, lab_handler handler) { return (void)number, handler; }

static unsigned seed = 1;
void srand(unsigned value) { seed = value; }
int rand(void) {
    seed = seed * 1103515245 + 12345;
    return (int)(seed >> 1);
}
int abs(int value) { return value < 0 ? -value : value; }
long labs(long value) { return value < 0 ? -value : value; }
long long llabs(long long value) { return value < 0 ? -value : value; }

static struct lconv locale = {"."};
struct lconv *localeconv(void) { return &locale; }
char *setlocale(int category, const char *name) {
    (void)category;
    return !name || !*name || !strcmp(name, "C") ? "C" : NULL;
}

static const time_t NOW = 1700000000;
time_t time(time_t *result) {
    if (result) {
        *result = NOW;
    }
    return NOW;
}
clock_t clock(void) {
    static clock_t ticks;
    return ticks += 10;
}
int clock_gettime(int number, struct timespec *result) {
    (void)number;
    result->tv_sec = NOW;
    result->tv_nsec = (long)clock();
    return 0;
}
int gettimeofday(struct timeval *result, void *zone) {
    (void)zone;
    result->tv_sec = NOW;
    result->tv_usec = (int)clock();
    return 0;
}
double difftime(time_t later, time_t earlier) { return (double)(later - earlier); }

/* Days of the civil calendar, counted from March so that leap days come last. */
static long days_from_civil(long year, int month, int day) {
    year -= month < 2;
    long era = (year >= 0 ? year : year - 399) / 400;
    long of_era = year - era * 400;
    long of_year = (153 * ((month + 10) % 12) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}
time_t mktime(struct tm *parts) {
    long days = days_from_civil(parts->tm_year + 1900L, parts->tm_mon, parts->tm_mday);
    return days * 86400 + parts->tm_hour * 3600L + parts->tm_min * 60L + parts->tm_sec;
}
struct tm *gmtime_r(const time_t *moment, struct tm *parts) {
    long days = *moment / 86400, left = *moment % 86400;
    if (left < 0) {
        left += 86400;
        days--;
    }
    memset(parts, 0, sizeof *parts);
    parts->tm_hour = (int)(left / 3600);
    parts->tm_min = (int)(left / 60 % 60);
    parts->tm_sec = (int)(left % 60);
    parts->tm_wday = (int)((days + 4) % 7);
    long year = 1970 + days / 366;
    while (days_from_civil(year + 1, 0, 1) <= days) {
        year++;
    }
    parts->tm_year = (int)(year - 1900);
    parts->tm_yday = (int)(days - days_from_civil(year, 0, 1));
    while (parts->tm_mon < 11 && days_from_civil(year, parts->tm_mon + 1, 1) <= days) {
        parts->tm_mon++;
    }
    parts->tm_mday = (int)(days - days_from_civil(year, parts->tm_mon, 1)) + 1;
    return parts;
}
struct tm *localtime_r(const time_t *moment, struct tm *parts) { return gmtime_r(moment, parts); }
static struct tm shared;
struct tm *gmtime(const time_t *moment) { return gmtime_r(moment, &shared); }
struct tm *localtime(const time_t *moment) { return gmtime_r(moment, &shared); }
size_t strftime(char *out, size_t size, const char *format, const struct tm *parts) {
    (void)format;
    int length = snprintf(out, size, "%04d-%02d-%02d %02d:%02d:%02d", parts->tm_year + 1900,
                          parts->tm_mon + 1, parts->tm_mday, parts->tm_hour, parts->tm_min,
                          parts->tm_sec);
    return length < (int)size ? (size_t)length : 0;
}

static FILE files[3];
FILE *stdin = &files[0], *stdout = &files[1], *stderr = &files[2];
size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
    (void)data;
    file->written += size * count;
    return count;
}
/* For debugging a run that failed. */
char lab_last_line[1024];
int vfprintf(FILE *file, const char *format, va_list arguments) {
    int length = vsnprintf(lab_last_line, sizeof lab_last_line, format, arguments);
    return file->written += (unsigned long)length, length;
}
int fprintf(FILE *file, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vfprintf(file, format, arguments);
    va_end(arguments);
    return length;
}
int printf(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vfprintf(stdout, format, arguments);
    va_end(arguments);
    return length;
}
int fputs(const char *text, FILE *file) { return (int)fwrite(text, 1, strlen(text), file); }
int puts(const char *text) { return fputs(text, stdout) + 1; }
int fputc(int c, FILE *file) { return file->written++, c; }
int putc(int c, FILE *file) { return fputc(c, file); }
int putchar(int c) { return fputc(c, stdout); }
size_t fread(void *data, size_t size, size_t count, FILE *file) {
    return (void)data, (void)size, (void)count, (void)file, 0;
}
int fgetc(FILE *file) { return (void)file, EOF; }
int getc(FILE *file) { return fgetc(file); }
int ungetc(int c, FILE *file) { return (void)c, (void)file, EOF; }
char *fgets(char *line, int size, FILE *file) { return (void)line, (void)size, (void)file, NULL; }
static FILE *nothing(void) { return errno = ENOENT, NULL; }
FILE *fopen(const char *path, const char *mode) { return (void)path, (void)mode, nothing(); }
FILE *freopen(const char *path, const char *mode, FILE *file) {
    return (void)path, (void)mode, (void)file, nothing();
}
FILE *tmpfile(void) { return nothing(); }
char *tmpnam(char *name) { return (void)name, NULL; }
int fclose(FILE *file) { return (void)file, 0; }
int fflush(FILE *file) { return (void)file, 0; }
int feof(FILE *file) { return file == stdin; }
int ferror(FILE *file) { return (void)file, 0; }
void clearerr(FILE *file) { (void)file; }
int fseek(FILE *file, long offset, int whence) {
    return (void)file, (void)offset, (void)whence, -1;
}
long ftell(FILE *file) { return (long)file->written; }
int setvbuf(FILE *file, char *buffer, int mode, size_t size) {
    return (void)file, (void)buffer, (void)mode, (void)size, 0;
}
int remove(const char *path) { return (void)path, errno = ENOENT, -1; }
int rename(const char *from, const char *to) { return (void)from, (void)to, errno = ENOENT, -1; }
