"""Decoding encoded and raw pictures, with OpenCV's own conversions as the reference."""

from __future__ import annotations

import struct

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edged.errors import InvalidImage, TooLarge
from edged.vision.image import Image, PixelFormat, decode, from_raw
from edged.vision.picture_header import read_header

RNG = np.random.default_rng(7)


def picture(width: int, height: int) -> Image:
    coarse = RNG.integers(0, 256, (max(2, height // 8), max(2, width // 8), 3), dtype=np.uint8)
    return cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC).astype(np.uint8)


def encode(extension: str, image: Image) -> bytes:
    return cv2.imencode(extension, image)[1].tobytes()


def size(encoded: bytes | memoryview) -> tuple[int, int] | None:
    header = read_header(encoded)
    return (header.width, header.height) if header else None


def with_exif_orientation(jpeg: bytes, orientation: int) -> bytes:
    tiff = b"II*\0" + struct.pack("<IHHHII", 8, 1, 0x0112, 3, 1, orientation) + b"\0\0\0\0"
    body = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


@pytest.mark.parametrize("extension", [".jpg", ".png", ".webp", ".bmp"])
def test_decode_has_the_size_of_the_header(extension):
    encoded = encode(extension, picture(61, 37))
    assert size(encoded) == (61, 37)
    assert size(memoryview(encoded)) == (61, 37)
    assert decode(encoded).shape == (37, 61, 3)
    if extension in (".png", ".bmp"):
        assert np.array_equal(decode(memoryview(encoded)), cv2.imdecode(np.frombuffer(encoded, np.uint8), 1))


def test_decode_progressive_jpeg_and_fill_bytes_are_accepted():
    encoded = cv2.imencode(".jpg", picture(40, 24), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes()
    assert size(encoded[:2] + b"\xff\xff" + encoded[2:]) == (40, 24)
    assert decode(encoded + bytes(4096)).shape == (24, 40, 3)


def test_decode_gray_alpha_and_16_bits_become_bgr():
    gray = picture(20, 10)[:, :, 0]
    assert np.array_equal(decode(encode(".png", gray)), cv2.cvtColor(gray, cv2.COLOR_GRAY2BGR))
    alpha = np.dstack([picture(20, 10), np.full((10, 20), 9, np.uint8)])
    assert np.array_equal(decode(encode(".png", alpha)), alpha[:, :, :3])
    deep = picture(20, 10).astype(np.uint16) << 8
    assert decode(encode(".png", deep)).dtype == np.uint8


def test_decode_ignores_exif_orientation():
    jpeg = encode(".jpg", picture(64, 32))
    turned = with_exif_orientation(jpeg, 6)
    assert cv2.imdecode(np.frombuffer(turned, np.uint8), cv2.IMREAD_COLOR).shape == (64, 32, 3)
    assert np.array_equal(decode(turned), decode(jpeg))


@pytest.mark.parametrize("extension", [".jpg", ".png", ".webp", ".bmp"])
@pytest.mark.parametrize("part", [0.03, 0.3, 0.6, 0.95])
def test_decode_truncated_is_refused(extension, part):
    encoded = encode(extension, picture(320, 240))
    with pytest.raises(InvalidImage) as error:
        decode(encoded[: int(len(encoded) * part)])
    assert "\n" not in error.value.message


def test_decode_jpeg_cut_in_the_scan_is_refused_despite_a_thumbnails_end_marker():
    jpeg = encode(".jpg", picture(320, 240))
    thumbnail = b"\xff\xe1\x00\x06\xff\xd9\xff\xd9"
    with pytest.raises(InvalidImage, match="truncated"):
        decode((jpeg[:2] + thumbnail + jpeg[2:])[:-200])


@pytest.mark.parametrize("junk", [b"", b"x", b"\xff\xd8\xff", b"GIF8", b"hello world" * 40, bytes(5000)])
def test_decode_other_bytes_are_refused(junk):
    assert read_header(junk) is None
    with pytest.raises(InvalidImage, match="empty" if not junk else "not a picture"):
        decode(junk)


def test_decode_video_names_edged_stream():
    with pytest.raises(InvalidImage, match="edged stream"):
        decode(b"\0\0\0\x1cftypisom" + bytes(100))


def test_decode_huge_size_is_refused_before_decoding(monkeypatch):
    monkeypatch.setattr(cv2, "imdecode", lambda *_: pytest.fail("decoded"))
    jpeg = bytearray(encode(".jpg", picture(32, 32)))
    at = jpeg.index(b"\xff\xc0")
    jpeg[at + 5 : at + 9] = struct.pack(">HH", 60000, 60000)
    with pytest.raises(TooLarge, match="60000x60000"):
        decode(bytes(jpeg))
    png = bytearray(encode(".png", picture(32, 32)))
    png[16:24] = struct.pack(">II", 2**31 - 1, 2**31 - 1)
    with pytest.raises(TooLarge):
        decode(bytes(png))
    png[16:24] = struct.pack(">II", 0, 5)
    with pytest.raises(InvalidImage, match="0x5"):
        decode(bytes(png))


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=80),
    st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"BM", b"RIFF0000WEBP"]),
)
def test_read_header_never_raises(tail, magic):
    read_header(magic + tail)


def test_read_header_hostile_jpeg_is_refused_quickly():
    assert read_header(b"\xff\xd8\xff" + b"\xff" * 5_000_000) is None
    assert read_header(b"\xff\xd8" + b"\xff\xd0" * 2_000_000) is None


# --- raw


def padded(plane: np.ndarray, stride: int) -> bytes:
    """Return the rows of `plane` (bytes), padded to `stride` with arbitrary bytes."""
    rows = np.full((plane.shape[0], stride), 0xA5, np.uint8)
    rows[:, : plane.shape[1]] = plane
    return rows.tobytes()


def raw(pixel_format: PixelFormat, image: Image, extra: int) -> tuple[bytes, int, Image]:
    """Return (bytes, stride, expected BGR) of a picture with `extra` bytes of padding per row."""
    height, width = image.shape[:2]
    if pixel_format is PixelFormat.BGR:
        return padded(image.reshape(height, -1), width * 3 + extra), width * 3 + extra, image
    if pixel_format is PixelFormat.RGB:
        rgb = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
        return padded(rgb.reshape(height, -1), width * 3 + extra), width * 3 + extra, image
    if pixel_format is PixelFormat.GRAY:
        gray = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        return padded(gray, width + extra), width + extra, cv2.cvtColor(gray, cv2.COLOR_GRAY2BGR)
    i420 = cv2.cvtColor(image, cv2.COLOR_BGR2YUV_I420)
    expected = cv2.cvtColor(i420, cv2.COLOR_YUV2BGR_I420)
    luma = i420[:height]
    u, v = i420[height:].reshape(2, height // 2, width // 2)
    if pixel_format is PixelFormat.I420:
        chroma = padded(u, (width + extra) // 2) + padded(v, (width + extra) // 2)
    else:
        chroma = padded(np.stack([u, v], axis=2).reshape(height // 2, width), width + extra)
    return padded(luma, width + extra) + chroma, width + extra, expected


@pytest.mark.parametrize("pixel_format", list(PixelFormat))
@pytest.mark.parametrize("extra", [0, 2, 34])
@pytest.mark.parametrize("size", [(2, 2), (64, 48), (322, 182), (66, 50)])
def test_from_raw_every_format_and_stride_is_converted(pixel_format, extra, size):
    data, stride, expected = raw(pixel_format, picture(*size), extra)
    for given_stride in {stride, 0 if extra == 0 else stride}:
        assert np.array_equal(from_raw(data, pixel_format, *size, given_stride), expected)
    assert np.array_equal(from_raw(memoryview(data), pixel_format, *size, stride), expected)


@pytest.mark.parametrize("pixel_format", list(PixelFormat))
def test_from_raw_last_row_may_lack_its_padding_only(pixel_format):
    data, stride, expected = raw(pixel_format, picture(64, 48), 16)
    spare = 8 if pixel_format is PixelFormat.I420 else 16
    assert np.array_equal(from_raw(data[:-spare], pixel_format, 64, 48, stride), expected)
    for wrong in (data[: -spare - 1], data + b"\0", b""):
        with pytest.raises(InvalidImage, match=f"needs {len(data)} bytes, got {len(wrong)}"):
            from_raw(wrong, pixel_format, 64, 48, stride)


def test_from_raw_bgr_is_a_view():
    for stride in (0, 40):
        data = bytearray((stride or 30) * 8)
        image = from_raw(memoryview(data), PixelFormat.BGR, 10, 8, stride)
        data[0] = 77
        assert image[0, 0, 0] == 77


@pytest.mark.parametrize("size", [(0, 4), (4, 0), (-2, 4), (2**31, 2**31), (2**63, 2), (100_000, 1000)])
@pytest.mark.parametrize("pixel_format", list(PixelFormat))
def test_from_raw_impossible_size_is_refused(pixel_format, size):
    with pytest.raises((InvalidImage, TooLarge), match=r"invalid|over the limit"):
        from_raw(b"1234", pixel_format, *size)


@pytest.mark.parametrize(
    ("pixel_format", "size", "stride", "words"),
    [
        (PixelFormat.NV12, (3, 4), 0, "even"),
        (PixelFormat.NV12, (4, 3), 0, "even"),
        (PixelFormat.I420, (3, 4), 0, "even"),
        (PixelFormat.I420, (4, 3), 0, "even"),
        (PixelFormat.BGR, (10, 4), 29, "at least 30 bytes, got 29"),
        (PixelFormat.GRAY, (10, 4), -10, "stride"),
        (PixelFormat.I420, (10, 4), 11, "even stride"),
        (PixelFormat.GRAY, (10, 4), 2**62, "needs"),
    ],
)
def test_from_raw_odd_size_or_wrong_stride_is_refused(pixel_format, size, stride, words):
    with pytest.raises(InvalidImage, match=words):
        from_raw(bytes(1000), pixel_format, *size, stride)
