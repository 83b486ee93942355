/* What frames.c calls, and a main, for a program of this machine. */
#include <stdio.h>
#include <stdlib.h>

int early(int n, const int *values);
int deep(int n);

int outside(const char *text) { return puts(text); }
void never_returns(void) { abort(); }

int main(int argc, char **argv) {
    int values[3] = {argc, 2, 3};
    (void)argv;
    return early(3, values) + deep(argc);
}
