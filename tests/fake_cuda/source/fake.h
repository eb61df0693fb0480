/* A stand-in for libcuda.so.1: enough of the driver API for edged's CUDA contract, with no GPU.
 *
 * Device memory is host memory behind addresses that the processor cannot read. A stream is a queue with its own
 * thread, which works with injected delays. Data moves at the end of an operation, so code that reads a result or
 * reuses a source too early sees wrong bytes. Misuse is an error, as the real driver's documentation says, or stricter.
 *
 *   memory.c    allocations and their bounds
 *   streams.c   queues and the threads that work on them
 *   events.c    events
 *   graphs.c    capture and graphs
 *   driver.c    devices, contexts, look-up of functions
 *   control.c   functions for tests: configure, inject errors, count, trace
 *
 * Numbers and signatures are those of NVIDIA's public driver API.
 */
#pragma once
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct Stream *CUstream;
typedef struct Event *CUevent;
typedef struct Graph *CUgraph;
typedef struct Graph *CUgraphExec;
typedef struct Context *CUcontext;

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907,
};

typedef enum { COPY, AFFINE, RECORD, WAIT, BREAK, LAUNCH } Kind;

typedef struct Operation {
    struct Operation *next;
    Kind kind;
    uint64_t to, from; /* addresses; resolved when the operation runs, as on a device */
    size_t size;       /* bytes, or elements of AFFINE */
    int to_device, from_device;
    long microseconds;
    CUevent event;
    uint64_t turn; /* the value of the event's `asked` that this operation sets or awaits */
    CUresult error;
    CUgraph graph;
    void *owned; /* a copy of pageable memory, freed with the operation */
} Operation;

struct Stream {
    pthread_t thread;
    Operation *first, *last;
    int busy, ending, dead;
    int capturing, broken; /* broken: the capture is invalid */
    pthread_t capturer;
    CUgraph captured;
};

struct Event {
    uint64_t asked, done; /* records submitted, and records completed */
    int dead;
    CUstream captured_by;
};

struct Graph {
    Operation *first, *last;
    int executable, dead;
};

struct Context {
    int device;
    int users;
};

/* One lock for everything; `fake_changed` is signalled on every change. */
extern pthread_mutex_t fake_lock;
extern pthread_cond_t fake_changed;
void fake_hold(void);
void fake_release(void);

/* control.c: what every entry point calls first. `fake_enter` counts the call and returns an injected error. */
CUresult fake_enter(const char *name);
long fake_setting(const char *name);
void fake_trace(const char *what, const void *stream, size_t size, uint64_t begin, uint64_t end);
void fake_misuse(const char *what);
uint64_t fake_now(void); /* nanoseconds */

/* driver.c */
CUresult fake_require_context(void); /* also returns the error that broke the context */
void fake_break(CUresult error);

/* memory.c: the bytes of a block, or NULL if the range is not inside one live block. */
uint8_t *fake_device_bytes(uint64_t address, size_t size);
int fake_host_kind(uint64_t address, size_t size); /* 1: locked, 0: pageable, -1: beyond a locked block */
int fake_blocks(void);

/* streams.c */
CUresult fake_enqueue(CUstream stream, Operation operation);
CUresult fake_refuse_in_capture(void); /* calls that are not allowed while this thread captures */
void fake_append(Operation **first, Operation **last, const Operation *operation);
int fake_is_stream(CUstream stream);
extern int fake_objects; /* live streams, events and graphs */

#define ENTER(name)                          \
    do {                                     \
        CUresult injected = fake_enter(name); \
        if (injected)                        \
            return injected;                 \
    } while (0)
#define NEED_CONTEXT(name)                            \
    do {                                              \
        ENTER(name);                                  \
        CUresult missing = fake_require_context();    \
        if (missing)                                  \
            return missing;                           \
    } while (0)
