"""The API against its own OpenAPI document, with requests nobody would write by hand."""

import pytest
from hypothesis import given, settings

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

OPERATIONS = (
    ("POST", "/api/session"),
    ("DELETE", "/api/session"),
    ("GET", "/api/cameras"),
    ("POST", "/api/cameras"),
    ("GET", "/api/cameras/{name}"),
    ("DELETE", "/api/cameras/{name}"),
    ("GET", "/api/cameras/{name}/frame"),
    ("GET", "/api/cameras/{name}/history"),
    ("POST", "/api/cameras/{name}/commands/{command}"),
    ("GET", "/api/events"),
    ("GET", "/cameras/{name}/picture.jpg"),
    ("GET", "/metrics"),
    ("HEAD", "/metrics"),
    ("GET", "/healthz"),
    ("HEAD", "/healthz"),
    ("GET", "/readyz"),
    ("HEAD", "/readyz"),
)


@pytest.mark.parametrize("camera", ["any", "yard"])
def test_api_keeps_to_its_document(serve, ask, stream, cameras, until, monkeypatch, camera):
    monkeypatch.setattr("gain_apps.serve.app.WRONG_TOKEN_DELAY_S", 0.0)
    server = serve()
    until(lambda: stream.board.sequence)
    schema = schemathesis.openapi.from_dict(ask(server, "/api/openapi.json").json())
    for method, path in OPERATIONS:
        if camera == "yard" and "{name}" not in path:
            continue
        # Whatever was added or removed by the operation before.
        cameras.streams = {"yard": stream}

        @settings(max_examples=15, deadline=None, derandomize=True, database=None)
        @given(case=schema[path][method].as_strategy())
        def holds(case):
            if camera == "yard":
                case.path_parameters["name"] = "yard"
            case.call_and_validate(base_url=server.address.url.rstrip("/"))

        holds()


def test_document_names_every_path(serve, ask):
    document = ask(serve(), "/api/openapi.json").json()
    assert {
        (verb.upper(), path) for path, verbs in document["paths"].items() for verb in verbs
    } == (set(OPERATIONS))
    assert document["openapi"].startswith("3.")
