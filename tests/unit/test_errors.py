"""Error codes: each error class has one, each code is documented, and each reaches clients."""

from __future__ import annotations

import re
from pathlib import Path

import grpc
import pytest

from edged import errors
from edged.api.grpc.status import describe, error_code, trailing
from edged.api.http2.headers import Metadata, Status
from edged.client.status import to_edged
from edged.errors import EdgedError, ErrorCode
from edged.proto import status_pb2

CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EdgedError)]
DOCUMENTED = re.findall(r"^\| `([A-Z_]+)` \|", Path(__file__, "../../../docs/errors.md").resolve().read_text(), re.M)

TESTS = Path(__file__).parents[1]
MOST_SENTENCES = 220  # reduce it when you rewrite a test


def arrived_as(status: Status, message: str, target: str, metadata: Metadata = ()) -> EdgedError:
    return to_edged(grpc.StatusCode[status.name], message, target, metadata)


def test_error_codes_each_have_a_class_and_a_line_in_the_documentation() -> None:
    assert sorted(DOCUMENTED) == sorted(code.value for code in ErrorCode)
    assert {kind.code for kind in CLASSES} == set(ErrorCode)
    assert all(code.name == code.value for code in ErrorCode)


@pytest.mark.parametrize("kind", CLASSES)
def test_error_sent_over_grpc_arrives_with_its_code_and_a_class_of_its_status(
    kind: type[EdgedError],
) -> None:
    sent = kind("it failed")
    status, message = describe(sent)
    assert status.value == grpc.StatusCode[status.name].value[0]
    arrived = arrived_as(status, message, "unix:/x", trailing(sent, status, message))
    assert (arrived.code, arrived.message) == (sent.code, "it failed")
    assert isinstance(arrived, type(arrived_as(status, message, "unix:/x"))) or type(arrived) is kind


@pytest.mark.parametrize("kind", [errors.ModelNotFound, errors.InvalidTensor, errors.TooLarge, errors.OutOfSpace])
def test_to_edged_known_code_raises_the_exact_class(kind: type[EdgedError]) -> None:
    status, message = describe(kind("no"))
    assert type(arrived_as(status, message, "unix:/x", trailing(kind("no"), status, message))) is kind


def test_trailing_is_a_google_rpc_status_with_error_info() -> None:
    error = errors.ModelNotFound("no such model")
    ((name, value),) = trailing(error, Status.NOT_FOUND, "no such model")
    assert isinstance(value, bytes)
    status = status_pb2.Status.FromString(value)
    info = status_pb2.ErrorInfo.FromString(status.details[0].value)
    assert (name, status.code, status.message) == ("grpc-status-details-bin", 5, "no such model")
    assert status.details[0].type_url == "type.googleapis.com/google.rpc.ErrorInfo"
    assert (info.reason, info.domain) == ("MODEL_NOT_FOUND", "edged")


def test_trailing_client_limited_has_a_retry_time() -> None:
    metadata = dict(trailing(errors.ClientLimited("slow down", 1.5), Status.RESOURCE_EXHAUSTED, "slow down"))
    assert metadata["grpc-retry-pushback-ms"] == "1500"


def test_trailing_long_message_is_sent_once() -> None:
    ((_, value),) = trailing(EdgedError("x"), Status.INTERNAL, "x" * 5000)
    assert len(value) < 200


def test_error_code_of_an_unexpected_exception_is_internal() -> None:
    assert error_code(ValueError("oops")) is ErrorCode.INTERNAL


@pytest.mark.parametrize(
    "value",
    [
        b"\xff\xff",
        "text",
        b"",
        status_pb2.Status(details=[status_pb2.Detail(type_url="other", value=b"\xff")]).SerializeToString(),
        status_pb2.Status(
            details=[
                status_pb2.Detail(
                    type_url="type.googleapis.com/google.rpc.ErrorInfo",
                    value=status_pb2.ErrorInfo(reason="OF_THE_FUTURE", domain="edged").SerializeToString(),
                )
            ]
        ).SerializeToString(),
    ],
)
def test_to_edged_unknown_details_give_the_class_of_the_status(value: str | bytes) -> None:
    error = to_edged(grpc.StatusCode.NOT_FOUND, "gone", "unix:/x", [("grpc-status-details-bin", value)])
    assert (type(error), error.code) == (errors.NotFound, ErrorCode.NOT_FOUND)


def test_few_tests_assert_sentences_of_errors() -> None:
    """Texts of errors may change. Tests should assert class, code and fields, and match only names such as `'x'`."""
    asserted = re.compile(r"""raises\([\w.]+, match=r?f?"([^"]*)\"""")
    patterns = [text for file in TESTS.rglob("*.py") for text in asserted.findall(file.read_text())]
    sentences = [text for text in patterns if len(re.findall(r"(?<![\w'.{])[a-z]{2,}(?![\w'.}])", text)) > 2]
    assert len(sentences) <= MOST_SENTENCES, "assert the error's class and code, and names in its text"
