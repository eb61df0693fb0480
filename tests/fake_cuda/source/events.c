#define _GNU_SOURCE
#include "fake.h"
#include <stdlib.h>

API CUresult cuEventCreate(CUevent *made, unsigned flags) {
    (void)flags;
    NEED_CONTEXT("cuEventCreate");
    fake_hold();
    CUevent event = calloc(1, sizeof *event);
    fake_objects++;
    fake_release();
    *made = event;
    return SUCCESS;
}

API CUresult cuEventDestroy_v2(CUevent event) {
    NEED_CONTEXT("cuEventDestroy");
    fake_hold();
    CUresult result = !event || event->dead ? INVALID_HANDLE : SUCCESS;
    if (result)
        fake_misuse("an event that is destroyed twice");
    else
        event->dead = 1, fake_objects--;
    fake_release();
    return result;
}

API CUresult cuEventRecord(CUevent event, CUstream stream) {
    NEED_CONTEXT("cuEventRecord");
    return event->dead ? INVALID_HANDLE : fake_enqueue(stream, (Operation){.kind = RECORD, .event = event});
}

static CUresult state(CUevent event) {
    if (event->dead)
        return INVALID_HANDLE;
    if (event->captured_by)
        return CAPTURED_EVENT;
    return event->done < event->asked ? NOT_READY : SUCCESS;
}

API CUresult cuEventSynchronize(CUevent event) {
    NEED_CONTEXT("cuEventSynchronize");
    fake_hold();
    CUresult result;
    while ((result = state(event)) == NOT_READY)
        pthread_cond_wait(&fake_changed, &fake_lock);
    fake_release();
    return result ? result : fake_require_context();
}
