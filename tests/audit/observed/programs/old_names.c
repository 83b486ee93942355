/* Functions under the names by which programs of earlier versions of glibc import them. */
int __xstat(int version, const char *path, void *about);
int __fxstat64(int version, int file, void *about);
int __lxstat(int version, const char *path, void *about);
int __open64_2(const char *path, int flags);

#if defined(LIBRARY)
int __xstat(int version, const char *path, void *about) { return version + !path + !about; }
int __fxstat64(int version, int file, void *about) { return version + file + !about; }
int __lxstat(int version, const char *path, void *about) { return version + !path + !about; }
int __open64_2(const char *path, int flags) { return flags + !path; }
#else
typedef int function(int version, const char *path, void *about);

static function *const table[] = {__xstat, __lxstat};
static function *changeable[] = {__xstat, __lxstat};

int main(int argc, char **argv)
{
    int sum = 0;
    (void)argv;
    for (int number = 0; number < 100; number++) {
        sum += table[argc - 1](1, "/", &sum);
        sum += changeable[argc](1, "/", &sum);
    }
    for (int number = 0; number < 12; number++) {
        sum += __lxstat(1, "/", &sum);
        if (number < 7)
            sum += __xstat(1, "/", &sum);
        if (number < 5)
            sum += __fxstat64(1, 0, &sum);
        if (number < 3)
            sum += __open64_2("/", 0);
    }
    return sum == 0;
}
#endif
