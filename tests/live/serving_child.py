"""``ssi serve`` with settings that are no options: ``python -m tests.live.serving_child SETTINGS serve OPTION...``.

SETTINGS is a JSON object with fields of `ServiceSettings`. It runs one process, because the processes of ``--workers``
start by the command itself.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Any

from reranker.cli import serve
from reranker.cli.main import main
from reranker.service.settings import ServiceSettings

if __name__ == "__main__":
    changes = json.loads(sys.argv.pop(1))
    settings_of = serve._settings

    def changed(options: dict[str, Any]) -> ServiceSettings:
        """Return the settings of the options, with the given ones."""
        return replace(settings_of(options), **changes)

    serve._settings = changed
    main()
