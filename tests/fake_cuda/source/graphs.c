#define _GNU_SOURCE
#include "fake.h"
#include <stdlib.h>

API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    (void)mode;
    NEED_CONTEXT("cuStreamBeginCapture");
    fake_hold();
    CUresult result = fake_is_stream(stream) && !stream->capturing ? SUCCESS : INVALID_HANDLE;
    if (!result) {
        stream->capturing = 1;
        stream->broken = 0;
        stream->capturer = pthread_self();
        stream->captured = calloc(1, sizeof *stream->captured);
        fake_objects++;
    }
    fake_release();
    return result;
}

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *made) {
    NEED_CONTEXT("cuStreamEndCapture");
    fake_hold();
    CUresult result = fake_is_stream(stream) && stream->capturing ? SUCCESS : INVALID_HANDLE;
    *made = NULL;
    if (!result) {
        stream->capturing = 0;
        if (stream->broken) {
            result = CAPTURE_INVALIDATED;
            fake_objects--;
        } else {
            *made = stream->captured;
        }
    }
    fake_release();
    return result;
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *made, CUgraph graph, unsigned long long flags) {
    (void)flags;
    NEED_CONTEXT("cuGraphInstantiate");
    fake_hold();
    CUgraphExec copy = calloc(1, sizeof *copy);
    copy->executable = 1;
    for (Operation *node = graph->first; node; node = node->next)
        fake_append(&copy->first, &copy->last, node);
    fake_objects++;
    fake_release();
    *made = copy;
    return SUCCESS;
}

API CUresult cuGraphLaunch(CUgraphExec graph, CUstream stream) {
    NEED_CONTEXT("cuGraphLaunch");
    if (!graph || !graph->executable || graph->dead)
        return INVALID_VALUE;
    return fake_enqueue(stream, (Operation){.kind = LAUNCH, .graph = graph});
}

static CUresult drop(CUgraph graph) {
    fake_hold();
    CUresult result = !graph || graph->dead ? INVALID_VALUE : SUCCESS;
    if (result)
        fake_misuse("a graph that is destroyed twice");
    else
        graph->dead = 1, fake_objects--;
    fake_release();
    return result;
}

API CUresult cuGraphDestroy(CUgraph graph) {
    ENTER("cuGraphDestroy");
    return drop(graph);
}

API CUresult cuGraphExecDestroy(CUgraphExec graph) {
    ENTER("cuGraphExecDestroy");
    return drop(graph);
}
