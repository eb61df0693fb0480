"""Reports on collections of camera frames, running and finished."""

from __future__ import annotations

from edged.api_types import CollectedCamera, CollectedFrame, FrameCollection
from edged.models.collected import Collection, Frame
from edged.serving.collecting import Gathering
from edged.serving.frame_collections import FrameCollections


def collections(kept: FrameCollections, *, each: bool = False) -> list[FrameCollection]:
    """Report all collections sorted by model. Collections with a damaged index are reported too. With `each`, report
    all frames too."""
    found = [_gathering(kept, gathering, each) for gathering in kept.gatherings.values()]
    return sorted(found + [_damaged(kept, model) for model in kept.damaged], key=lambda info: info.model)


def collection(kept: FrameCollections, model: str, *, each: bool = False) -> FrameCollection | None:
    """Report the collection of a model; None if the model has no collection."""
    if model in kept.damaged:
        return _damaged(kept, model)
    gathering = kept.gatherings.get(model)
    return None if gathering is None else _gathering(kept, gathering, each)


def _gathering(kept: FrameCollections, gathering: Gathering, each: bool) -> FrameCollection:
    found = gathering.collection
    running = "ending" if gathering.is_ending else "collecting"
    problem = gathering.problem
    if not (problem or found.finished or found.frames or gathering.waiting):
        problem = "the cameras have sent no frames yet"
    return FrameCollection(
        model=gathering.model,
        state="finished" if found.finished else running,
        problem=problem,
        asked=found.cameras,
        wanted=found.wanted,
        kept=len(found.frames),
        calibrate=len(found.frames_for("calibrate")),
        judge=len(found.frames_for("judge")),
        waiting=gathering.waiting,
        duplicates=found.duplicates,
        unusable=found.unusable,
        bytes=found.bytes,
        spent_s=kept.spent_s(gathering),
        over_s=found.over_s,
        started_unix_s=found.started_unix_s,
        id=found.id if found.finished else "",
        folder=str(kept.folder(gathering.model)),
        cameras=_cameras(found),
        frames=tuple(_frame(found, frame) for frame in found.frames) if each else (),
    )


def _damaged(kept: FrameCollections, model: str) -> FrameCollection:
    problem = f"{kept.damaged[model]}; restore the folder, or run: edged samples remove {model}"
    return FrameCollection(model, "damaged", problem, folder=str(kept.folder(model)))


def _cameras(found: Collection) -> tuple[CollectedCamera, ...]:
    by_camera: dict[str, list[Frame]] = {}
    for frame in found.frames:
        by_camera.setdefault(frame.camera, []).append(frame)
    return tuple(_camera(found, camera, by_camera[camera]) for camera in sorted(by_camera))


def _camera(found: Collection, camera: str, frames: list[Frame]) -> CollectedCamera:
    uses, times = [found.use(frame) for frame in frames], [frame.taken_unix_s for frame in frames]
    size = sum(frame.size for frame in frames)
    return CollectedCamera(camera, uses.count("calibrate"), uses.count("judge"), size, min(times), max(times))


def _frame(found: Collection, frame: Frame) -> CollectedFrame:
    return CollectedFrame(frame.name, frame.camera, found.use(frame), frame.offset_s, frame.taken_unix_s, frame.size)
