"""Reads WAV files that have one channel of PCM samples of 16 bits."""

from __future__ import annotations

import os
import threading
import time
import wave

import numpy as np

from edged.client.frames import Captured, Samples
from edged.client.sources.source import Source
from edged.errors import InvalidInput, NotFound

WAV_SUFFIX = ".wav"
CHUNK_S = 0.096  # three windows of Silero VAD
_MOST_RATE = 192_000


def read_wav(path: str | os.PathLike[str]) -> Samples:
    """Return all samples of a file. Raises NotFound if it does not exist, InvalidInput if it is not a mono WAV file of
    16 bits."""
    with _open(path) as file:
        return _read(file, file.getnframes())


class Wav(Source):
    """Returns the samples of a file in chunks of `chunk_s` seconds; the last chunk can be shorter. With `pace` the
    chunks come in real time, and the capture time of a chunk is the time of its end. Without `pace` chunks have no
    capture time. With `loop` the file is repeated."""

    def __init__(self, name: str, *, pace: bool = True, loop: bool = False, chunk_s: float = CHUNK_S) -> None:
        """Open the file. Raises the errors of `read_wav`, and InvalidInput if the file or a chunk has no samples."""
        super().__init__(name)
        self.paced, self._loop = pace, loop
        self._file = _open(name)
        self.rate = self._file.getframerate()
        self._chunk = round(chunk_s * self.rate)
        if self._chunk < 1 or not self._file.getnframes():
            self._file.close()
            raise InvalidInput(
                f"the sound {name!r} has no samples" if self._chunk else f"chunk_s={chunk_s:g} is less than a sample"
            )
        self._given = 0
        self._start: float | None = None
        self._stopped = threading.Event()

    def __next__(self) -> Captured:
        if self._stopped.is_set():
            raise StopIteration
        found = _read(self._file, self._chunk)
        if not len(found.data) and self._loop:
            self._file.rewind()
            found = _read(self._file, self._chunk)
        if not len(found.data):
            raise StopIteration
        position = self._given / self.rate
        self._given += len(found.data)
        if not self.paced:
            return Captured(found, position_s=position)
        now = time.monotonic()
        self._start = now if self._start is None else self._start
        if self._stopped.wait(max(0.0, self._start + self._given / self.rate - now)):
            raise StopIteration
        return Captured(found, time.time_ns(), time.monotonic_ns(), position)

    def interrupt(self) -> None:
        self._stopped.set()

    def close(self) -> None:
        self.interrupt()
        self._file.close()


def _open(path: str | os.PathLike[str]) -> wave.Wave_read:
    name = os.fspath(path)
    try:
        file = wave.open(name, "rb")  # noqa: SIM115 - the caller closes it
    except FileNotFoundError:
        raise NotFound(f"the sound {name!r} does not exist") from None
    except OSError as error:
        raise InvalidInput(f"the sound {name!r} cannot be read: {error.strerror}") from None
    except (wave.Error, EOFError) as error:
        raise InvalidInput(f"{name!r} is not a WAV file of PCM samples: {error or 'it ends early'}; {_HOW}") from None
    channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
    if channels != 1 or width != 2 or not 0 < rate <= _MOST_RATE:
        file.close()
        raise InvalidInput(
            f"the sound {name!r} has {channels} channels of {8 * width} bits at {rate} Hz"
            f" instead of 1 channel of 16 bits at up to {_MOST_RATE} Hz; {_HOW}"
        )
    return file


_HOW = "convert it: ffmpeg -i IN -ac 1 -ar 16000 -c:a pcm_s16le OUT.wav"


def _read(file: wave.Wave_read, count: int) -> Samples:
    data = file.readframes(count)
    return Samples(np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.int16, copy=False), file.getframerate())
