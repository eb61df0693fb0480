"""Computes a camera's state from the times of its frames and from failures. Pure; times are monotonic seconds."""

from __future__ import annotations

from edged.ipc.capture_messages import State

_USUAL_GAP = 5.0  # seconds without a frame, after which an open camera no longer counts as streaming


class CameraHealth:
    """The state of one camera. It is lost after `lost_seconds` without a frame; 0 means never."""

    def __init__(self, lost_seconds: float, now: float) -> None:
        self.frames = 0
        self.error = ""
        self._lost_seconds, self._began = lost_seconds, now
        self._last: float | None = None
        self._is_answered = self._has_failed = self._has_ended = False

    def frame(self, now: float) -> None:
        """Record that a frame arrived."""
        self.frames += 1
        self._last = now

    def failed(self, error: str) -> None:
        """Record that the camera cannot work as configured, or that the daemon refuses it."""
        self.error, self._is_answered, self._has_failed = error, False, True

    def works(self) -> None:
        """Record that a frame was answered."""
        self.error, self._is_answered, self._has_failed = "", True, False

    def ended(self) -> None:
        """Record that a file was played to its end."""
        self._has_ended = True

    def state(self, now: float, problem: str) -> tuple[State, str]:
        """Return the state and the current error. `problem` is the source's problem, empty while it sends frames."""
        if self._has_ended:
            return State.ENDED, self.error
        if self._has_failed:
            return State.FAILED, self.error
        silent = now - (self._began if self._last is None else self._last)
        if self._lost_seconds and silent >= self._lost_seconds:
            return State.LOST, problem or f"no frame arrived for {silent:.0f} s"
        if not self._is_answered or problem or silent > _USUAL_GAP:
            return State.CONNECTING, problem
        return State.STREAMING, self.error
