/* Heap sort, which needs no memory and has no bad cases. */
#include <stdlib.h>

typedef int (*comparison)(const void *, const void *);

static void swap(char *left, char *right, size_t size) {
    while (size--) {
        char kept = *left;
        *left++ = *right;
        *right++ = kept;
    }
}

static void sift_down(char *base, size_t at, size_t count, size_t size, comparison compare) {
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && compare(base + child * size, base + (child + 1) * size) < 0) {
            child++;
        }
        if (compare(base + at * size, base + child * size) >= 0) {
            return;
        }
        swap(base + at * size, base + child * size, size);
    }
}

void qsort(void *data, size_t count, size_t size, comparison compare) {
    char *base = data;
    for (size_t at = count / 2; at--;) {
        sift_down(base, at, count, size, compare);
    }
    while (count-- > 1) {
        swap(base, base + count * size, size);
        sift_down(base, 0, count, size, compare);
    }
}

void *bsearch(const void *key, const void *data, size_t count, size_t size, comparison compare) {
    const char *base = data;
    while (count) {
        const char *middle = base + count / 2 * size;
        int order = compare(key, middle);
        if (!order) {
            return (void *)middle;
        }
        if (order > 0) {
            base = middle + size;
            count--;
        }
        count /= 2;
    }
    return NULL;
}
