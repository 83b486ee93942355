"""The OpenAPI document has every route, and nothing else."""

from __future__ import annotations

import asyncio

from machtrace.server.application import application
from machtrace.server.service import Service


def routes(folder):
    async def made():
        return application(Service(folder, is_local=True)).routes

    return {
        (route.path.replace(":path}", "}"), method.lower())
        for route in asyncio.run(made())
        for method in route.methods
        if method not in ("HEAD", "OPTIONS")
    }


def test_routes_and_document_agree(client, folder):
    document = client.get("/v1/openapi.json").json
    described = {(path, method) for path, each in document["paths"].items() for method in each}
    assert described == routes(folder)


def test_operations_state_their_parameters_and_answers(client):
    document = client.get("/v1/openapi.json").json
    assert document["openapi"].startswith("3.1")
    for path, methods in document["paths"].items():
        for operation in methods.values():
            named = {
                parameter["name"]
                for parameter in operation["parameters"]
                if parameter["in"] == "path"
            }
            assert named == {part[1:-1] for part in path.split("/") if part[:1] == "{"}
            assert operation["responses"]
            if operation["security"]:
                assert "admin" in operation["x-scopes"]
                assert {"401", "403"} <= set(operation["responses"])


def test_answers_are_described(client):
    """Statuses that requests really get."""
    document = client.get("/v1/openapi.json").json
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            real = path.replace("{record}", "00000001-0").replace("{project}", "1")
            answer = client.request(method.upper(), real.replace("{token}", "x"))
            assert str(answer.status) in {*operation["responses"], "404"}, (path, answer.data)


def test_other_addresses(client):
    assert client.get("/v1/nothing").status == 404
    assert client.post("/v1/issues", b"").status == 405
    assert client.get("/../etc/passwd").status == 404
