"""Errors of files that cannot be stored."""

from __future__ import annotations

import errno
import os

import pytest

from edged.errors import DiskFailing, EdgedError, InvalidInput, OutOfSpace, Overloaded
from edged.files import not_stored


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EMFILE, Overloaded),
        (errno.ENFILE, Overloaded),
        (errno.ENOMEM, Overloaded),
        (errno.ENOSPC, OutOfSpace),
        (errno.EDQUOT, OutOfSpace),
        (errno.EROFS, OutOfSpace),
        (errno.EIO, DiskFailing),
        (errno.ENAMETOOLONG, InvalidInput),
    ],
)
def test_not_stored_has_the_class_of_the_errno(number: int, kind: type[EdgedError]) -> None:
    assert type(not_stored("the upload", OSError(number, os.strerror(number)))) is kind
