/* Division of numbers of 128 bits, which compilers call. */
typedef unsigned __int128 wide;

static wide divide(wide value, wide by, wide *rest) {
    wide quotient = 0, left = 0;
    for (int bit = 127; bit >= 0; bit--) {
        left = left << 1 | (value >> bit & 1);
        quotient <<= 1;
        if (left >= by) {
            left -= by;
            quotient |= 1;
        }
    }
    *rest = left;
    return quotient;
}

wide __udivti3(wide value, wide by) {
    wide rest;
    return divide(value, by, &rest);
}

wide __umodti3(wide value, wide by) {
    wide rest;
    divide(value, by, &rest);
    return rest;
}

__int128 __divti3(__int128 value, __int128 by) {
    wide rest, quotient = divide(value < 0 ? -(wide)value : value, by < 0 ? -(wide)by : by, &rest);
    return (value < 0) != (by < 0) ? -(__int128)quotient : (__int128)quotient;
}

__int128 __modti3(__int128 value, __int128 by) {
    wide rest;
    divide(value < 0 ? -(wide)value : value, by < 0 ? -(wide)by : by, &rest);
    return value < 0 ? -(__int128)rest : (__int128)rest;
}
