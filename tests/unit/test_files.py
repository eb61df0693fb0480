"""Errors of files that cannot be stored or read."""

from __future__ import annotations

import errno
import os

import pytest

from edged.errors import DiskFailing, EdgedError, InvalidInput, OutOfSpace, Overloaded
from edged.files import not_stored, reading


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
def test_not_stored_and_reading_have_the_class_of_the_errno(number: int, kind: type[EdgedError]) -> None:
    error = OSError(number, os.strerror(number))
    assert type(not_stored("the upload", error)) is kind
    with pytest.raises(kind, match="the upload") as raised, reading("the upload"):
        raise error
    assert type(raised.value) is kind


def test_reading_a_folder_of_the_box_without_permission_is_not_the_clients_fault() -> None:
    with pytest.raises(DiskFailing), reading("the models folder"):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
