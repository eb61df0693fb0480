"""Samples and WAV files in the client."""

from __future__ import annotations

import itertools
import struct
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edged.client.frames import FrameMaker, FrameOptions, Samples, read_picture, single
from edged.client.sources import open_source
from edged.client.sources.wav import Wav, read_wav
from edged.errors import InvalidInput, NotFound
from edged.proto import cameras_pb2 as pb

RATE = 1000


def wav(path: Path, count: int = 250, channels: int = 1, width: int = 2, rate: int = RATE) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(np.arange(count * channels * width // 2, dtype="<i2").tobytes())
    return path


# -- messages --------------------------------------------------------------------------------------------------------


def test_samples_of_integers_and_floats_keep_their_format() -> None:
    ours = pb.Frame.FromString(single("vad", Samples(np.array([1, -1], np.int16), 8000), "hall", FrameOptions()))
    assert (ours.camera, ours.WhichOneof("image"), ours.samples.rate) == ("hall", "samples", 8000)
    assert (ours.samples.format, ours.samples.data) == (pb.Samples.S16, struct.pack("<2h", 1, -1))
    floats = pb.Frame.FromString(single("vad", Samples(np.array([0.5]), 8000), "", FrameOptions()))
    assert (floats.samples.format, floats.samples.data) == (pb.Samples.F32, struct.pack("<f", 0.5))


@pytest.mark.parametrize(
    ("data", "rate"),
    [(np.zeros((2, 2), np.int16), 8000), (np.zeros(2, np.int32), 8000), (np.zeros(2, np.int16), 0)],
)
def test_samples_of_another_shape_or_type_are_refused(data: Any, rate: int) -> None:
    with pytest.raises(InvalidInput):
        single("vad", Samples(data, rate), "", FrameOptions())


def test_samples_are_no_picture() -> None:
    with pytest.raises(InvalidInput, match="not a picture"):
        read_picture(Samples(np.zeros(2, np.int16), 8000))


def test_frames_of_samples_are_numbered_and_keep_their_position(tmp_path: Path) -> None:
    maker = FrameMaker("vad", "hall", FrameOptions())
    with Wav(str(wav(tmp_path / "a.wav")), pace=False, chunk_s=0.1) as source:
        frames = [pb.Frame.FromString(maker.make(each).data) for each in source]
    assert [frame.sequence for frame in frames] == [1, 2, 3]
    assert [len(frame.samples.data) for frame in frames] == [200, 200, 100]


# -- WAV files -------------------------------------------------------------------------------------------------------


def test_read_wav_returns_all_samples(tmp_path: Path) -> None:
    found = read_wav(wav(tmp_path / "a.wav"))
    assert found.rate == RATE
    assert np.array_equal(found.data, np.arange(250))


@pytest.mark.parametrize("about", [{"channels": 2}, {"width": 1}, {"width": 4}, {"rate": 400_000}])
def test_read_wav_with_other_samples_is_refused_with_a_remedy(tmp_path: Path, about: dict[str, int]) -> None:
    with pytest.raises(InvalidInput, match="ffmpeg"):
        read_wav(wav(tmp_path / "a.wav", **about))


@pytest.mark.parametrize("data", [b"", b"RIFF", b"RIFF\0\0\0\0WAVEfmt ", b"\xff\xd8\xff\xe0 a JPEG"])
def test_read_wav_of_damaged_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.wav").write_bytes(data)
    with pytest.raises(InvalidInput):
        read_wav(tmp_path / "a.wav")


def test_read_wav_cut_in_a_sample_returns_the_whole_ones(tmp_path: Path) -> None:
    path = wav(tmp_path / "a.wav")
    path.write_bytes(path.read_bytes()[:-3])
    assert len(read_wav(path).data) == 248


def test_missing_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        open_source(tmp_path / "no.wav")
    with pytest.raises(InvalidInput, match="no samples"):
        open_source(wav(tmp_path / "a.wav", count=0))
    with pytest.raises(InvalidInput):
        read_wav(tmp_path)


def test_wav_source_gives_chunks_with_their_position(tmp_path: Path) -> None:
    with open_source(wav(tmp_path / "a.WAV", rate=10_000, count=2400), pace=False) as source:
        assert not source.paced
        frames = list(source)
    assert [len(frame.image.data) for frame in frames] == [960, 960, 480]  # type: ignore[union-attr]
    assert [frame.position_s for frame in frames] == [0.0, 0.096, 0.192]
    assert frames[0].captured_unix_ns == 0


def test_wav_source_in_real_time_stamps_its_chunks(tmp_path: Path) -> None:
    with open_source(wav(tmp_path / "a.wav", count=120), pace=True) as source:
        assert source.paced
        first, second = source
    assert 0 < first.captured_mono_ns <= second.captured_mono_ns


def test_wav_source_repeats_with_loop_and_ends_if_interrupted(tmp_path: Path) -> None:
    with open_source(wav(tmp_path / "a.wav", count=100), pace=False, loop=True) as source:
        assert len(list(itertools.islice(source, 7))) == 7
        source.interrupt()
        assert list(source) == []


def test_wav_source_with_too_short_chunks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="chunk_s"):
        Wav(str(wav(tmp_path / "a.wav")), chunk_s=0.0001)
