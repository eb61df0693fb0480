"""The OpenAPI document of HTTP is valid, and names every path."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import pytest
from openapi_spec_validator import validate

from edged.api.http import openapi, routes
from edged.api.http.exchange import HttpResponse
from edged.api.http.routes import Route


@pytest.fixture(scope="module")
def document() -> Any:
    response = routes.find("GET", "/openapi.json")
    assert isinstance(response, HttpResponse)
    assert response.status is HTTPStatus.OK
    return json.loads(b"".join(response.parts))


def test_document_is_valid_openapi(document: Any) -> None:
    validate(document)


def test_each_operation_is_a_route_and_each_route_has_one(document: Any) -> None:
    found = set()
    for path, operations in document["paths"].items():
        for method in operations:
            route = routes.find(method.upper(), path.replace("{", "").replace("}", ""))
            assert isinstance(route, Route), (method, path)
            found.add((route.method, method.upper()))
    assert found == {(rpc, method) for rpc, methods, _ in routes.TABLE for method in methods}


def test_a_path_has_one_entry_for_each_combination_of_optional_parts() -> None:
    table = (("ModelStatistics", ("GET",), "v2/models[/{model}[/versions/{version}]]/stats"),)
    assert list(openapi.document(table)["paths"]) == [
        "/v2/models/stats",
        "/v2/models/{model}/stats",
        "/v2/models/{model}/versions/{version}/stats",
    ]


def test_operations_tell_the_role_that_they_need(document: Any) -> None:
    told = {path: next(iter(each.values())).get("description") for path, each in document["paths"].items()}
    assert told["/v2/health/live"] is None
    assert told["/v2/models/{model}/infer"] == "Needs the role infer."
    assert told["/v2/repository/models/{model}/load"] == "Needs the role operate."
    assert told["/v2/models/{model}"] == "Needs the role infer or read."


def test_only_get_of_the_document_is_allowed() -> None:
    response = routes.find("POST", "/openapi.json")
    assert isinstance(response, HttpResponse)
    assert response.status is HTTPStatus.METHOD_NOT_ALLOWED
