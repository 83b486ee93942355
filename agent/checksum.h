/* CRC-32 as zlib, PNG and IEEE 802.3 have it: reversed polynomial 0xedb88320. */
#ifndef MACHTRACE_AGENT_CHECKSUM_H
#define MACHTRACE_AGENT_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* Continue from an earlier result; 0 to begin. */
uint32_t machtrace_checksum(uint32_t checksum, const void *bytes, size_t size);

#endif
