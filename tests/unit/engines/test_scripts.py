"""What is put into engines: the documented shapes, what is said of engines that cannot take it, and secrets kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from reranker.engines.dialects import ELASTICSEARCH, OPENSEARCH
from reranker.engines.protocol import Capabilities
from reranker.engines.scripts import (
    NOT_RUN,
    TRUSTED,
    Setup,
    carry_out_steps,
    example_search,
    install_steps,
    licence_of,
    remove_steps,
    requests_of,
    trusted_of,
)
from reranker.errors import ConfigError, EngineAuthError, EngineRejected, EngineUnavailable, Unsupported
from tests.engines.memory import memory_engine

ENCODER = "0123456789abcdef"
SERVICE = "http://ssi.internal:8080"
FULL_ES = ELASTICSEARCH.capabilities("9.2.0", {"lang-painless", "x-pack-inference"})
FULL_OS = OPENSEARCH.capabilities("3.1.0", {"lang-painless", "opensearch-ml", "opensearch-neural-search"})


def by_what(setup: Setup, capabilities: Capabilities, licence: str = "") -> dict[str, Any]:
    return {step.what: step for step in install_steps(setup, capabilities, licence)}


def test_stored_scripts() -> None:
    steps = install_steps(Setup(ENCODER), FULL_OS, "")
    assert [(step.method, step.path) for step in steps] == [
        ("PUT", "/_scripts/ssi_0123456789ab_model"),
        ("PUT", "/_scripts/ssi_0123456789ab_blend"),
    ]
    for step in steps:
        assert step.body is not None
        assert step.body["script"]["lang"] == "painless"
        assert "innerProduct(params.u, doc['ssi_0123456789ab_vec_dense'])" in step.body["script"]["source"]
        assert not step.why_not
        assert not step.note
    assert all(step.note == NOT_RUN for step in install_steps(Setup(ENCODER), FULL_ES, "basic"))
    bare = Capabilities("elasticsearch", "8.19.2", "dense_vector", "sparse_vector")
    assert all("painless" in step.why_not for step in install_steps(Setup(ENCODER), bare, "basic"))


def test_the_inference_endpoint_has_the_documented_shape() -> None:
    step = by_what(Setup(service=SERVICE, key="k"), FULL_ES, "enterprise")["inference endpoint ssi"]
    assert (step.method, step.path, step.note, step.why_not) == ("PUT", "/_inference/rerank/ssi", NOT_RUN, "")
    settings = step.body["service_settings"]
    assert step.body["service"] == "custom"
    assert settings["url"] == "http://ssi.internal:8080/v2/rerank?documents_are=texts"
    assert settings["secret_parameters"] == {"api_key": "k"}
    assert settings["headers"]["Authorization"] == "Bearer ${api_key}"
    # A template of the request, whose places stand unquoted.
    sent = settings["request"].replace("${input}", '["a"]').replace("${query}", '"q"')
    assert json.loads(sent) == {"documents": ["a"], "query": "q", "model": "ssi"}
    parser = settings["response"]["json_parser"]
    assert parser == {"reranked_index": "$.results[*].index", "relevance_score": "$.results[*].relevance_score"}


@pytest.mark.parametrize(
    ("capabilities", "licence", "reason"),
    [
        (FULL_ES, "basic", "licence is basic"),
        (FULL_ES, "", "licence is unknown"),
        (Capabilities("elasticsearch", "8.18.0", painless=True), "enterprise", "8.19"),
        (Capabilities("elasticsearch", "8.19.2", modules=frozenset({"x-pack-core"})), "enterprise", "x-pack-inference"),
        (Capabilities("opensearch", "2.19.1", modules=frozenset({"opensearch-knn"})), "", "opensearch-ml"),
        (Capabilities("opensearch", "2.19.1", modules=frozenset({"opensearch-ml"})), "", "neural-search"),
        (Capabilities("opensearch", "2.11.0"), "", "2.12"),
    ],
)
def test_what_an_engine_cannot_take_is_said(capabilities: Capabilities, licence: str, reason: str) -> None:
    steps = install_steps(Setup(service=SERVICE), capabilities, licence)
    assert steps
    assert all(reason in step.why_not for step in steps)


def test_the_connector_and_the_pipeline_have_the_documented_shape() -> None:
    steps = by_what(Setup(service=SERVICE, id_field="sku", trusted=("^https://other/.*$",)), FULL_OS)
    assert list(steps) == ["trusted address of the service", "connector", "remote model", "search pipeline ssi"]
    trusted = steps["trusted address of the service"].body["persistent"]
    # What was trusted before stays so.
    assert trusted[TRUSTED] == ["^https://other/.*$", r"^http:\/\/ssi\.internal:8080/.*$"]
    assert trusted["plugins.ml_commons.connector.private_ip_enabled"] is True
    action = steps["connector"].body["actions"][0]
    assert action["url"] == "http://ssi.internal:8080/v2/rerank?documents_are=ids"
    assert action["pre_process_function"] == "connector.pre_process.cohere.rerank"
    assert action["post_process_function"] == "connector.post_process.cohere.rerank"
    filled = action["request_body"].replace("${parameters.documents}", '["a"]').replace("${parameters.top_n}", "1")
    filled = filled.replace("${parameters.query}", "q").replace("${parameters.model}", "ssi")
    assert json.loads(filled) == {"documents": ["a"], "query": "q", "model": "ssi", "top_n": 1}
    assert steps["remote model"].params == {"deploy": "true"}
    rerank = steps["search pipeline ssi"].body["response_processors"][0]["rerank"]
    assert rerank["context"] == {"document_fields": ["sku"]}
    assert rerank["ml_opensearch"] == {"model_id": "@MODEL@"}


@pytest.mark.parametrize("capabilities", [FULL_ES, FULL_OS])
def test_the_example_asks_by_what_was_put_in(capabilities: Capabilities) -> None:
    text = json.dumps(example_search(Setup(service=SERVICE, text_field="title"), capabilities))
    assert "title" in text
    assert "{{query}}" in text
    assert "@" not in text


@pytest.mark.parametrize("name", ["", "Ssi", "a/b", "a b", "x" * 62, "../x"])
def test_names_that_no_engine_takes_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="name"):
        Setup(service=SERVICE, name=name)


@pytest.mark.parametrize("service", ["ssi:8080", "http://user:pw@ssi", 'http://a"b', "http://a?b=c", "ftp://x"])
def test_addresses_that_no_engine_takes_are_refused(service: str) -> None:
    with pytest.raises(ConfigError, match="service"):
        Setup(service=service)


def test_the_key_is_in_no_representation() -> None:
    assert "sesame" not in repr(Setup(service=SERVICE, key="sesame"))


def test_values_cannot_change_the_shape() -> None:
    setup = Setup(service=SERVICE, text_field='x"}], "evil": [{"', key='k"\n')
    body = by_what(setup, FULL_OS)["search pipeline ssi"].body
    assert list(body) == ["response_processors"]
    assert body["response_processors"][0]["rerank"]["context"]["document_fields"] == ['x"}], "evil": [{"']


class Recorder:
    """Answers requests by a script and keeps them."""

    def __init__(self, kind: str = "opensearch", **answers: Any) -> None:
        self.kind, self.answers, self.sent = kind, answers, list[tuple[str, str, Any]]()

    def capabilities(self) -> Capabilities:
        return FULL_OS if self.kind == "opensearch" else FULL_ES

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, params: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        self.sent.append((method, path, body))
        answer = self.answers.get(path.rsplit("/", 1)[-1], {"acknowledged": True})
        if isinstance(answer, Exception):
            raise answer
        result: dict[str, Any] = answer
        return result


def test_steps_that_build_on_each_other_are_filled_in() -> None:
    engine: Any = Recorder(_create={"connector_id": "C1"}, _register={"model_id": "M1", "status": "CREATED"})
    done = carry_out_steps(engine, install_steps(Setup(service=SERVICE), FULL_OS, ""))
    assert [one.state for one in done] == ["done"] * 4
    bodies = {path: body for _, path, body in engine.sent}
    assert bodies["/_plugins/_ml/models/_register"]["connector_id"] == "C1"
    pipeline = bodies["/_search/pipeline/ssi"]["response_processors"][0]["rerank"]
    assert pipeline["ml_opensearch"] == {"model_id": "M1"}


def test_after_a_refusal_nothing_is_built_on_it() -> None:
    engine: Any = Recorder(_create=EngineRejected("no", status=400))
    done = carry_out_steps(engine, install_steps(Setup(service=SERVICE), FULL_OS, ""))
    assert [one.state for one in done] == ["done", "refused", "not possible", "not possible"]
    assert [path for _, path, _ in engine.sent][-1] == "/_plugins/_ml/connectors/_create"


def test_removing_what_is_not_there_is_no_error() -> None:
    setup = Setup(ENCODER, SERVICE)
    missing = EngineRejected("not found", status=404)
    engine: Any = Recorder(ssi_0123456789ab_model=missing, ssi_0123456789ab_blend=missing)
    done = carry_out_steps(engine, remove_steps(setup, FULL_OS))
    assert [one.state for one in done] == ["absent", "absent", "done"]
    assert {method for method, _, _ in engine.sent} == {"DELETE"}
    assert len(remove_steps(Setup(ENCODER), FULL_OS)) == 2


def test_an_engine_that_is_away_or_does_not_know_us_ends_it() -> None:
    steps = install_steps(Setup(ENCODER), FULL_OS, "")
    for error in (EngineUnavailable("away"), EngineAuthError("who?", status=401)):
        engine: Any = Recorder(ssi_0123456789ab_model=error)
        with pytest.raises(type(error)):
            carry_out_steps(engine, steps)
    engine = Recorder(ssi_0123456789ab_model=EngineAuthError("no rights", status=403))
    assert carry_out_steps(engine, steps)[0].state == "refused"


def test_the_licence_and_what_is_trusted_are_asked_for() -> None:
    engine: Any = Recorder("elasticsearch", _license={"license": {"type": "basic"}})
    assert licence_of(engine) == "basic"
    engine = Recorder("elasticsearch", _license=EngineAuthError("no", status=403))
    assert licence_of(engine) == ""
    settings = {"persistent": {}, "defaults": {TRUSTED: ["^https://a$"]}}
    assert trusted_of(Recorder(settings=settings)) == ("^https://a$",)  # type: ignore[arg-type]
    assert trusted_of(Recorder(settings=EngineRejected("no", status=400))) == ()  # type: ignore[arg-type]


def test_the_licence_of_an_engine_that_has_just_started_is_waited_for() -> None:
    """It answers 404 when asked for it until its master has written one."""

    class Starting(Recorder):
        def request(self, method: str, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
            if path == "/_cluster/health":
                assert kwargs["params"]["wait_for_events"] == "languid"
                self.answers["_license"] = {"license": {"type": "enterprise"}}
            return super().request(method, path, *args, **kwargs)

    engine: Any = Starting("elasticsearch", _license=EngineRejected("{}", status=404))
    assert licence_of(engine) == "enterprise"
    assert [path for _, path, _ in engine.sent] == ["/_license", "/_cluster/health", "/_license"]
    assert licence_of(Recorder("elasticsearch", _license=EngineRejected("{}", status=404))) == ""  # type: ignore[arg-type]


def test_an_embedded_engine_takes_nothing() -> None:
    with pytest.raises(Unsupported, match="memory"):
        requests_of(memory_engine())
