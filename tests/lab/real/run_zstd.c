/* Compression and decompression at levels with different match finders, and by streams. */
#include "check.h"

#define ZSTD_STATIC_LINKING_ONLY
#include "zstd.h"

enum { SIZE = 10000, BOUND = SIZE + 1024 };
static char text[SIZE], packed[BOUND], unpacked[SIZE];

static size_t streamed(const char *from, size_t size, char *to, size_t room) {
    ZSTD_DCtx *context = ZSTD_createDCtx();
    ZSTD_inBuffer in = {from, 0, 0};
    ZSTD_outBuffer out = {to, room, 0};
    while (in.size < size) {
        in.size = in.size + 97 < size ? in.size + 97 : size;
        while (in.pos < in.size) {
            expect(!ZSTD_isError(ZSTD_decompressStream(context, &out, &in)));
        }
    }
    ZSTD_freeDCtx(context);
    return out.pos;
}

int main(void) {
    static const int levels[] = {-3, 1, 3, 5, 7, 9, 12, 15, 17, 19};
    size_t size = make_text(text, SIZE);
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) {
        size_t length = levels[i] > 9 ? size / 8 : size / (levels[i] > 3 ? 2 : 1);
        ZSTD_CCtx *context = ZSTD_createCCtx();
        expect(!ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, levels[i])));
        expect(!ZSTD_isError(ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1)));
        size_t got = ZSTD_compress2(context, packed, BOUND, text, length);
        ZSTD_freeCCtx(context);
        expect(!ZSTD_isError(got) && got < length);
        memset(unpacked, 0, SIZE);
        size_t back = i & 1 ? streamed(packed, got, unpacked, SIZE)
                            : ZSTD_decompress(unpacked, SIZE, packed, got);
        expect(back == length && !memcmp(text, unpacked, length));
    }
    packed[20] ^= 1;
    expect(ZSTD_isError(ZSTD_decompress(unpacked, SIZE, packed, 200)));
    leave();
}
