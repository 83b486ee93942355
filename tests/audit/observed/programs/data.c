/* What is watched, and what gives consent. */
__attribute__((noinline)) int observed(int value) { return value + 1; }
__attribute__((noinline)) int agree(int value) { return value; }
