"""Asks a session of a host one request itself, past the queue of its slot."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from edged.errors import EdgedError
from edged.ipc import messages as m
from edged.serving.link import HostLink
from edged.serving.parcel import order, pack
from edged.serving.work import InputTensor, TensorWork, Work


@contextlib.asynccontextmanager
async def asked(inputs: tuple[InputTensor, ...], link: HostLink, session: int) -> AsyncIterator[m.Answer]:
    """The answer, whose outputs lie in the host's arena until the block ends. Overloaded where they have no room there;
    whatever the session raises."""
    work = TensorWork(inputs, None)
    work.future.cancel()  # nobody waits for it
    refused: list[EdgedError] = []

    def refuse(_: Work, error: EdgedError) -> None:
        refused.append(error)

    parcels = pack([work], link.arena, refuse)
    try:
        if refused:
            raise refused[0]
        reply = await link.submit(order(parcels, session, None))
        assert isinstance(reply, m.Answer)  # tensors are answered so
        yield reply
    finally:
        for parcel in parcels:
            parcel.release()
