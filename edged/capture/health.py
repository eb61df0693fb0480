"""The state of a camera from when its frames came and what failed. Pure; times are monotonic seconds."""

from __future__ import annotations

from edged.ipc.capture_messages import State

_USUAL_GAP = 5.0  # seconds without a frame while the source is open, before the camera counts as not streaming


class CameraHealth:
    """`lost_seconds`: without a frame for so long the camera is lost; 0 is never."""

    def __init__(self, lost_seconds: float, now: float) -> None:
        self.frames = 0
        self.error = ""
        self._lost_seconds, self._began = lost_seconds, now
        self._last: float | None = None
        self._is_answered = self._has_failed = self._has_ended = False

    def frame(self, now: float) -> None:
        """A frame came."""
        self.frames += 1
        self._last = now

    def failed(self, error: str) -> None:
        """The camera cannot work as configured, or the daemon refuses it."""
        self.error, self._is_answered, self._has_failed = error, False, True

    def works(self) -> None:
        """A frame was answered."""
        self.error, self._is_answered, self._has_failed = "", True, False

    def ended(self) -> None:
        """A file was played to its end."""
        self._has_ended = True

    def state(self, now: float, problem: str) -> tuple[State, str]:
        """Return the state and why it is not streaming. `problem`: of the source; empty while it gives frames."""
        if self._has_ended:
            return State.ENDED, self.error
        if self._has_failed:
            return State.FAILED, self.error
        silent = now - (self._began if self._last is None else self._last)
        if self._lost_seconds and silent >= self._lost_seconds:
            return State.LOST, problem or f"no frame came for {silent:.0f} s"
        if not self._is_answered or problem or silent > _USUAL_GAP:
            return State.CONNECTING, problem
        return State.STREAMING, self.error
