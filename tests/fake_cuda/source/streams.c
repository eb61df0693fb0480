#define _GNU_SOURCE
#include "fake.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STREAMS 256
static CUstream streams[STREAMS];
static int stream_count;
int fake_objects;

void fake_append(Operation **first, Operation **last, const Operation *operation) {
    Operation *copy = malloc(sizeof *copy);
    *copy = *operation;
    copy->next = NULL;
    if (*last)
        (*last)->next = copy;
    else
        *first = copy;
    *last = copy;
}

static void rest(long microseconds) {
    if (microseconds <= 0)
        return;
    struct timespec pause = {microseconds / 1000000, microseconds % 1000000 * 1000};
    fake_release();
    nanosleep(&pause, NULL);
    fake_hold();
}

static void *bytes(uint64_t address, int device, size_t size) {
    return device ? (void *)fake_device_bytes(address, size) : fake_host_kind(address, size) < 0 ? NULL : (void *)address;
}

static void perform(CUstream stream, Operation *op) {
    static const char *const names[] = {"copy", "compute", "record", "wait", "break", "launch"};
    uint64_t begin = fake_now();
    rest(op->microseconds);
    if (op->kind == COPY || op->kind == AFFINE) {
        size_t size = op->kind == AFFINE ? op->size * sizeof(float) : op->size;
        void *to = bytes(op->to, op->to_device, size), *from = bytes(op->from, op->from_device, size);
        if (!to || !from) {
            fake_misuse("an operation on freed memory");
            fake_break(ILLEGAL_ADDRESS);
        } else if (op->kind == COPY) {
            memcpy(to, from, size);
        } else {
            for (size_t i = 0; i < op->size; i++)
                ((float *)to)[i] = 2.0f * ((float *)from)[i] + 1.0f;
        }
    } else if (op->kind == RECORD) {
        op->event->done = op->turn;
    } else if (op->kind == WAIT) {
        while (op->event->done < op->turn)
            pthread_cond_wait(&fake_changed, &fake_lock);
    } else if (op->kind == BREAK) {
        fake_break(op->error);
    } else {
        for (Operation *node = op->graph->first; node; node = node->next)
            perform(stream, node);
    }
    fake_trace(names[op->kind], stream, op->size, begin, fake_now());
    pthread_cond_broadcast(&fake_changed);
}

static void *work(void *argument) {
    CUstream stream = argument;
    fake_hold();
    while (!stream->ending || stream->first) {
        Operation *op = stream->first;
        if (!op) {
            pthread_cond_wait(&fake_changed, &fake_lock);
            continue;
        }
        stream->busy = 1;
        stream->first = op->next;
        if (!op->next)
            stream->last = NULL;
        perform(stream, op);
        free(op);
        stream->busy = 0;
        pthread_cond_broadcast(&fake_changed);
    }
    fake_release();
    return NULL;
}

int fake_is_stream(CUstream stream) {
    for (int i = 0; i < stream_count; i++)
        if (streams[i] == stream)
            return !stream->dead;
    return 0;
}

CUresult fake_enqueue(CUstream stream, Operation op) {
    fake_hold();
    CUresult result = fake_is_stream(stream) ? SUCCESS : INVALID_HANDLE; /* edged never uses the default stream */
    if (!result && stream->capturing) {
        if (op.kind == WAIT && op.event->captured_by != stream) {
            stream->broken = 1;
            result = CAPTURE_ISOLATION;
        } else if (op.kind == RECORD) {
            op.event->captured_by = stream;
        } else if (op.kind != WAIT) {
            fake_append(&stream->captured->first, &stream->captured->last, &op);
        }
    } else if (!result) {
        if (op.kind == RECORD) {
            op.turn = ++op.event->asked;
            op.event->captured_by = NULL;
        } else if (op.kind == WAIT) {
            op.turn = op.event->asked;
        }
        fake_append(&stream->first, &stream->last, &op);
        pthread_cond_broadcast(&fake_changed);
    }
    fake_release();
    return result;
}

CUresult fake_refuse_in_capture(void) {
    for (int i = 0; i < stream_count; i++)
        if (!streams[i]->dead && streams[i]->capturing && pthread_equal(streams[i]->capturer, pthread_self())) {
            streams[i]->broken = 1;
            return CAPTURE_UNSUPPORTED;
        }
    return SUCCESS;
}

API CUresult cuStreamCreate(CUstream *made, unsigned flags) {
    NEED_CONTEXT("cuStreamCreate");
    if (!(flags & 1))
        fake_misuse("a stream that waits for the default stream");
    fake_hold();
    CUstream stream = calloc(1, sizeof *stream);
    streams[stream_count++] = stream;
    fake_objects++;
    pthread_create(&stream->thread, NULL, work, stream);
    fake_release();
    *made = stream;
    return SUCCESS;
}

API CUresult cuStreamDestroy_v2(CUstream stream) {
    NEED_CONTEXT("cuStreamDestroy");
    fake_hold();
    int known = fake_is_stream(stream);
    if (known) {
        stream->ending = 1;
        stream->dead = 1;
        fake_objects--;
        pthread_cond_broadcast(&fake_changed);
    } else {
        fake_misuse("cuStreamDestroy of an invalid stream");
    }
    fake_release();
    if (known)
        pthread_join(stream->thread, NULL);
    return known ? SUCCESS : INVALID_HANDLE;
}

API CUresult cuStreamSynchronize(CUstream stream) {
    NEED_CONTEXT("cuStreamSynchronize");
    fake_hold();
    CUresult result = fake_is_stream(stream) ? SUCCESS : INVALID_HANDLE;
    if (!result && stream->capturing) {
        stream->broken = 1;
        result = CAPTURE_UNSUPPORTED;
    }
    while (!result && (stream->first || stream->busy))
        pthread_cond_wait(&fake_changed, &fake_lock);
    fake_release();
    return result ? result : fake_require_context();
}

API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    (void)flags;
    NEED_CONTEXT("cuStreamWaitEvent");
    return fake_enqueue(stream, (Operation){.kind = WAIT, .event = event});
}
