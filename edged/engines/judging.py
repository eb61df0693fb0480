"""Prepares the judgement of an engine on collected camera frames: chooses the frames, or returns a judgement without
frames if the frames are gone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, islice, zip_longest

import msgspec

from edged.ipc import job_messages as jobs
from edged.models.model import Model
from edged.store.judgement import Judgement
from edged.store.record import EngineRecord
from edged.verification.standard import is_judged_on_frames

_MOST_FRAMES = 200  # of a judgement
_MOST_SECONDS, _SHARE = 300.0, 0.5  # of a judgement: seconds, and the share of the time after which the child is killed


def chosen(cameras: Mapping[str, str], most: int = _MOST_FRAMES) -> list[str]:
    """Return at most `most` frames, ordered so that the first n of them, for any n, are spread over cameras and time.

    `cameras` maps each frame to its camera, in the order of time.
    """
    by_camera: dict[str, list[str]] = {}
    for frame, camera in cameras.items():
        by_camera.setdefault(camera, []).append(frame)
    rounds = zip_longest(*(_scattered(frames) for _, frames in sorted(by_camera.items())))
    return list(islice((frame for frame in chain.from_iterable(rounds) if frame is not None), most))


def _scattered(frames: Sequence[str]) -> list[str]:
    """Return frames reordered: the first one, then those at 1/2, 1/4, 3/4, ... of the sequence (bits of the index
    reversed)."""
    bits = max(1, (len(frames) - 1).bit_length())
    return [frames[n] for n in sorted(range(len(frames)), key=lambda n: int(f"{n:0{bits}b}"[::-1], 2))]


def job_of(verify: jobs.Verify, model: Model, limit_s: float) -> jobs.Judge | None:
    """Return the job that judges an engine on frames after the job `verify` accepted the engine. The job has no frames
    if their retention has ended, or while a newer collection is unfinished. Return None if the engine is not judged on
    frames: its precision is fp32, edged decodes nothing, or no collection is finished. The child is killed after
    `limit_s` seconds."""
    collected = model.collected
    if collected is None or not is_judged_on_frames(model, verify.order.recipe.precision):
        return None
    frames = {
        path: collected.judge[path] for path in chosen({p: collected.cameras.get(p, "") for p in collected.judge})
    }
    cameras = {path: collected.cameras.get(path, "") for path in frames}
    about = msgspec.structs.asdict(verify)
    seconds = min(_MOST_SECONDS, _SHARE * limit_s)
    return jobs.Judge(
        **about, model=model.name, collection=collected.id, frames=frames, cameras=cameras, seconds=seconds
    )


def without_frames(record: EngineRecord, collection: str) -> Judgement:
    """Return the judgement of an engine on a collection whose frames are gone. If the engine's last judgement is of
    this collection, return it. Otherwise return a new judgement with the outcome `no_frames`."""
    last = record.judgement
    return last if last is not None and last.collection == collection else Judgement(collection, "no_frames")
