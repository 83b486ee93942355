#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Or the compiler takes these loops for what they are, and calls the function that they are in. */
#define ITSELF __attribute__((no_builtin))

typedef uint64_t __attribute__((may_alias, aligned(1))) word;

/* From the start, also where what it writes is behind what it reads. */
ITSELF static void *copy(char *to, const char *from, size_t size) {
    void *destination = to;
    for (; size >= 8; size -= 8, to += 8, from += 8) {
        *(word *)to = *(const word *)from;
    }
    while (size--) {
        *to++ = *from++;
    }
    return destination;
}

void *memcpy(void *restrict destination, const void *restrict source, size_t size) {
    return copy(destination, source, size);
}

ITSELF void *memmove(void *destination, const void *source, size_t size) {
    char *to = destination;
    const char *from = source;
    if ((uintptr_t)to - (uintptr_t)from >= size) {
        return copy(to, from, size);
    }
    for (to += size, from += size; size >= 8; size -= 8) {
        to -= 8;
        from -= 8;
        *(word *)to = *(const word *)from;
    }
    while (size--) {
        *--to = *--from;
    }
    return destination;
}

ITSELF void *memset(void *destination, int value, size_t size) {
    char *to = destination;
    word pattern = 0x0101010101010101u * (unsigned char)value;
    for (; size >= 8; size -= 8, to += 8) {
        *(word *)to = pattern;
    }
    while (size--) {
        *to++ = (char)value;
    }
    return destination;
}

ITSELF void bzero(void *destination, size_t size) { memset(destination, 0, size); }
/* What compilers for x86-64 call it. */
ITSELF void __bzero(void *destination, size_t size) { memset(destination, 0, size); }

/* What clang calls on macOS to fill memory with a pattern. */
ITSELF void memset_pattern16(void *destination, const void *pattern, size_t size) {
    char *to = destination;
    for (size_t i = 0; i < size; i++) {
        to[i] = ((const char *)pattern)[i % 16];
    }
}

ITSELF int memcmp(const void *left, const void *right, size_t size) {
    const unsigned char *a = left, *b = right;
    for (; size--; a++, b++) {
        if (*a != *b) {
            return *a - *b;
        }
    }
    return 0;
}

ITSELF void *memchr(const void *data, int value, size_t size) {
    const unsigned char *at = data;
    for (; size--; at++) {
        if (*at == (unsigned char)value) {
            return (void *)at;
        }
    }
    return NULL;
}

ITSELF size_t strlen(const char *text) {
    const char *end = text;
    while (*end) {
        end++;
    }
    return (size_t)(end - text);
}

ITSELF size_t strnlen(const char *text, size_t limit) {
    size_t size = 0;
    while (size < limit && text[size]) {
        size++;
    }
    return size;
}

char *strcpy(char *restrict destination, const char *restrict source) {
    memcpy(destination, source, strlen(source) + 1);
    return destination;
}

char *strncpy(char *restrict destination, const char *restrict source, size_t size) {
    size_t length = strnlen(source, size);
    memcpy(destination, source, length);
    memset(destination + length, 0, size - length);
    return destination;
}

char *strcat(char *restrict destination, const char *restrict source) {
    strcpy(destination + strlen(destination), source);
    return destination;
}

char *strncat(char *restrict destination, const char *restrict source, size_t size) {
    size_t length = strnlen(source, size);
    char *to = destination + strlen(destination);
    memcpy(to, source, length);
    to[length] = 0;
    return destination;
}

int strcmp(const char *left, const char *right) { return strncmp(left, right, SIZE_MAX); }

ITSELF int strncmp(const char *left, const char *right, size_t size) {
    for (; size--; left++, right++) {
        if (*left != *right) {
            return (unsigned char)*left - (unsigned char)*right;
        }
        if (!*left) {
            break;
        }
    }
    return 0;
}

int strcoll(const char *left, const char *right) { return strcmp(left, right); }

ITSELF char *strchr(const char *text, int character) {
    for (;; text++) {
        if (*text == (char)character) {
            return (char *)text;
        }
        if (!*text) {
            return NULL;
        }
    }
}

char *strrchr(const char *text, int character) {
    const char *found = NULL;
    do {
        if (*text == (char)character) {
            found = text;
        }
    } while (*text++);
    return (char *)found;
}

char *strstr(const char *text, const char *wanted) {
    size_t size = strlen(wanted);
    for (; *text || !size; text++) {
        if (!strncmp(text, wanted, size)) {
            return (char *)text;
        }
    }
    return NULL;
}

size_t strcspn(const char *text, const char *set) {
    size_t size = 0;
    while (text[size] && !strchr(set, text[size])) {
        size++;
    }
    return size;
}

size_t strspn(const char *text, const char *set) {
    size_t size = 0;
    while (text[size] && strchr(set, text[size])) {
        size++;
    }
    return size;
}

char *strpbrk(const char *text, const char *set) {
    text += strcspn(text, set);
    return *text ? (char *)text : NULL;
}

char *strdup(const char *text) {
    char *copy = malloc(strlen(text) + 1);
    return copy ? strcpy(copy, text) : NULL;
}

char *strerror(int number) {
    (void)number;
    return "an error";
}
