#define _GNU_SOURCE
#include "fake.h"
#include <stdlib.h>
#include <string.h>

/* Addresses that no processor accepts: if the host reads device memory, the test crashes. */
#define DEVICE_BASE 0xd00000000000ULL
#define MAPPED_BASE 0xe00000000000ULL
#define BLOCKS 65536
#define FRESH 0xCD
#define FREED 0xDD

typedef struct {
    uint64_t device; /* 0: the device does not see it */
    uint8_t *bytes;
    size_t size;
    int host, live;
} Block;

static Block blocks[BLOCKS];
static int count;
static uint64_t next_device = DEVICE_BASE, next_mapped = MAPPED_BASE;
static size_t used;

static CUresult add(size_t size, int host, int mapped, Block **made) {
    if (!size)
        return INVALID_VALUE;
    if (count == BLOCKS || (!host && used + size > (size_t)fake_setting("memory")))
        return OUT_OF_MEMORY;
    Block *block = &blocks[count];
    if (posix_memalign((void **)&block->bytes, 4096, size))
        return OUT_OF_MEMORY;
    memset(block->bytes, FRESH, size);
    block->size = size;
    block->host = host;
    block->live = 1;
    uint64_t *next = host ? &next_mapped : &next_device;
    block->device = host && !mapped ? 0 : *next;
    *next += (size + 1023) / 512 * 512; /* with a gap, so that blocks are never adjacent */
    used += host ? 0 : size;
    count++;
    *made = block;
    return SUCCESS;
}

/* Freed blocks keep their memory until the process ends, so that use after free is detected and harmless. */
static void retire(Block *block) {
    memset(block->bytes, FREED, block->size);
    block->live = 0;
    used -= block->host ? 0 : block->size;
}

static Block *at_device(uint64_t address, size_t size) {
    for (int i = 0; i < count; i++) {
        Block *b = &blocks[i];
        if (b->live && b->device && address >= b->device && address + size <= b->device + b->size)
            return b;
    }
    return NULL;
}

uint8_t *fake_device_bytes(uint64_t address, size_t size) {
    Block *block = at_device(address, size);
    return block ? block->bytes + (address - block->device) : NULL;
}

int fake_host_kind(uint64_t address, size_t size) {
    for (int i = 0; i < count; i++) {
        uint64_t begin = (uint64_t)blocks[i].bytes;
        if (blocks[i].host && address >= begin && address < begin + blocks[i].size)
            return blocks[i].live && address + size <= begin + blocks[i].size ? 1 : -1;
    }
    return 0;
}

int fake_blocks(void) {
    int live = 0;
    for (int i = 0; i < count; i++)
        live += blocks[i].live;
    return live;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
    NEED_CONTEXT("cuMemAlloc");
    fake_hold();
    Block *block;
    CUresult result = fake_refuse_in_capture();
    if (!result && !(result = add(size, 0, 0, &block)))
        *address = block->device;
    fake_release();
    return result;
}

API CUresult cuMemFree_v2(CUdeviceptr address) {
    NEED_CONTEXT("cuMemFree");
    fake_hold();
    CUresult result = fake_refuse_in_capture();
    Block *block = at_device(address, 1);
    if (!result && (!block || block->host || block->device != address)) {
        fake_misuse("cuMemFree of an address that is not allocated");
        result = INVALID_VALUE;
    }
    if (!result)
        retire(block);
    fake_release();
    return result;
}

API CUresult cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    NEED_CONTEXT("cuMemHostAlloc");
    fake_hold();
    Block *block;
    CUresult result = fake_refuse_in_capture();
    if (!result && !(result = add(size, 1, (flags & 2) != 0, &block)))
        *address = block->bytes;
    fake_release();
    return result;
}

API CUresult cuMemFreeHost(void *address) {
    NEED_CONTEXT("cuMemFreeHost");
    fake_hold();
    CUresult result = INVALID_VALUE;
    for (int i = 0; i < count && result; i++)
        if (blocks[i].live && blocks[i].host && blocks[i].bytes == address) {
            retire(&blocks[i]);
            result = SUCCESS;
        }
    if (result)
        fake_misuse("cuMemFreeHost of an address that is not allocated");
    fake_release();
    return result;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *device, void *address, unsigned flags) {
    (void)flags;
    NEED_CONTEXT("cuMemHostGetDevicePointer");
    fake_hold();
    CUresult result = INVALID_VALUE;
    for (int i = 0; i < count && result; i++)
        if (blocks[i].live && blocks[i].host && blocks[i].device && blocks[i].bytes == address) {
            *device = blocks[i].device;
            result = SUCCESS;
        }
    fake_release();
    return result;
}

static CUresult copy(uint64_t to, int to_device, uint64_t from, int from_device, size_t size, CUstream stream) {
    Operation op = {.kind = COPY, .to = to, .from = from, .size = size, .to_device = to_device};
    op.from_device = from_device;
    op.microseconds = fake_setting("copy_us");
    CUresult result = SUCCESS;
    fake_hold();
    if ((to_device && !fake_device_bytes(to, size)) || (from_device && !fake_device_bytes(from, size)) ||
        (!to_device && fake_host_kind(to, size) < 0) || (!from_device && fake_host_kind(from, size) < 0)) {
        fake_misuse("a copy beyond an allocation");
        result = INVALID_VALUE;
    }
    int pageable = (!to_device && !fake_host_kind(to, size)) || (!from_device && !fake_host_kind(from, size));
    if (!result && pageable) {
        fake_misuse("a copy of pageable memory");
        result = INVALID_VALUE; /* the real driver accepts this, but it is slow */
    }
    fake_release();
    return result ? result : fake_enqueue(stream, op);
}

API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    NEED_CONTEXT("cuMemcpyHtoDAsync");
    return copy(to, 1, (uint64_t)from, 0, size, stream);
}

API CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
    NEED_CONTEXT("cuMemcpyDtoHAsync");
    return copy((uint64_t)to, 0, from, 1, size, stream);
}
