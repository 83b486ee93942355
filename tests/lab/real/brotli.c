/* Compression and decompression at a quick, a usual and the best quality. */
#include "check.h"

#include <brotli/decode.h>
#include <brotli/encode.h>

enum { SIZE = 4000 };
static char text[SIZE];
static uint8_t packed[2 * SIZE], unpacked[SIZE];

int main(void) {
    static const int qualities[] = {0, 1, 2, 4, 5, 7, 9, 10, 11};
    size_t size = make_text(text, SIZE);
    for (size_t i = 0; i < sizeof qualities / sizeof *qualities; i++) {
        size_t length = qualities[i] > 9 ? size / 4 : size;
        size_t got = sizeof packed, back = SIZE;
        BrotliEncoderMode mode = i & 1 ? BROTLI_MODE_TEXT : BROTLI_MODE_GENERIC;
        expect(BrotliEncoderCompress(qualities[i], 18, mode, length, (uint8_t *)text, &got, packed));
        expect(got < length);
        memset(unpacked, 0, SIZE);
        expect(BrotliDecoderDecompress(got, packed, &back, unpacked) == BROTLI_DECODER_RESULT_SUCCESS);
        expect(back == length && !memcmp(text, unpacked, length));
    }
    leave();
}
