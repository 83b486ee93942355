#ifndef LAB_ERRNO_H
#define LAB_ERRNO_H
extern int errno;
#define ENOENT 2
#define EINTR 4
#define EIO 5
#define ENOMEM 12
#define EACCES 13
#define EEXIST 17
#define EINVAL 22
#define EDOM 33
#define ERANGE 34
#define ETIMEDOUT 60
#define EOVERFLOW 84
#endif
