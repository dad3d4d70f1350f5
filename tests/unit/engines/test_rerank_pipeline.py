"""The files of OpenSearch's rerank pipeline: their form, and that the guide names each of them with its request."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.engines import rerank_pipeline
from tests.engines.rerank_pipeline import FILES, TRUSTED, filled

GUIDE = FILES.parents[1] / "docs" / "guide" / "opensearch-rerank.md"
SERVICE = "http://ssi.internal:8080"
VALUES = {
    "SERVICE": SERVICE,
    "SERVICE_REGEX": SERVICE.replace(".", "[.]"),
    "KEY": "sesame",
    "DOCUMENTS": "ids",
    "CONNECTOR": "C1",
    "MODEL": "M1",
    "FIELD": "sku",
    "TEXT": "title",
    "QUERY": "red shoes",
}


@pytest.mark.parametrize("path", sorted(FILES.glob("*.json")), ids=lambda path: path.name)
def test_every_placeholder_has_a_value(path: Path) -> None:
    assert "@" not in json.dumps(filled(path.name, **VALUES))


def test_the_connector_and_the_pipeline_have_the_documented_shape() -> None:
    trusted = filled("cluster_settings.json", **VALUES)["persistent"]
    (expression,) = trusted[TRUSTED]
    assert re.fullmatch(expression, f"{SERVICE}/v2/rerank")
    assert not re.fullmatch(expression, "http://ssi-internal:8080/v2/rerank")
    assert trusted["plugins.ml_commons.connector.private_ip_enabled"] is True
    connector = filled("connector.json", **VALUES)
    timeouts = connector["client_config"]
    assert (timeouts["connection_timeout"], timeouts["read_timeout"], timeouts["max_retry_times"]) == (1, 2, 0)
    (action,) = connector["actions"]
    assert action["url"] == "http://ssi.internal:8080/v2/rerank?documents_are=ids"
    # The script builds the whole request; ml-commons would substitute its variables in the script as well.
    assert action["request_body"] == "${parameters.request}"
    assert "params.text_docs" in action["pre_process_function"] and "${" not in action["pre_process_function"]
    assert action["post_process_function"] == "connector.post_process.cohere.rerank"
    rerank = filled("pipeline.json", **VALUES)["response_processors"][0]["rerank"]
    assert rerank["context"] == {"document_fields": ["sku"]}
    assert rerank["ml_opensearch"] == {"model_id": "M1"}
    assert filled("model.json", **VALUES)["connector_id"] == "C1"


def test_the_connector_has_the_script_in_readable_form() -> None:
    script = (FILES / "request.painless").read_text(encoding="utf-8")
    assert filled("connector.json", **VALUES)["actions"][0]["pre_process_function"] == script


def test_the_shell_function_of_the_guide_fills_the_files() -> None:
    lines = GUIDE.read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("    engine="))
    end = next(number for number, line in enumerate(lines) if line.startswith("    send()"))
    names = ("cluster_settings.json", "connector.json", "model.json", "pipeline.json")
    fills = "".join(f"fill {name}; printf '\\0'\n" for name in names)
    script = "\n".join([*lines[start : end + 1], "connector=C1 model=M1", fills])
    printed = subprocess.run(["bash", "-euc", script], cwd=GUIDE.parents[2], capture_output=True, text=True, check=True)
    service = "http://ssi:8080"
    values = {**VALUES, "SERVICE": service, "SERVICE_REGEX": service, "KEY": "none"}
    filled_by_shell = [json.loads(text) for text in printed.stdout.split("\0")[:-1]]
    assert filled_by_shell == [filled(name, **values) for name in names]


def test_the_files_are_sent_in_the_order_of_the_guide() -> None:
    """The helper of the tests, which sends them to a real OpenSearch, and the guide name the same requests."""
    sent: list[str] = []

    def send(method: str, path: str, body: object = None, params: object = None) -> dict[str, str]:
        sent.append(f"{method} {path}".replace("C1", "$connector").replace("M1", "$model"))
        state = "UNDEPLOYED" if any(one.endswith("_undeploy") for one in sent) else "DEPLOYED"
        return {"connector_id": "C1", "model_id": "M1", "model_state": state}

    with rerank_pipeline.installed(send, SERVICE):
        pass
    guide = GUIDE.read_text(encoding="utf-8")
    named = [" ".join(pair) for pair in re.findall(r'-X (\w+) "\$engine(/[^"?]*)', guide)]
    assert [request for request in named if "_predict" not in request] == sent
    assert {path.name for path in FILES.glob("*.json")} == set(re.findall(r"\w+\.json", guide))
