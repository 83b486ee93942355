/* Functions whose frames differ: large, of a size known at run time, with many registers saved,
   left early, and of no frame at all. Nothing is linked from outside but what is declared. */

int outside(const char *text);
void never_returns(void) __attribute__((noreturn));

__attribute__((noinline)) int leaf(int a, int b) { return a * b + (a ^ b); }

__attribute__((noinline)) int large(int a, int b, int c, int d, int e, int f, int g, int h) {
    volatile char buffer[5000];
    buffer[a & 1023] = (char)b;
    outside((const char *)buffer);
    return a * b + c * d + e * f + g * h + buffer[c & 1023];
}

__attribute__((noinline)) int sized_at_run_time(int size) {
    char *bytes = __builtin_alloca(size);
    bytes[0] = (char)size;
    outside(bytes);
    return bytes[size / 2];
}

__attribute__((noinline)) int early(int n, const int *values) {
    if (!values)
        return -1;
    int sum = 0, product = 1, last = 0;
    for (int i = 0; i < n; i++) {
        sum += leaf(values[i], last);
        product *= large(i, sum, product, last, n, 1, 2, 3);
        last = sized_at_run_time(product & 255);
        if (last == 77)
            never_returns();
    }
    return sum + product + last;
}

int deep(int n) {
    if (n < 2)
        return large(n, 1, 2, 3, 4, 5, 6, 7);
    int a = deep(n - 1), b = deep(n - 2);
    if (a == 0x7ffff123 && b == a)
        never_returns();
    return a + b + sized_at_run_time(n);
}
