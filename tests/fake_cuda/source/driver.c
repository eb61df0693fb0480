#define _GNU_SOURCE
#include "fake.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 256
#define DEVICES 2

static int initialised;
static CUresult broken; /* set by a failed operation; every later call returns it, as in a real context */
static struct Context primaries[DEVICES] = {{0, 0}, {1, 0}};
static __thread CUcontext stack[DEPTH];
static __thread int depth;

void fake_break(CUresult error) {
    if (!broken)
        broken = error;
}

API void fakeRecover(void) { broken = SUCCESS; }

CUresult fake_require_context(void) {
    if (!initialised)
        return NOT_INITIALIZED;
    if (!depth || !stack[depth - 1] || !stack[depth - 1]->users) {
        fake_misuse("a call without a current context");
        return INVALID_CONTEXT;
    }
    return broken;
}

API CUresult cuInit(unsigned flags) {
    (void)flags;
    ENTER("cuInit");
    if (!fake_setting("devices"))
        return NO_DEVICE;
    initialised = 1;
    return SUCCESS;
}

API CUresult cuDriverGetVersion(int *version) {
    ENTER("cuDriverGetVersion");
    *version = (int)fake_setting("driver_version");
    return SUCCESS;
}

API CUresult cuGetErrorName(CUresult error, const char **name) {
    static const struct { CUresult error; const char *name; } names[] = {
        {SUCCESS, "CUDA_SUCCESS"}, {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"}, {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {NO_DEVICE, "CUDA_ERROR_NO_DEVICE"}, {INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"}, {NOT_READY, "CUDA_ERROR_NOT_READY"},
        {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"}, {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
        {CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
        {CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
        {CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
        {CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].error == error) {
            *name = names[i].name;
            return SUCCESS;
        }
    *name = NULL;
    return INVALID_VALUE;
}

API CUresult cuGetErrorString(CUresult error, const char **text) {
    if (error == OUT_OF_MEMORY) /* the driver's text, which a binding may report instead of the name */
        return *text = "out of memory", SUCCESS;
    return cuGetErrorName(error, text);
}

/* The faster device is the second on the bus, so that the two orders differ. CUDA_VISIBLE_DEVICES has numbers only. */
static int device_of(int ordinal) {
    const char *order = getenv("CUDA_DEVICE_ORDER"), *visible = getenv("CUDA_VISIBLE_DEVICES");
    for (int skip = ordinal; visible; skip--) {
        char *end;
        ordinal = (int)strtol(visible, &end, 10);
        if (end == visible || ordinal < 0 || (skip && *end != ','))
            return -1;
        if (!skip)
            break;
        visible = end + 1;
    }
    return order && !strcmp(order, "PCI_BUS_ID") ? ordinal : (int)fake_setting("devices") - 1 - ordinal;
}

static int is_device(CUdevice device) { return device >= 0 && device < fake_setting("devices"); }

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER("cuDeviceGet");
    if (!initialised)
        return NOT_INITIALIZED;
    if (!is_device(ordinal) || !is_device(device_of(ordinal)))
        return INVALID_DEVICE;
    *device = device_of(ordinal);
    return SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *address, int size, CUdevice device) {
    ENTER("cuDeviceGetPCIBusId");
    snprintf(address, (size_t)size, "0000:%02X:00.0", device + 1);
    return SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int size, CUdevice device) {
    ENTER("cuDeviceGetName");
    snprintf(name, (size_t)size, "Stand-in %d", device);
    return SUCCESS;
}

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    (void)device;
    ENTER("cuDeviceGetAttribute");
    switch (attribute) {
    case 18: *value = (int)fake_setting("integrated"); break;
    case 19: *value = (int)fake_setting("can_map"); break;
    case 75: *value = 8; break;      /* compute capability */
    case 76: *value = 7; break;
    default: *value = 0;
    }
    return SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    ENTER("cuDevicePrimaryCtxRetain");
    if (!initialised)
        return NOT_INITIALIZED;
    *context = &primaries[device];
    primaries[device].users++;
    return SUCCESS;
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER("cuDevicePrimaryCtxRelease");
    if (!primaries[device].users) {
        fake_misuse("a context that is released more often than retained");
        return INVALID_CONTEXT;
    }
    primaries[device].users--;
    return SUCCESS;
}

API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    ENTER("cuCtxPushCurrent");
    if (depth == DEPTH || !context)
        return INVALID_CONTEXT;
    stack[depth++] = context;
    return SUCCESS;
}

API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    ENTER("cuCtxPopCurrent");
    if (!depth) {
        fake_misuse("a context that is popped from nothing");
        return INVALID_CONTEXT;
    }
    *context = stack[--depth];
    return SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *device) {
    NEED_CONTEXT("cuCtxGetDevice");
    *device = stack[depth - 1]->device;
    return SUCCESS;
}

/* A function is requested by its name without version suffix; like a driver, return the newest version that exists. */
static CUresult look_up(const char *symbol, int version, void **function) {
    static const char *const suffixes[] = {"_v2", "WithFlags", ""};
    Dl_info self;
    dladdr((void *)(uintptr_t)look_up, &self);
    *function = NULL;
    if (version > fake_setting("driver_version")) /* it came with a later CUDA */
        return NOT_FOUND;
    void *library = dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    for (int i = 0; i < 3 && !*function; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s%s", symbol, suffixes[i]);
        *function = dlsym(library, name);
    }
    dlclose(library);
    return *function ? SUCCESS : NOT_FOUND;
}

API CUresult cuGetProcAddress(const char *symbol, void **function, int version, uint64_t flags) {
    (void)flags;
    return look_up(symbol, version, function);
}

API CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags, int *status) {
    (void)flags;
    CUresult result = look_up(symbol, version, function);
    if (status)
        *status = result ? 1 : 0;
    return result;
}
