"""The files that `end_to_end.py` leaves: end_to_end.json and end_to_end.md."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from provenance import write_results


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    head = [
        "set",
        "engine",
        "BM25",
        "lexical score",
        "**reranked**",
        "gain [95 %]",
        "p",
        "over the lexical score (p)",
        "RR: BM25",
        "RR: reranked (p)",
        "ceiling",
        "unjudged: BM25",
        "unjudged: reranked",
        "alpha",
    ]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for row in result["runs"]:
        system, over = row["systems"], row["model_over_words_alone"]["nDCG@10"]
        ndcg, rr = system["model"]["nDCG@10"], system["model"]["RR"]
        cells = [
            f"{row['set']} ({row['test_queries']:,} queries)",
            row["engine"],
            f"{system['engine']['nDCG@10']['mean']:.4f}",
            f"{system['words alone']['nDCG@10']['mean']:.4f}",
            f"**{ndcg['mean']:.4f}**",
            f"{ndcg['gain']:+.4f} [{ndcg['low']:+.4f}, {ndcg['high']:+.4f}]",
            f"{ndcg['p']:.2g}",
            f"{over['gain']:+.4f} ({over['p']:.2g})",
            f"{system['engine']['RR']['mean']:.4f}",
            f"{rr['mean']:.4f} ({rr['p']:.2g})",
            f"{row['ceiling_ndcg']:.4f}",
            f"{system['engine']['unjudged']:.1%}",
            f"{system['model']['unjudged']:.1%}",
            f"{row['calibration']['model']['alpha']:.3f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def document(result: Mapping[str, Any]) -> str:
    """Return the results file for readers."""
    rows = [
        f"- {row['set']}, {row['engine']}: `{json.dumps(row['body'])}`; alpha fitted on "
        f"{row['calibration']['model']['queries']:,} training queries not trained on "
        f"(engine {row['calibration']['model']['engine']:.4f}, best {row['calibration']['model']['best']:.4f}, at the "
        f"default alpha {row['calibration']['model']['at_default']:.4f})"
        for row in result["runs"]
    ]
    least = ", ".join(
        f"{value:g} ({name})" for name, value in {r["set"]: r["relevant_from"] for r in result["runs"]}.items()
    )
    return "\n".join(
        [
            "# End to end through each engine",
            "",
            f"`OMP_NUM_THREADS=1 python benchmarks/end_to_end.py`, window {result['window']}. nDCG@10 "
            "(gain 2^grade - 1) and RR on test queries against the engine's own BM25 with tuned field weights; "
            "intervals and p of the paired t-test over queries. "
            f"RR counts grades from {least}. `lexical score` uses q.d instead of the model's score; the ceiling is "
            "nDCG@10 of the window in perfect order; hits without a judgement count as not relevant. The gain is "
            "against the engine's order in the very search that was reranked; asked again, an engine's own mean "
            "was seen to move by .001.",
            "",
            table(result),
            "",
            *rows,
            "",
        ]
    )


def kept_runs(path: Path, small: bool) -> list[dict[str, Any]]:
    """Return the runs of an earlier call, which those of the same set and engine will replace."""
    if not path.exists():
        return []
    earlier = json.loads(path.read_text(encoding="utf-8"))
    runs: list[dict[str, Any]] = earlier["runs"] if earlier["small"] == small else []
    return runs


def keep(folder: Path, head: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """Write a run into both files, over an earlier run of the same set and engine and next to all others."""
    path = folder / "end_to_end.json"
    earlier = kept_runs(path, bool(head["small"]))
    others = [one for one in earlier if (one["set"], one["engine"]) != (run["set"], run["engine"])]
    runs = sorted([*others, run], key=lambda one: (one["set"] != "msrd_movies", one["engine"]))
    result = {**head, "runs": runs}
    write_results(path, result)
    path.with_suffix(".md").write_text(document(result), encoding="utf-8")
