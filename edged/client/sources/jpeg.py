"""JPEG pictures in a camera's Motion JPEG video."""

from __future__ import annotations

_SOI, _EOI = b"\xff\xd8", b"\xff\xd9"
_DHT, _SOS = 0xC4, 0xDA
_HEADERS = 64  # most segments of a header; a camera writes about ten

# The Huffman tables that Motion JPEG may leave out: ITU T.81, tables K.3 to K.6, as one segment.
_STANDARD_TABLES = bytes.fromhex(
    "ffc401a20000010501010101010100000000000000000102030405060708090a0b100002010303020403050504040000017d010203000411"
    "05122131410613516107227114328191a1082342b1c11552d1f02433627282090a161718191a25262728292a3435363738393a4344454647"
    "48494a535455565758595a636465666768696a737475767778797a838485868788898a92939495969798999aa2a3a4a5a6a7a8a9aab2b3b4"
    "b5b6b7b8b9bac2c3c4c5c6c7c8c9cad2d3d4d5d6d7d8d9dae1e2e3e4e5e6e7e8e9eaf1f2f3f4f5f6f7f8f9fa010003010101010101010101"
    "0000000000000102030405060708090a0b110002010204040304070504040001027700010203110405213106124151076171132232810814"
    "4291a1b1c109233352f0156272d10a162434e125f11718191a262728292a35363738393a434445464748494a535455565758595a63646566"
    "6768696a737475767778797a82838485868788898a92939495969798999aa2a3a4a5a6a7a8a9aab2b3b4b5b6b7b8b9bac2c3c4c5c6c7c8c9"
    "cad2d3d4d5d6d7d8d9dae2e3e4e5e6e7e8e9eaf2f3f4f5f6f7f8f9fa"
)


def complete(data: bytes) -> bytes | None:
    """Return a Motion JPEG frame in a form that every decoder reads. The result has the Huffman tables that many
    cameras leave out, and no bytes after the end of the picture. Return None if the frame is cut off."""
    end = data.rfind(_EOI)
    if not data.startswith(_SOI) or end < 0:
        return None
    tables = _has_tables(data)
    if tables is None:
        return None
    whole = data if end + 2 == len(data) else data[: end + 2]
    return whole if tables else _SOI + _STANDARD_TABLES + whole[2:]


def length(data: bytes) -> int | None:
    """Return the length of the JPEG at the start of the data; None if it is not a JPEG or is cut off."""
    pixels = _find(data, _SOS) if data.startswith(_SOI) else None
    # In pixel data 0xFF is followed by 0 or a restart marker. The segments between the scans of a progressive picture
    # do not contain an end marker either.
    end = -1 if pixels is None else data.find(_EOI, pixels)
    return None if end < 0 else end + 2


def _has_tables(data: bytes) -> bool | None:
    """Whether Huffman tables come before the pixels; None if there are no pixels."""
    pixels = _find(data, _SOS)
    if pixels is None:
        return None
    tables = _find(data, _DHT)
    return tables is not None and tables < pixels


def _find(data: bytes, wanted: int) -> int | None:
    """Return the offset of the first marker `wanted` in the header; None if the header has no such marker."""
    at = 2
    for _ in range(_HEADERS):
        if at + 4 > len(data) or data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == wanted:
            return at
        if marker == _SOS:
            return None
        # A fill byte has no length; other markers have one.
        at += 1 if marker == 0xFF else 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None
