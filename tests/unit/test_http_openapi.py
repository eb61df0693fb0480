"""The OpenAPI document of the HTTP API is valid and complete."""

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


def test_document_operations_and_routes_are_the_same(document: Any) -> None:
    found = set()
    for path, operations in document["paths"].items():
        for method in operations:
            route = routes.find(method.upper(), path.replace("{", "").replace("}", ""))
            assert isinstance(route, Route), (method, path)
            found.add((route.method, method.upper()))
    assert found == {(rpc, method) for rpc, methods, _ in routes.TABLE for method in methods}


def test_document_has_a_path_for_each_combination_of_optional_parts() -> None:
    table = (("ModelStatistics", ("GET",), "v2/models[/{model}[/versions/{version}]]/stats"),)
    assert list(openapi.document(table, {})["paths"]) == [
        "/v2/models/stats",
        "/v2/models/{model}/stats",
        "/v2/models/{model}/versions/{version}/stats",
    ]


def test_document_operations_name_their_role(document: Any) -> None:
    told = {path: next(iter(each.values())).get("description") for path, each in document["paths"].items()}
    assert told["/v2/health/live"] is None
    assert told["/v2/models/{model}/infer"] == "Needs the role infer."
    assert told["/v2/repository/models/{model}/load"] == "Needs the role operate."
    assert told["/v2/models/{model}"] == "Needs the role infer or read."


def test_find_other_method_for_the_document_is_not_allowed() -> None:
    response = routes.find("POST", "/openapi.json")
    assert isinstance(response, HttpResponse)
    assert response.status is HTTPStatus.METHOD_NOT_ALLOWED
