/* What frames.c calls, and where to begin, for a program that is run alone in an emulator. */

int early(int n, const int *values);
int deep(int n);

static volatile int calls;

int outside(const char *text) {
    calls += text[0];
    return calls;
}

void never_returns(void) {
    for (;;)
        calls++;
}

int begin(void) {
    static const int values[3] = {1, 2, 3};
    return early(3, values) + deep(3);
}
