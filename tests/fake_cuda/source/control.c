#define _GNU_SOURCE
#include "fake.h"
#include <stdio.h>
#include <string.h>
#include <time.h>

pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t fake_changed = PTHREAD_COND_INITIALIZER;

void fake_hold(void) { pthread_mutex_lock(&fake_lock); }
void fake_release(void) { pthread_mutex_unlock(&fake_lock); }

uint64_t fake_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ULL + (uint64_t)now.tv_nsec;
}

/* -- settings ---------------------------------------------------------------------------------------------------- */

static struct { const char *name; long value; } settings[] = {
    {"devices", 1}, {"integrated", 0}, {"can_map", 1}, {"copy_us", 0}, {"memory", 64 << 20}, {"driver_version", 13000},
};
#define SETTINGS (sizeof settings / sizeof *settings)

long fake_setting(const char *name) {
    for (size_t i = 0; i < SETTINGS; i++)
        if (!strcmp(settings[i].name, name))
            return settings[i].value;
    return 0;
}

API int fakeConfigure(const char *name, long value) {
    for (size_t i = 0; i < SETTINGS; i++)
        if (!strcmp(settings[i].name, name)) {
            settings[i].value = value;
            return 0;
        }
    return 1;
}

/* -- calls: counted, and failed on purpose ------------------------------------------------------------------------ */

static struct { char name[48]; long count, skip; CUresult error; } calls[128];
static int call_count;
static pthread_mutex_t calls_lock = PTHREAD_MUTEX_INITIALIZER;

static int index_of(const char *name) {
    for (int i = 0; i < call_count; i++)
        if (!strcmp(calls[i].name, name))
            return i;
    snprintf(calls[call_count].name, sizeof calls[0].name, "%s", name);
    return call_count++;
}

CUresult fake_enter(const char *name) {
    pthread_mutex_lock(&calls_lock);
    int i = index_of(name);
    calls[i].count++;
    CUresult error = SUCCESS;
    if (calls[i].error && calls[i].skip-- <= 0) {
        error = calls[i].error;
        calls[i].error = SUCCESS;
    }
    pthread_mutex_unlock(&calls_lock);
    return error;
}

/* Makes one call return `error`, after the next `skip` ones. */
API void fakeFail(const char *name, long skip, CUresult error) {
    pthread_mutex_lock(&calls_lock);
    int i = index_of(name);
    calls[i].skip = skip;
    calls[i].error = error;
    pthread_mutex_unlock(&calls_lock);
}

API long fakeCalls(const char *name) {
    pthread_mutex_lock(&calls_lock);
    long count = calls[index_of(name)].count;
    pthread_mutex_unlock(&calls_lock);
    return count;
}

/* -- what happened ------------------------------------------------------------------------------------------------ */

#define TRACES 4096
typedef struct { char what[16]; uint64_t stream, size, begin, end; } Trace;
static Trace traces[TRACES];
static int trace_count;
static char misuse[256];

void fake_trace(const char *what, const void *stream, size_t size, uint64_t begin, uint64_t end) {
    if (trace_count == TRACES)
        return;
    Trace *trace = &traces[trace_count++];
    snprintf(trace->what, sizeof trace->what, "%s", what);
    trace->stream = (uint64_t)stream;
    trace->size = size;
    trace->begin = begin;
    trace->end = end;
}

API int fakeTraces(const Trace **first) {
    *first = traces;
    return trace_count;
}

void fake_misuse(const char *what) { snprintf(misuse, sizeof misuse, "%s", what); }

API const char *fakeMisuse(void) { return misuse; }

/* Live allocations, streams, events and graphs. */
API int fakeAlive(void) { return fake_blocks() + fake_objects; }

API void fakeForget(void) {
    pthread_mutex_lock(&calls_lock);
    memset(calls, 0, sizeof calls);
    call_count = trace_count = 0;
    misuse[0] = 0;
    pthread_mutex_unlock(&calls_lock);
}

/* -- work for a stream, as an engine submits it -------------------------------------------------------------------- */

/* to[i] = 2 * from[i] + 1 for `count` floats in device memory; takes `microseconds`. */
API CUresult fakeAffine(CUstream stream, CUdeviceptr to, CUdeviceptr from, size_t count, long microseconds) {
    Operation op = {.kind = AFFINE, .to = to, .from = from, .size = count, .to_device = 1, .from_device = 1};
    op.microseconds = microseconds;
    CUresult missing = fake_require_context();
    return missing ? missing : fake_enqueue(stream, op);
}

/* An operation that breaks the context `microseconds` after its turn. */
API CUresult fakeBreak(CUstream stream, CUresult error, long microseconds) {
    return fake_enqueue(stream, (Operation){.kind = BREAK, .error = error, .microseconds = microseconds});
}
