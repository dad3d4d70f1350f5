"""Print the folder of the live version: python live_model.py VERSIONS MODELS.

VERSIONS is the output of `ssi versions --json`, and MODELS the folder of the model folders.
"""

import json
import sys
from pathlib import Path

live = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))["live"]
for manifest in sorted(Path(sys.argv[2]).glob("*/manifest.json")):
    if live is not None and json.loads(manifest.read_text(encoding="utf-8")).get("model_id") == live:
        sys.stdout.write(f"{manifest.parent}\n")
        break
else:
    sys.exit(f"no folder in {sys.argv[2]} has the live version {live}: copy its model there, or run ssi promote")
