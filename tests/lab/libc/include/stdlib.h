#ifndef LAB_STDLIB_H
#define LAB_STDLIB_H
#include <stddef.h>

#define RAND_MAX 0x7FFFFFFF
#define EXIT_SUCCESS 0
#define EXIT_FAILURE 1
#define alloca __builtin_alloca

void *malloc(size_t size);
void *calloc(size_t count, size_t size);
void *realloc(void *block, size_t size);
void free(void *block);
size_t malloc_usable_size(const void *block);

_Noreturn void abort(void);
_Noreturn void exit(int status);
char *getenv(const char *name);
int system(const char *command);

void qsort(void *base, size_t count, size_t size, int (*compare)(const void *, const void *));
void *bsearch(const void *key, const void *base, size_t count, size_t size,
              int (*compare)(const void *, const void *));

double strtod(const char *text, char **end);
long strtol(const char *text, char **end, int base);
unsigned long strtoul(const char *text, char **end, int base);
long long strtoll(const char *text, char **end, int base);
unsigned long long strtoull(const char *text, char **end, int base);
int atoi(const char *text);
double atof(const char *text);

int abs(int value);
long labs(long value);
long long llabs(long long value);
int rand(void);
void srand(unsigned seed);
#endif
