"""The OpenAPI document tells the truth: schemathesis asks every route for what it promises and for what it must refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import positive_data_acceptance

from headgate.gateway.settings import LIMITS, RateLimit
from tests.http.sample_process import TIGHT, SampleStarter
from tests.processes import PATIENT, GatewayProcess
from tests.topology import Topology

EXAMPLES = 10
ROUNDS = settings(
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


UNLIMITED = RateLimit(per_second=1e6, burst=1e6)
# A schema cannot say everything that a value must be (no control characters, say), so valid data may be refused too.
EXCLUDED: list[Any] = [positive_data_acceptance]


def broken_promises(url: str, token: str, examples: int) -> list[str]:
    """Try every operation with made-up cases, good and bad, and say where an answer is not what the document says."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    found: list[str] = []
    for result in schema.get_all_operations():
        assert isinstance(result, Ok), result
        operation = result.ok()
        if _streams(operation):
            continue  # its answer does not end
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @settings(ROUNDS, max_examples=examples)
            @given(case=operation.as_strategy(generation_mode=mode))
            def keeps_its_promises(case: schemathesis.Case[Any]) -> None:
                response = case.call(headers={"X-API-Token": token}, timeout=30, allow_redirects=False)
                case.validate_response(response, excluded_checks=[*EXCLUDED, *_excused(case, response)])

            try:
                keeps_its_promises()
            except Unsatisfiable:
                pass  # there is nothing that this operation must refuse
            except FailureGroup as failures:
                found += [f"{operation.label}: {failure}" for failure in failures.exceptions]
    return found


def _excused(case: schemathesis.Case[Any], response: Response) -> list[Any]:
    """A lock that wants replicas of a server that has none is refused with a 503, as the document says.

    What replicas have is asked for a second; a store that stands still for longer has not answered.
    """
    wants_replicas = isinstance(case.body, dict) and bool(case.body.get("replicas"))
    codes = {"not_replicated", "store_unavailable"} if wants_replicas else set()
    refused = response.status_code == 503 and response.json()["code"] in codes
    return [not_a_server_error] if refused else []


def _streams(operation: schemathesis.APIOperation[Any, Any, Any, Any]) -> bool:
    answers = operation.definition.raw["responses"].values()
    return any("text/event-stream" in answer.get("content", {}) for answer in answers)


def test_sample_keeps_its_promises(fresh_sample: SampleStarter, examples: Callable[[int], int]) -> None:
    sample = fresh_sample(limits={"tight": TIGHT, "unauthorized": UNLIMITED})
    assert broken_promises(sample.url, sample.token, examples(EXAMPLES)) == []


def test_gateway_keeps_its_promises(
    server: Topology, fresh_gateway: Callable[..., GatewayProcess], examples: Callable[[int], int]
) -> None:
    limits = msgspec.json.encode(dict.fromkeys(LIMITS, UNLIMITED)).decode()
    gateway = fresh_gateway(server.url, environment={"HEADGATE_GATEWAY_LIMITS": limits, **PATIENT})
    assert broken_promises(gateway.url, gateway.token, examples(EXAMPLES)) == []
