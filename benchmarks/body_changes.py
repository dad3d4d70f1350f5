"""How much of a calibrated gain is left when the search body changes a little: the nearest calibration, measured.

    python benchmarks/body_changes.py [--json FILE] [--corpora NAME,...] [--seed 0]

A corpus of SSI_DATA with judged queries is indexed in the embedded engine with a model trained on half of its queries.
`ssi calibrate`'s fit is made on a quarter, for one body and a window of 100, and the last quarter is the test set. Each
changed body is searched with that calibration: nDCG@10 of the engine's own order of the changed body, of the reranked
order, and the share that the gain keeps of the gain with the body itself. The default alpha (.5, as before the nearest
calibration was used) stands next to it. For another window, ``own`` is the order by a calibration that the same queries
give for that window itself, the most that calibrating again can reach. The file is written after each corpus.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from never_worse import files_of
from provenance import write_results

from indexer.build import build_index
from reranker.engines import open_engine
from reranker.evaluation import evaluate_run
from reranker.rerank import Calibration, Reranker, RerankSettings
from reranker.rerank.calibration.alpha import Fit, fit_alpha
from reranker.rerank.calibration.bodies import body_hash, signature_of
from reranker.rerank.calibration.topics import Topic
from reranker.tables import read_judgements, read_queries
from reranker.training import DocumentSource, TrainConfig, from_judgements, train_model

DATA = Path(os.environ.get("SSI_DATA", Path(__file__).resolve().parents[1] / "../shared/data"))
KEPT = Path(__file__).parent / "results" / "body_changes.json"
CORPORA = ("esci_sample", "nfcorpus")
MAX_EACH = 400
WINDOW = 100


def body(title: float, text: float, *, swapped: bool = False, should: bool = False) -> dict[str, Any]:
    """Return a body over the title and the text with their boosts."""
    fields = [f"title^{title:g}", f"text^{text:g}"]
    match = {"multi_match": {"query": "{{query}}", "fields": fields[::-1] if swapped else fields}}
    if not should:
        return {"query": match}
    return {"query": {"bool": {"must": [match], "should": [{"match": {"title": {"query": "{{query}}"}}}]}}}


ITSELF = "the body itself"
CHANGES: Mapping[str, tuple[dict[str, Any], int]] = {
    ITSELF: (body(3, 1), WINDOW),
    "boosts x 1.003": (body(3.009, 1.003), WINDOW),
    "boosts x 1.5": (body(4.5, 1.5), WINDOW),
    "title 3 -> 3.01": (body(3.01, 1), WINDOW),
    "fields reordered": (body(3, 1, swapped=True), WINDOW),
    "optional should": (body(3, 1, should=True), WINDOW),
    "window 50": (body(3, 1), 50),
    "window 200": (body(3, 1), 200),
}


def measured(reranker: Reranker, topics: Sequence[Topic], template: Mapping[str, Any]) -> tuple[float, str]:
    """Return nDCG@10 over the topics, and the origin of alpha."""
    run, origin = {}, ""
    for number, topic in enumerate(topics):
        page = reranker.search(topic.query, template, size=10)
        origin = page.alpha_origin or origin
        run[str(number)] = [hit.id for hit in page.hits]
    qrels = {str(number): dict(topic.grades) for number, topic in enumerate(topics)}
    return float(np.mean(list(evaluate_run(qrels, run, ["nDCG@10"])["nDCG@10"].values()))), origin


def row_of(name: str, seed: int) -> dict[str, Any]:
    """Return the figures of one corpus."""
    docs, query_file, qrels_file = files_of(name)
    texts = {query.id: query.text for query in read_queries(query_file)}
    grades = {
        query: judged
        for query, judged in read_judgements(qrels_file).items()
        if query in texts and any(grade > 0 for grade in judged.values())
    }
    ids = sorted(grades)
    order = np.random.default_rng([seed, 43]).permutation(len(ids)).tolist()
    quarter = min(len(ids) // 4, MAX_EACH)
    test, fitted, train = order[:quarter], order[quarter : 2 * quarter], order[2 * quarter : 2 * quarter + 4 * MAX_EACH]
    chosen = {ids[place]: grades[ids[place]] for place in train}
    model, report = train_model(DocumentSource(docs), from_judgements(chosen, texts), TrainConfig(seed=seed))
    topics = {
        part: [Topic(texts[ids[place]], grades[ids[place]]) for place in places]
        for part, places in (("fit", fitted), ("test", test))
    }
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        engine = open_engine(f"tantivy:{folder}/index")
        build_index(engine, "docs", docs, model)
        template, window = CHANGES[ITSELF]

        def fitted_to(template: Mapping[str, Any], window: int) -> tuple[Fit, Calibration]:
            plain = Reranker(engine, "docs", model, settings=RerankSettings(window=window, deadline_ms=None))
            fit = fit_alpha(plain, topics["fit"], "nDCG@10", template, seed=seed)
            entry = {"alpha": fit.alpha, "window_alpha": fit.window_alpha, "clauses": sorted(signature_of(template))}
            return fit, Calibration.from_release({Calibration.key(body_hash(template), window): entry})

        fit, calibration = fitted_to(template, window)
        for change, (changed, width) in CHANGES.items():
            settings = RerankSettings(window=width, deadline_ms=None)
            given = {
                "engine": RerankSettings(window=width, deadline_ms=None, alpha=0.0),
                "default": RerankSettings(window=width, deadline_ms=None, alpha=0.5),
            }
            rows[change] = {
                kind: measured(Reranker(engine, "docs", model, settings=of_kind), topics["test"], changed)[0]
                for kind, of_kind in given.items()
            }
            reranker = Reranker(engine, "docs", model, calibration=calibration, settings=settings)
            rows[change]["reranked"], rows[change]["origin"] = measured(reranker, topics["test"], changed)
            if width != window:
                own_fit, own = fitted_to(changed, width)
                reranker = Reranker(engine, "docs", model, calibration=own, settings=settings)
                rows[change]["own_alpha"] = own_fit.alpha
                rows[change]["own"], _ = measured(reranker, topics["test"], changed)
        engine.close()
    gain = rows[ITSELF]["reranked"] - rows[ITSELF]["engine"]
    for row in rows.values():
        row["kept"] = (row["reranked"] - row["engine"]) / gain if gain else 0.0
        row["kept_by_default"] = (row["default"] - row["engine"]) / gain if gain else 0.0
        if "own" in row:
            row["kept_by_own"] = (row["own"] - row["engine"]) / gain if gain else 0.0
    return {
        "form": report.form.form.name,
        "test_queries": len(test),
        "alpha": fit.alpha,
        "window_alpha": fit.window_alpha,
        "bodies": rows,
    }


def main() -> None:
    """Measure the corpora and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=KEPT)
    parser.add_argument("--corpora", default=",".join(CORPORA))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rows = {}
    for name in options.corpora.split(","):
        started = time.monotonic()
        row = row_of(name, options.seed)
        rows[name] = row | {"seconds": round(time.monotonic() - started, 1)}
        write_results(options.json, {"seed": options.seed, "corpora": rows})
        print(f"{name}: {row['form']}, alpha {row['alpha']:.3f}, by window {row['window_alpha']:.3f}")
        for change, of in row["bodies"].items():
            own = f"  own {of['own']:.4f}, {of['kept_by_own']:.2f}" if "own" in of else ""
            print(
                f"  {change:18} engine {of['engine']:.4f}  reranked {of['reranked']:.4f} ({of['origin']})  "
                f"keeps {of['kept']:.2f}  default {of['kept_by_default']:.2f}{own}",
                flush=True,
            )


if __name__ == "__main__":
    main()
