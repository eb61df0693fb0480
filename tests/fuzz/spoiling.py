"""Corrupt valid bytes. Pure: all randomness comes from the given source."""

from __future__ import annotations

from random import Random

_LONG_VARINT = b"\xff" * 9 + b"\x01"
# A field with number 1 of every wire type: the valid ones, the two deprecated ones, and the two that never existed.
_FIELDS = (b"\x08\x01", b"\x09" + bytes(8), b"\x0a\x02hi", b"\x0b", b"\x0c", b"\x0d" + bytes(4), b"\x0e", b"\x0f")


def spoiled(random: Random, data: bytes) -> bytes:
    """Return the bytes with one to three corruptions."""
    made = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        _spoil(random, made)
    return bytes(made)


def _spoil(random: Random, data: bytearray) -> None:
    at = random.randrange(len(data) + 1)
    what = random.randrange(9)
    if what == 0 and data:  # one bit
        data[at % len(data)] ^= 1 << random.randrange(8)
    elif what == 1 and data:  # one byte
        data[at % len(data)] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
    elif what == 2:  # cut off
        del data[at:]
    elif what == 3:  # a piece is missing
        del data[at : at + random.randrange(1, 9)]
    elif what == 4:  # a piece comes twice
        data[at:at] = data[at : at + random.randrange(1, 65)]
    elif what == 5:  # a length, a number or a tag that is too long
        data[at:at] = _LONG_VARINT[: random.randrange(1, 11)]
    elif what == 6:  # a field of another type
        data[at:at] = random.choice(_FIELDS)
    elif what == 7:  # noise
        data[at:at] = random.randbytes(random.randrange(1, 33))
    else:  # extra fields at the end
        data += random.choice(_FIELDS) * random.randrange(1, 4)
