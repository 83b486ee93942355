#ifndef LAB_STRING_H
#define LAB_STRING_H
#include <stddef.h>

void *memcpy(void *restrict destination, const void *restrict source, size_t size);
void *memmove(void *destination, const void *source, size_t size);
void *memset(void *destination, int value, size_t size);
int memcmp(const void *left, const void *right, size_t size);
void *memchr(const void *data, int value, size_t size);
size_t strlen(const char *text);
size_t strnlen(const char *text, size_t limit);
char *strcpy(char *restrict destination, const char *restrict source);
char *strncpy(char *restrict destination, const char *restrict source, size_t size);
char *strcat(char *restrict destination, const char *restrict source);
char *strncat(char *restrict destination, const char *restrict source, size_t size);
int strcmp(const char *left, const char *right);
int strncmp(const char *left, const char *right, size_t size);
int strcoll(const char *left, const char *right);
char *strchr(const char *text, int character);
char *strrchr(const char *text, int character);
char *strstr(const char *text, const char *wanted);
char *strpbrk(const char *text, const char *set);
size_t strspn(const char *text, const char *set);
size_t strcspn(const char *text, const char *set);
char *strdup(const char *text);
char *strerror(int number);
#endif
