"""Drawn requests over the whole OpenAPI: the server has no fault, and every answer is as it is declared.

CASES says how many are drawn; `make test-api` draws 2,000.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient

from launcher.server.routes.app import create_app
from launcher.server.services import ServerSettings

CASES = int(os.environ.get("CASES", "100"))
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SPELT = {"data": "content"}  # what the test client calls it
KNOWN = {"step": [1, 5, 6], "group": [1, 2], "answer": [0, 1]}
"""Parts of addresses for which something is there; others are drawn."""


@pytest.fixture(scope="module")
def client(place: Path) -> Iterator[TestClient]:
    application = create_app(ServerSettings(root=place / "runs"))
    with TestClient(application, base_url="http://localhost:8000", raise_server_exceptions=False) as client:
        yield client


def test_every_answer_is_as_it_is_declared(client):
    schema = schemathesis.openapi.from_dict(client.app.openapi())
    known = {**KNOWN, "uuid": [job["uuid"] for job in client.get("/api/jobs").json()["items"]]}
    operations = [each.ok() for each in schema.get_all_operations()]
    assert len(operations) > 25
    drawn = Counter[tuple[str, int]]()

    def ask(case: Any, places: dict[str, Any]) -> None:
        for name in case.path_parameters or {}:
            if name in places:
                case.path_parameters[name] = places[name]
        sent = case.as_transport_kwargs(base_url="http://localhost:8000")
        sent = {SPELT.get(name, name): value for name, value in sent.items() if value and name != "cookies"}
        answer = client.request(**sent)
        case.validate_response(answer, checks=CHECKS)
        drawn[case.operation.label, answer.status_code] += 1

    places = st.one_of(
        st.just({}), st.fixed_dictionaries({name: st.sampled_from(values) for name, values in known.items()})
    )
    for operation in operations:
        cases = st.one_of(*(operation.as_strategy(generation_mode=mode) for mode in GenerationMode))
        test = given(cases, places)(ask)
        settings(
            max_examples=-(-CASES // len(operations)), deadline=None, database=None, derandomize=True,
            suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
        )(test)()  # fmt: skip
    statuses = Counter(status for _, status in drawn.elements())
    print(drawn.total(), "requests:", dict(sorted(statuses.items())), file=sys.stderr)
    assert {label for label, _ in drawn} == {operation.label for operation in operations}
    assert statuses[200] > drawn.total() / 10, "hardly a request was one that is answered"
