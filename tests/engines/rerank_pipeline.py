"""The installation of OpenSearch's rerank pipeline, by the files of `plugin_scripts` in the order of the guide."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FILES = Path(__file__).resolve().parents[2] / "plugin_scripts" / "opensearch"
ML = "/_plugins/_ml"
TRUSTED = "plugins.ml_commons.trusted_connector_endpoints_regex"
"""Cluster setting with the addresses that connectors may call."""
READY_S = 60
"""Longest time until a model is deployed, or no longer is."""

Send = Callable[..., dict[str, Any]]
"""Sends method, path, body and URL parameters to the engine, and returns the answer."""


def filled(name: str, **values: str) -> dict[str, Any]:
    """Return a file with ``@NAME@`` replaced by the value of that name; a missing value is an error."""
    text = re.sub(r"@([A-Z_]+)@", lambda place: values[place[1]], (FILES / name).read_text(encoding="utf-8"))
    body: dict[str, Any] = json.loads(text)
    return body


def install(send: Send, service: str, field: str = "text", *, are_ids: bool = False) -> tuple[str, str]:
    """Install the pipeline ``ssi`` and return the ids of connector and model; wait until the model is deployed."""
    address = {"SERVICE": service, "SERVICE_REGEX": service.replace(".", "[.]")}
    send("PUT", "/_cluster/settings", filled("cluster_settings.json", **address))
    documents = "ids" if are_ids else "texts"
    connector = filled("connector.json", **address, KEY="none", DOCUMENTS=documents)
    connector_id = str(send("POST", f"{ML}/connectors/_create", connector)["connector_id"])
    model = filled("model.json", **address, CONNECTOR=connector_id)
    model_id = str(send("POST", f"{ML}/models/_register", model, {"deploy": "true"})["model_id"])
    _until(send, model_id, ("DEPLOYED",))
    send("PUT", "/_search/pipeline/ssi", filled("pipeline.json", **address, MODEL=model_id, FIELD=field))
    return connector_id, model_id


def _until(send: Send, model_id: str, states: tuple[str, ...]) -> None:
    """Wait until a model has one of some states."""
    started = time.monotonic()
    while (state := send("GET", f"{ML}/models/{model_id}").get("model_state")) not in states:
        assert time.monotonic() < started + READY_S, f"the model is still {state}"
        time.sleep(0.25)


def remove(send: Send, connector_id: str, model_id: str) -> None:
    """Remove pipeline, model and connector."""
    send("DELETE", "/_search/pipeline/ssi")
    send("POST", f"{ML}/models/{model_id}/_undeploy")
    _until(send, model_id, ("UNDEPLOYED", "REGISTERED", "DEPLOY_FAILED"))
    send("DELETE", f"{ML}/models/{model_id}")
    send("DELETE", f"{ML}/connectors/{connector_id}")


@contextmanager
def installed(send: Send, service: str, field: str = "text", *, are_ids: bool = False) -> Iterator[str]:
    """Install the pipeline and give the id of its model; remove everything at the end."""
    connector_id, model_id = install(send, service, field, are_ids=are_ids)
    try:
        yield model_id
    finally:
        remove(send, connector_id, model_id)
