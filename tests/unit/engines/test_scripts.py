"""What is put into engines: the documented shapes, what is said of engines that cannot take it, and secrets kept."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from reranker.engines.dialects import ELASTICSEARCH, OPENSEARCH
from reranker.engines.protocol import Capabilities, requests_of
from reranker.engines.scripts import (
    NOT_RUN,
    PREDICT_NOTE,
    TRUSTED,
    Installed,
    Setup,
    carry_out_steps,
    example_search,
    install_steps,
    installed_in,
    licence_of,
    remove_steps,
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
        (OPENSEARCH.capabilities("2.19.1", {"opensearch-ml", "opensearch-neural-search"}), "", "painless"),
    ],
)
def test_what_an_engine_cannot_take_is_said(capabilities: Capabilities, licence: str, reason: str) -> None:
    steps = install_steps(Setup(service=SERVICE), capabilities, licence)
    assert steps
    assert all(reason in step.why_not for step in steps)


def test_the_connector_and_the_pipeline_have_the_documented_shape() -> None:
    installed = Installed(("^https://other/.*$",), ("M0",), ("C0",))
    steps = by_what(Setup(service=SERVICE, id_field="sku", timeout_s=5, installed=installed), FULL_OS)
    assert list(steps) == [
        "trusted address of the service",
        "connector",
        "remote model",
        "search pipeline ssi",
        "undeployment of earlier model M0",
        "removal of earlier model M0",
        "removal of earlier connector C0",
        "test request to the service",
    ]
    trusted = steps["trusted address of the service"].body["persistent"]
    # What was trusted before stays so.
    assert trusted[TRUSTED] == ["^https://other/.*$", r"^http:\/\/ssi\.internal:8080/.*$"]
    assert trusted["plugins.ml_commons.connector.private_ip_enabled"] is True
    timeouts = steps["connector"].body["client_config"]
    assert (timeouts["connection_timeout"], timeouts["read_timeout"], timeouts["max_retry_times"]) == (1, 5, 0)
    action = steps["connector"].body["actions"][0]
    assert action["url"] == "http://ssi.internal:8080/v2/rerank?documents_are=ids"
    # The script builds the whole request; ml-commons would substitute its variables in the script as well.
    assert action["request_body"] == "${parameters.request}"
    assert "params.text_docs" in action["pre_process_function"] and "${" not in action["pre_process_function"]
    assert action["post_process_function"] == "connector.post_process.cohere.rerank"
    assert steps["remote model"].params == {"deploy": "true"}
    rerank = steps["search pipeline ssi"].body["response_processors"][0]["rerank"]
    assert rerank["context"] == {"document_fields": ["sku"]}
    assert rerank["ml_opensearch"] == {"model_id": "@MODEL@"}


def test_what_was_run_with_a_real_engine_is_not_marked() -> None:
    run = OPENSEARCH.capabilities("2.19.1", {"lang-painless", "opensearch-ml", "opensearch-neural-search"})
    steps = by_what(Setup(service=SERVICE), run)
    assert {step.note for step in steps.values()} == {"", PREDICT_NOTE}
    assert all(NOT_RUN in step.note for step in by_what(Setup(service=SERVICE), FULL_OS).values())


def test_trusted_addresses_that_the_role_may_not_read_are_not_overwritten() -> None:
    forbidden: Any = Recorder(settings=EngineAuthError("no", status=403), _search=EngineAuthError("no", status=403))
    installed = installed_in(forbidden, "ssi")
    assert installed == Installed(None, None, None)
    setup = Setup(service=SERVICE, installed=installed)
    engine: Any = Recorder(_create={"connector_id": "C1"}, _register={"model_id": "M1"})
    done = {one.step.what: one for one in carry_out_steps(engine, install_steps(setup, FULL_OS, ""))}
    trust = done["trusted address of the service"]
    assert trust.state == "not possible" and "cluster:monitor/state" in trust.detail
    assert "/_cluster/settings" not in {path for _, path, _ in engine.sent}
    assert "models/search" in done["earlier models and connectors"].detail
    assert done["search pipeline ssi"].state == done["test request to the service"].state == "done"
    assert [one.what for one in remove_steps(setup, FULL_OS)][-1] == "earlier models and connectors"


def test_only_models_and_connectors_of_this_name_are_found() -> None:
    ours = {"name": "ssi", "description": "Reranks by the service at http://other"}
    hits = [("b", ours), ("a", ours), ("c", {"name": "ssi", "description": "mine"}), ("d", {**ours, "name": "SSI"})]
    engine: Any = Recorder(_search={"hits": {"hits": [{"_id": name, "_source": source} for name, source in hits]}})
    assert installed_in(engine, "ssi") == Installed((), ("a", "b"), ("a", "b"))


@pytest.mark.parametrize("field", [{"text_field": "title,text"}, {"id_field": "a,b"}])
def test_several_fields_are_refused(field: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="without a space"):
        Setup(service=SERVICE, **field)  # type: ignore[arg-type]


def test_a_timeout_of_no_seconds_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        Setup(service=SERVICE, timeout_s=0)


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
    setup = Setup(service=SERVICE, text_field='x"}]} "evil": [{"', key='k"\n')
    body = by_what(setup, FULL_OS)["search pipeline ssi"].body
    assert list(body) == ["response_processors"]
    assert body["response_processors"][0]["rerank"]["context"]["document_fields"] == ['x"}]} "evil": [{"']


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
        result: dict[str, Any] = answer.pop(0) if isinstance(answer, list) else answer
        return result


def test_steps_that_build_on_each_other_are_filled_in() -> None:
    engine: Any = Recorder(_create={"connector_id": "C1"}, _register={"model_id": "M1", "status": "CREATED"})
    done = carry_out_steps(engine, install_steps(Setup(service=SERVICE), FULL_OS, ""))
    assert [one.state for one in done] == ["done"] * 5
    bodies = {path: body for _, path, body in engine.sent}
    assert bodies["/_plugins/_ml/models/_register"]["connector_id"] == "C1"
    pipeline = bodies["/_search/pipeline/ssi"]["response_processors"][0]["rerank"]
    assert pipeline["ml_opensearch"] == {"model_id": "M1"}
    assert list(bodies)[-1] == "/_plugins/_ml/_predict/text_similarity/M1"


@pytest.mark.parametrize(
    "error",
    [EngineAuthError("who?", status=401), EngineAuthError("no", status=403), EngineUnavailable("x", status=503)],
)
def test_a_refusal_of_the_test_request_is_reported(error: Exception) -> None:
    """An engine passes on the status of the service, which is no reason to call the engine unavailable."""
    engine: Any = Recorder(_create={"connector_id": "C1"}, _register={"model_id": "M1"}, M1=error)
    done = carry_out_steps(engine, install_steps(Setup(service=SERVICE), FULL_OS, ""))
    assert [one.state for one in done] == ["done"] * 4 + ["refused"]
    assert PREDICT_NOTE in done[-1].step.note
    engine = Recorder(_create={"connector_id": "C1"}, _register={"model_id": "M1"}, M1=EngineUnavailable("away"))
    with pytest.raises(EngineUnavailable):
        carry_out_steps(engine, install_steps(Setup(service=SERVICE), FULL_OS, ""))


def test_an_earlier_model_stays_while_the_pipeline_uses_it() -> None:
    setup = Setup(service=SERVICE, installed=Installed((), ("M0",), ("C0",)))
    forbidden = EngineAuthError("no", status=403)
    engine: Any = Recorder(_create={"connector_id": "C1"}, _register={"model_id": "M1"}, ssi=forbidden)
    done = carry_out_steps(engine, install_steps(setup, FULL_OS, ""))
    assert [one.state for one in done[3:]] == ["refused"] + ["not possible"] * 4
    assert not any(method == "DELETE" or "undeploy" in path for method, path, _ in engine.sent)


def test_a_model_is_undeployed_before_it_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reranker.engines.scripts._PAUSE_S", 0.0)
    setup = Setup(service=SERVICE, installed=Installed((), ("M0",), ("C0",)))
    states: list[Any] = [{"model_state": state} for state in ("DEPLOYING", "DEPLOYED", "UNDEPLOYED")]
    engine: Any = Recorder(M0=[*states, {}])
    done = carry_out_steps(engine, remove_steps(setup, FULL_OS))
    assert [one.state for one in done] == ["done"] * 4
    sent = [f"{method} {path.rpartition('/_ml/')[2]}" for method, path, _ in engine.sent[1:]]
    assert sent == ["POST models/M0/_undeploy", "GET models/M0"] * 3 + ["DELETE models/M0", "DELETE connectors/C0"]
    engine = Recorder(M0={"model_state": "DEPLOYED"})
    undeployment = carry_out_steps(engine, remove_steps(setup, FULL_OS))[1]
    assert undeployment.state == "refused" and "DEPLOYED" in undeployment.detail
    in_use: Any = Recorder(M0=EngineRejected("deployed", status=400), _undeploy=EngineRejected("gone", status=404))
    states_of = [one.state for one in carry_out_steps(in_use, remove_steps(setup, FULL_OS))]
    assert states_of == ["done", "absent", "refused", "done"]


def test_after_a_refusal_nothing_is_built_on_it() -> None:
    engine: Any = Recorder(_create=EngineRejected("no", status=400))
    done = carry_out_steps(engine, install_steps(Setup(service=SERVICE), FULL_OS, ""))
    assert [one.state for one in done] == ["done", "refused", "not possible", "not possible", "not possible"]
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
    opensearch: Any = Recorder(settings=settings)
    assert installed_in(opensearch, "ssi").trusted == ("^https://a$",)
    assert installed_in(Recorder(settings=EngineRejected("no", status=400)), "ssi").trusted == ()  # type: ignore[arg-type]


def test_the_licence_of_an_engine_that_has_just_started_is_waited_for() -> None:
    """It answers 404 when asked for it until its master has written one."""

    class Starting(Recorder):
        def request(self, method: str, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
            if path == "/_cluster/health":
                assert args[1]["wait_for_events"] == "languid"
                self.answers["_license"] = {"license": {"type": "enterprise"}}
            return super().request(method, path, *args, **kwargs)

    engine: Any = Starting("elasticsearch", _license=EngineRejected("{}", status=404))
    assert licence_of(engine) == "enterprise"
    assert [path for _, path, _ in engine.sent] == ["/_license", "/_cluster/health", "/_license"]
    assert licence_of(Recorder("elasticsearch", _license=EngineRejected("{}", status=404))) == ""  # type: ignore[arg-type]


def test_an_embedded_engine_takes_nothing() -> None:
    with pytest.raises(Unsupported, match="memory"):
        requests_of(memory_engine())
