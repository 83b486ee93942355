#ifndef LAB_STDIO_H
#define LAB_STDIO_H
#include <stdarg.h>
#include <stddef.h>
#include <sys/types.h>

/* There are no files: streams for output forget what they are given, and nothing can be opened. */
typedef struct lab_file {
    unsigned long written;
} FILE;
extern FILE *stdin, *stdout, *stderr;
#define EOF (-1)
#define BUFSIZ 1024
#define FILENAME_MAX 1024
#define L_tmpnam 32
#define SEEK_SET 0
#define SEEK_CUR 1
#define SEEK_END 2
#define _IOFBF 0
#define _IOLBF 1
#define _IONBF 2

int vsnprintf(char *out, size_t size, const char *format, va_list arguments);
int snprintf(char *out, size_t size, const char *format, ...);
int sprintf(char *out, const char *format, ...);
int vfprintf(FILE *file, const char *format, va_list arguments);
int fprintf(FILE *file, const char *format, ...);
int printf(const char *format, ...);

size_t fwrite(const void *data, size_t size, size_t count, FILE *file);
size_t fread(void *data, size_t size, size_t count, FILE *file);
int fputs(const char *text, FILE *file);
int puts(const char *text);
int fputc(int c, FILE *file);
int putc(int c, FILE *file);
int putchar(int c);
int fgetc(FILE *file);
int getc(FILE *file);
int ungetc(int c, FILE *file);
char *fgets(char *line, int size, FILE *file);
FILE *fopen(const char *path, const char *mode);
FILE *freopen(const char *path, const char *mode, FILE *file);
FILE *tmpfile(void);
char *tmpnam(char *name);
int fclose(FILE *file);
int fflush(FILE *file);
int feof(FILE *file);
int ferror(FILE *file);
void clearerr(FILE *file);
int fseek(FILE *file, long offset, int whence);
long ftell(FILE *file);
int setvbuf(FILE *file, char *buffer, int mode, size_t size);
int remove(const char *path);
int rename(const char *from, const char *to);
#endif
