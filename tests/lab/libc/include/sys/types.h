#ifndef LAB_SYS_TYPES_H
#define LAB_SYS_TYPES_H
#include <stddef.h>
typedef long ssize_t;
typedef long off_t;
#endif
