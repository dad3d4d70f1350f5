"""``python -m tests.docs.openapi``: the OpenAPI description of the service, kept in ``docs/openapi.json``."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

from reranker.service.app import all_parts, create_app
from reranker.service.auth import new_key
from tests.services import service_over, small_index


def description() -> str:
    """Return the description of a service with API keys as JSON text, without its pages and the engine's API."""
    # The index of random documents prints its seed.
    with tempfile.TemporaryDirectory() as name, redirect_stdout(sys.stderr):
        folder = Path(name)
        keys = folder / "keys.txt"
        keys.write_text(new_key("docs", "admin")[1] + "\n", encoding="utf-8")
        state = service_over(small_index(folder, n=5), folder, api_keys=keys)
        try:
            schema = create_app(state.settings, state, all_parts()).openapi()
        finally:
            state.close()
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(description())
