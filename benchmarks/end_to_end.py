"""Does reranking beat an engine's own tuned BM25? Train, index, tune, calibrate, rerank and measure, engine by engine.

    OMP_NUM_THREADS=1 python benchmarks/end_to_end.py [--engines SPEC...] [--sets NAME...] [--small]

For each set of judged queries and each engine:

1. Queries are split 60/40 by a hash of their lower-cased text: test queries never repeat a training text.
2. A model is trained on the training queries. For calibration, models are trained on four fifths of them
   (``--folds`` of the five; all five where there are few queries).
3. The engine's own BM25 gets its best ``multi_match`` (kind and weight of the title) on training queries.
4. alpha is fitted on the training queries that the model of their fold has not seen.
5. The test queries are searched with `Reranker.search` (window 200, route *fetch*): nDCG@10 and RR (ir_measures)
   against the engine's order of the same body, with a paired t-test.

``words alone`` is the same blend with q.d in the place of f (U = 0), with its own alpha: what is left is learned.
The ceiling is nDCG@10 of the window in perfect order. A hit without a judgement counts as not relevant.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
from end_to_end_data import N_PARTS, Collection, read_collection
from end_to_end_report import keep, table

from indexer.build import BuildOptions, build_index
from indexer.load import LoadOptions
from reranker.engines import open_engine
from reranker.engines.bodies import fill_template
from reranker.engines.protocol import Engine, WriteOp
from reranker.evaluation import evaluate_run, paired_test, standard_error
from reranker.models.model_folder import load_model, save_model
from reranker.models.ranking_model import RankingModel
from reranker.releases import CONTROL_INDEX
from reranker.rerank import DEFAULT_ALPHA, Reranker, RerankSettings
from reranker.rerank.calibration.alpha import Fit, fit_alpha
from reranker.rerank.calibration.topics import Topic
from reranker.training import DocumentSource, TrainConfig, from_judgements, train_model

KINDS: tuple[dict[str, Any], ...] = (
    {"type": "most_fields"},
    {"type": "best_fields"},
    {"type": "best_fields", "tie_breaker": 0.3},
)
TITLE_WEIGHTS = (0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
RELEVANT_FROM = {"esci_sample": 3.0}
"""Least grade that RR counts as a find; 1 where nothing is said. In esci_sample nearly all that is judged has 1."""
FOLDS = {"msrd_movies": 1, "esci_sample": N_PARTS}
Values = npt.NDArray[np.float64]


def train(data: Collection, part: int | None, folder: Path, seed: int) -> RankingModel:
    """Return the model of the training queries, without those of a part; kept in ``folder`` for the next engine."""
    path = folder / f"{data.name}-{'all' if part is None else part}"
    if not path.exists():
        queries = [q for q in data.side(test=False) if data.part(q) != part]
        evidence = from_judgements({q: data.grades[q] for q in queries}, data.texts)
        started = time.perf_counter()
        model, report = train_model(DocumentSource(data.docs), evidence, TrainConfig(seed=seed))
        save_model(model, path)
        weights = ", ".join(f"{s.path} {s.weight:g}" for s in model.encoder.view.fields)
        print(
            f"trained {path.name} on {len(queries):,} queries in {time.perf_counter() - started:.0f} s: validation "
            f"MAP {report.lexical_map:.4f} -> {report.valid_map:.4f}, epoch {report.result.best_epoch}, "
            f"scale {report.scale:g}, {weights}",
            flush=True,
        )
    return load_model(path)


def words_alone(model: RankingModel) -> RankingModel:
    """Return the model without its learned part; the vectors in the index stay valid, they do not depend on U."""
    return dataclasses.replace(model, U=np.zeros_like(model.U))


@contextmanager
def indexed(engine: Engine, data: Collection, model: RankingModel) -> Iterator[str]:
    """Yield the name of an index of the documents with the model's fields; it is gone afterwards."""
    index = f"bench-e2e-{uuid.uuid4().hex[:8]}"
    with tempfile.TemporaryDirectory() as folder:
        load = LoadOptions(reject_path=Path(folder) / "rejects.jsonl", state_path=Path(folder))
        try:
            report = build_index(engine, index, data.docs, model, BuildOptions(load=load))
            if report.load.bulk.stopped is not None:
                raise report.load.bulk.stopped
            yield index
        finally:
            for name in engine.index_names(index):
                engine.delete_index(name)
            engine.bulk(CONTROL_INDEX, [WriteOp("delete", index)])


def body_of(kind: Mapping[str, Any], title: float) -> dict[str, Any]:
    """Return a search body: BM25 over title and text."""
    fields = [f"title^{title:g}", "text"]
    return {"query": {"multi_match": {"query": "{{query}}", "fields": fields, **kind}}, "_source": False}


def tuned_body(engine: Engine, index: str, topics: Sequence[Topic]) -> tuple[dict[str, Any], float]:
    """Return the body with the best mean nDCG@10 of the engine's own order, and that mean."""
    qrels = {str(n): dict(topic.grades) for n, topic in enumerate(topics)}
    found: list[tuple[float, dict[str, Any]]] = []
    for kind in KINDS:
        for title in TITLE_WEIGHTS:
            body = body_of(kind, title)
            run = {}
            for number, topic in enumerate(topics):
                answer = engine.search(index, {**fill_template(body, topic.query), "size": 10})
                run[str(number)] = [hit.id for hit in answer.hits]
            values = evaluate_run(qrels, run, ["nDCG@10"])["nDCG@10"]
            found.append((float(np.mean(list(values.values()))), body))
    value, body = max(found, key=lambda one: one[0])
    return body, value


def topics_of(data: Collection, queries: Sequence[str], limit: int | None) -> list[Topic]:
    """Return at most ``limit`` of the queries, drawn at random, as topics."""
    chosen = np.random.default_rng(0).permutation(sorted(queries))[:limit].tolist()
    return [Topic(data.texts[q], data.grades[q]) for q in chosen]


def pooled(fits: Sequence[Fit]) -> dict[str, Any]:
    """Return the alpha that is best over the queries of all folds, by `fit_alpha`'s rule, and the curve behind it."""
    n_queries = np.array([fit.n_queries for fit in fits], dtype=float)
    means = np.average([[mean for _, mean in fit.curve] for fit in fits], axis=0, weights=n_queries)
    errors = np.sqrt(n_queries**2 @ np.square([fit.errors for fit in fits])) / n_queries.sum()
    alphas = [alpha for alpha, _ in fits[0].curve]
    best = int(np.argmax(means))
    best = best if means[best] - means[0] > errors[best] else 0
    return {
        "alpha": alphas[best],
        "queries": int(n_queries.sum()),
        "engine": means[0],
        "best": means[best],
        "at_default": float(np.interp(DEFAULT_ALPHA, alphas, means)),
        "curve": [[round(a, 4), round(float(m), 4)] for a, m in zip(alphas, means, strict=True)],
    }


def rerank(reranker: Reranker, topics: Sequence[Topic], body: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """Return the engine's and the final order of each topic's window, and what else was seen."""
    before, after, milliseconds, fallbacks = {}, {}, [], 0
    for number, topic in enumerate(topics):
        started = time.perf_counter()
        page = reranker.search(topic.query, body, size=reranker.settings.window)
        milliseconds.append((time.perf_counter() - started) * 1000)
        fallbacks += page.fallback
        after[str(number)] = [hit.id for hit in page.hits]
        before[str(number)] = [hit.id for hit in sorted(page.hits, key=lambda hit: hit.first_stage_rank)]
    return before, after, {"fallbacks": fallbacks, "search_ms_p50": float(np.median(milliseconds))}


def compared(base: Values, values: Values) -> dict[str, float]:
    """Return the mean, and the gain over the base with its 95 % interval and the p of a paired t-test."""
    test = paired_test(values, base)
    half = 1.96 * test.standard_error
    return {
        "mean": float(values.mean()),
        "error": standard_error(values),
        "gain": test.difference,
        "low": test.difference - half,
        "high": test.difference + half,
        "p": test.p_t_test,
    }


def unjudged(run: Mapping[str, Sequence[str]], topics: Sequence[Topic]) -> float:
    """Return the share of hits among the first ten that nobody judged."""
    shown = [hit not in topic.grades for n, topic in enumerate(topics) for hit in run[str(n)][:10]]
    return float(np.mean(shown)) if shown else 0.0


def run_engine(spec: str, data: Collection, options: argparse.Namespace, models: Path) -> dict[str, Any]:
    """Return the figures of one engine on one set."""
    seen = data.side(test=False)
    folds = range(FOLDS.get(data.name, 1))
    fits: dict[str, list[Fit]] = {"model": [], "words alone": []}
    body: dict[str, Any] = {}
    figures: dict[str, Any] = {}
    settings = RerankSettings(window=options.window, deadline_ms=None)
    with tempfile.TemporaryDirectory() as folder:
        engine = open_engine(f"{spec}{folder}/index" if spec == "tantivy:" else spec)
        for part in folds:
            model = train(data, part, models, options.seed)
            with indexed(engine, data, model) as index:
                if not body:
                    body, value = tuned_body(engine, index, topics_of(data, seen, options.tuning))
                    figures |= {"body": body["query"]["multi_match"], "tuned_ndcg": value}
                held_out = topics_of(data, [q for q in seen if data.part(q) == part], options.calibration)
                for name, one in (("model", model), ("words alone", words_alone(model))):
                    reranker = Reranker(engine, index, one, settings=settings)
                    fits[name].append(fit_alpha(reranker, held_out, "nDCG@10", body))
        figures["calibration"] = {name: pooled(found) for name, found in fits.items()}
        model = train(data, None, models, options.seed)
        figures |= {"model_id": model.model_id, "trained_by": str(model.training["schedule"])}
        with indexed(engine, data, model) as index:
            topics = topics_of(data, data.side(test=True), options.test)
            figures |= tested(engine, index, model, topics, body, figures["calibration"], settings, data.name)
        engine.close()
    return figures


def tested(
    engine: Engine,
    index: str,
    model: RankingModel,
    topics: Sequence[Topic],
    body: Mapping[str, Any],
    calibration: Mapping[str, Any],
    settings: RerankSettings,
    name: str,
) -> dict[str, Any]:
    """Return the measures on the test queries."""
    qrels = {str(n): dict(topic.grades) for n, topic in enumerate(topics)}
    least = RELEVANT_FROM.get(name, 1.0)

    def measured(run: Mapping[str, Sequence[str]]) -> dict[str, Values]:
        values = evaluate_run(qrels, {q: ids[:200] for q, ids in run.items()}, ["nDCG@10", "RR"], least)
        return {m: np.array([v[str(n)] for n in range(len(topics))]) for m, v in values.items()}

    systems: dict[str, Any] = {}
    ways = {"words alone": words_alone(model), "model": model}
    base: dict[str, Values] = {}
    seen: dict[str, Any] = {}
    reached: dict[str, dict[str, Values]] = {}
    for way, one in ways.items():
        at = dataclasses.replace(settings, alpha=calibration[way]["alpha"])
        before, after, seen = rerank(Reranker(engine, index, one, settings=at), topics, body)
        base = measured(before)
        reached[way] = measured(after)
        for system, run, found in (("engine", before, base), (way, after, reached[way])):
            systems[system] = {m: compared(base[m], v) for m, v in found.items()}
            systems[system]["unjudged"] = unjudged(run, topics)
    over_words = {m: compared(reached["words alone"][m], v) for m, v in reached["model"].items()}
    perfect = {
        str(n): sorted(before[str(n)], key=lambda one, t=topic: -t.grades.get(one, 0.0))  # type: ignore[misc]
        for n, topic in enumerate(topics)
    }
    return {
        "test_queries": len(topics),
        "systems": systems,
        "model_over_words_alone": over_words,
        "ceiling_ndcg": float(measured(perfect)["nDCG@10"].mean()),
        "relevant_from": least,
        **seen,
    }


def parsed() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    data = Path(os.environ.get("SSI_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    results = Path(__file__).parent / "results"
    parser.add_argument("--engines", nargs="+", default=["tantivy:"], metavar="SPEC", help="tantivy: KIND:URL")
    parser.add_argument("--sets", nargs="+", default=["msrd_movies", "esci_sample", "insuranceqa"])
    parser.add_argument("--data", type=Path, default=data, help="folder of the sets")
    parser.add_argument("--window", type=int, default=200)
    parser.add_argument("--test", type=int, default=2_500, help="test queries at most")
    parser.add_argument("--calibration", type=int, default=1_000, help="queries a fold to fit alpha on, at most")
    parser.add_argument("--tuning", type=int, default=400, help="queries to tune BM25 on, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=Path, help="keep trained models here, and take those that are there")
    parser.add_argument("--small", action="store_true", help="300 queries and their documents, to try the script")
    parser.add_argument("--out", type=Path, default=results, help="folder of end_to_end.json and end_to_end.md")
    return parser.parse_args()


def main() -> None:
    """Run all sets through all engines; what an earlier call found of other sets and engines stays in the files."""
    options = parsed()
    options.out.mkdir(parents=True, exist_ok=True)
    head: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, OMP_NUM_THREADS {os.environ['OMP_NUM_THREADS']}",
        "window": options.window,
        "seed": options.seed,
        "small": options.small,
    }
    with tempfile.TemporaryDirectory() as work:
        for name in options.sets:
            data = read_collection(options.data / name, Path(work), options.small)
            for spec in options.engines:
                limits = {"tuning": options.tuning, "calibration": options.calibration}
                run = {"set": name, "engine": spec.partition(":")[0], "limits": limits}
                run |= run_engine(spec, data, options, options.models or Path(work))
                print(table({"runs": [run]}), flush=True)
                keep(options.out, head, run)


if __name__ == "__main__":
    main()
