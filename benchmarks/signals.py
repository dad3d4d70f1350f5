"""What signals (numbers of the documents) add beside alpha: movies with their own numbers, and a shop of known truth.

    OMP_NUM_THREADS=1 python benchmarks/signals.py [--sets movies shop] [--data DATA] [--seeds 0 1 2] [--small]
                                                   [--json FILE]

*movies*: DATA/msrd_movies with votes, rating, popularity and year. A model is trained on four parts of the training
queries, alpha and weights are fitted on the fifth (the same split as end_to_end.py), and test queries are searched on
the embedded engine, once by the trained model and once without what it has learned (lexical score only).

*shop*: products of 60 categories. A product is wanted for a query of category and attributes with a probability that
rises with the words that fit and with popularity, falls with the price, and rises for what is new, in stock and often
clicked; grades are drawn by it. 15 % of the products lack a number. The model is lexical. One shop a seed.

Fitted together: the signals that carry something (``own``), signals that carry nothing (``noise``: the movies' numbers
dealt out to other movies, a shop's numbers of no meaning), and both. Printed and kept, by search of new queries through
the reranker: nDCG@10 of the engine, of alpha only and with the signals; what these gain over alpha only, with 95 %
interval and p of a paired t-test; their weights; for the shop nDCG@10 of the true probabilities' own order; and how far
the probability of relevance by the score of the model only is off (`ssi calibrate --probability`).
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from end_to_end import compared, indexed, topics_of, words_alone
from end_to_end import train as trained
from end_to_end_data import Collection, read_collection

from reranker.engines import open_engine
from reranker.engines.protocol import Engine
from reranker.evaluation import evaluate_run
from reranker.models.ranking_model import RankingModel
from reranker.rerank import Calibration, Reranker, RerankSettings, body_hash
from reranker.rerank.calibration.alpha import Fit, fit_alpha
from reranker.rerank.calibration.topics import Topic
from reranker.rerank.signals import parse_signals, typed
from reranker.training import DocumentSource, TrainConfig, from_judgements, train_model

WINDOW = 200
BODY = {
    "query": {"multi_match": {"query": "{{query}}", "fields": ["title^2", "text"], "type": "most_fields"}},
    "_source": False,
}
MOVIES = {
    "own": "attrs.votes,attrs.rating,attrs.popularity,attrs.year",
    "noise": "dealt.votes,dealt.rating,dealt.popularity,dealt.year",
}
SHOP = {"own": "popularity,price:lower,released,stock,ctr", "noise": "batch,pallet:lower,counted"}
Row = dict[str, Any]


def searched(reranker: Reranker, topics: Sequence[Topic]) -> dict[str, list[str]]:
    """Return the first ten ids of each topic, by its place."""
    pages = (reranker.search(topic.query, BODY, size=10) for topic in topics)
    return {str(n): [hit.id for hit in page.hits] for n, page in enumerate(pages)}


def ndcg(topics: Sequence[Topic], run: Mapping[str, Sequence[str]]) -> Any:
    """Return nDCG@10 of each topic, (n,) float64."""
    values = evaluate_run({str(n): dict(topic.grades) for n, topic in enumerate(topics)}, run, ["nDCG@10"])["nDCG@10"]
    return np.array([values[str(n)] for n in range(len(topics))])


def study(
    engine: Engine,
    index: str,
    model: RankingModel,
    known: Sequence[Topic],
    new: Sequence[Topic],
    sets: Mapping[str, str],
) -> list[Row]:
    """Return a row a set of signals: fitted on known topics, searched for new ones."""
    settings = RerankSettings(window=WINDOW, deadline_ms=None)

    def fitted(names: str) -> tuple[Fit, Any]:
        signals = typed(parse_signals(names), engine, index) if names else ()
        reranker = Reranker(engine, index, model, settings=settings)
        fit = fit_alpha(reranker, known, "nDCG@10", BODY, signals=signals, probability=True)
        key = Calibration.key(body_hash(BODY), WINDOW)
        calibration = Calibration({key: fit.alpha}, {key: fit.weighted()})
        served = Reranker(engine, index, model, calibration=calibration, settings=settings)
        return fit, ndcg(new, searched(served, new))

    by_engine = Reranker(engine, index, model, settings=dataclasses.replace(settings, alpha=0.0))
    base = ndcg(new, searched(by_engine, new))
    without_signals, alpha_values = fitted("")
    rows: list[Row] = []
    for name, names in {**sets, "both": ",".join(sets.values())}.items():
        started = time.perf_counter()
        fit, values = fitted(names)
        weights = {one.signal.field: one.signal.weight for one in fit.signals}
        rows.append(
            {
                "signals": name,
                "queries": len(new),
                "engine": float(base.mean()),
                "alpha": without_signals.alpha,
                "alpha_alone": float(alpha_values.mean()),
                "with_signals": compared(alpha_values, values),
                "alpha_with": fit.alpha,
                "weights": weights,
                "weights_shown": shown(weights),
                "fitted_on": len(known),
                "expected_gain": fit.signals_gain.to_json() if fit.signals_gain else None,
                "probability": fit.probability.to_json() if fit.probability else None,
                "fit_seconds": round(time.perf_counter() - started, 1),
            }
        )
        row = rows[-1]["with_signals"]
        print(
            f"{name:6} engine {base.mean():.4f} alpha {without_signals.alpha:.2f}: {alpha_values.mean():.4f} "
            f"with signals {row['mean']:.4f} ({row['gain']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}], "
            f"p {row['p']:.2g}); {shown(weights)}",
            flush=True,
        )
    return rows


def shown(weights: Mapping[str, float]) -> str:
    """Return the weights in words."""
    return ", ".join(f"{name.partition('.')[2] or name} {weight:g}" for name, weight in weights.items())


def movies(folder: Path, work: Path, small: bool) -> list[Row]:
    """Return the rows of the movies, the lexical score first."""
    data = read_collection(folder, work, small)
    opened = gzip.open(data.docs, "rt", encoding="utf-8") if data.docs.suffix == ".gz" else data.docs.open()
    with opened as lines:
        documents = [json.loads(line) for line in lines]
    dealt = np.random.default_rng(0).permutation(len(documents)).tolist()
    for document, other in zip(documents, dealt, strict=True):
        document["dealt"] = documents[other]["attrs"]
    path = work / "movies.jsonl"
    path.write_text("".join(f"{json.dumps(document)}\n" for document in documents), encoding="utf-8")
    data = dataclasses.replace(data, docs=path)
    model = trained(data, 0, work, 0)
    known = topics_of(data, [q for q in data.side(test=False) if data.part(q) == 0], None)
    new = topics_of(data, data.side(test=True), 2_500)
    engine = open_engine(f"tantivy:{work / 'movies'}")
    rows: list[Row] = []
    with indexed(engine, data, model) as index:
        for way, one in (("words alone", words_alone(model)), ("trained", model)):
            rows += [{"set": "movies", "model": way, **row} for row in study(engine, index, one, known, new, MOVIES)]
    engine.close()
    return rows


def made_shop(rng: np.random.Generator, work: Path, small: bool) -> tuple[Collection, dict[str, dict[str, float]]]:
    """Return a shop with its queries and grades, and by query the true probability that a product is wanted."""
    n_products, n_queries = (1_800, 450) if small else (6_000, 1_200)
    category, attributes = rng.integers(0, 60, n_products), rng.integers(0, 8, (n_products, 3))
    numbers = {
        "popularity": np.floor(rng.pareto(0.8, n_products) * 10),
        "price": rng.lognormal(3.0, 1.0, n_products),
        "age": rng.uniform(0, 1500, n_products),
        "stock": rng.random(n_products) < 0.8,
    }
    rank = {name: (np.argsort(np.argsort(values)) + 0.5) / n_products for name, values in numbers.items()}
    taste = 1.5 * rank["popularity"] - 1.5 * rank["price"] - 1.0 * rank["age"] + 1.0 * numbers["stock"]
    shown_to = rng.integers(0, 400, n_products)
    clicked = rng.binomial(shown_to, 0.3 / (1 + np.exp(-(taste + rng.normal(0, 0.7, n_products)))))
    noise = rng.pareto(1.0, (n_products, 3))
    documents = []
    for p in range(n_products):
        first, *others = [f"trait{category[p]}x{one}" for one in attributes[p]]
        text = " ".join([*others, *(f"w{one}" for one in rng.integers(0, 400, 15))])
        document: dict[str, Any] = {
            "id": f"p{p}",
            "title": f"kind{category[p]} {first}",
            "text": text,
            "batch": float(noise[p, 0]),
            "pallet": float(noise[p, 1]),
            "counted": float(noise[p, 2]),
            # Smoothed by the mean rate, as a shop would: a product that nobody saw has that.
            "ctr": float((clicked[p] + 5) / (shown_to[p] + 30)),
            "stock": bool(numbers["stock"][p]),
        }
        if rng.random() > 0.15:
            day = np.datetime64("2026-01-01") - np.timedelta64(int(numbers["age"][p]), "D")
            document |= {
                "popularity": float(numbers["popularity"][p]),
                "price": float(numbers["price"][p]),
                "released": int(day.astype("datetime64[ms]").astype(np.int64)),
            }
        documents.append(document)
    path = work / "shop.jsonl"
    path.write_text("".join(f"{json.dumps(document)}\n" for document in documents), encoding="utf-8")
    texts, grades, truth = {}, {}, {}
    for q in range(n_queries):
        kind, wanted = int(rng.integers(0, 60)), rng.integers(0, 8, 2)
        inside = np.flatnonzero(category == kind)
        fits = (attributes[inside][:, :, None] == wanted).any(axis=1).mean(axis=1)
        chance = 1 / (1 + np.exp(-(taste[inside] - np.median(taste) + 3.0 * fits - 3.5)))
        drawn = rng.random(len(inside)) < chance
        if drawn.any():
            name = f"q{q}"
            texts[name] = f"kind{kind} " + " ".join(f"trait{kind}x{one}" for one in wanted)
            grades[name] = {f"p{p}": float(g) for p, g in zip(inside.tolist(), drawn.tolist(), strict=True)}
            truth[name] = {f"p{p}": float(c) for p, c in zip(inside.tolist(), chance.tolist(), strict=True)}
    return Collection("shop", path, texts, grades), truth


def shop(seed: int, work: Path, small: bool) -> list[Row]:
    """Return the rows of one shop."""
    data, truth = made_shop(np.random.default_rng(seed), work, small)
    names = sorted(data.grades, key=lambda name: int(name[1:]))
    third = len(names) // 3
    taught, known, new = names[:third], names[third : 2 * third], names[2 * third :]
    evidence = from_judgements({q: data.grades[q] for q in taught}, data.texts)
    config = TrainConfig(memory="off", seed=seed)
    model, _ = train_model(DocumentSource(data.docs), evidence, config)
    to_fit, to_search = ([Topic(data.texts[q], data.grades[q]) for q in some] for some in (known, new))
    best = {str(n): sorted(truth[q], key=lambda d, of=truth[q]: -of[d])[:10] for n, q in enumerate(new)}  # type: ignore[misc]
    reachable = float(ndcg(to_search, best).mean())
    engine = open_engine(f"tantivy:{work / 'index'}")
    with indexed(engine, data, model) as index:
        rows = study(engine, index, model, to_fit, to_search, SHOP)
    engine.close()
    return [{"set": f"shop {seed}", "model": "lexical", **row, "true_order": reachable} for row in rows]


def main() -> None:
    """Run the sets and keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    data = Path(os.environ.get("SSI_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--sets", nargs="+", default=["movies", "shop"], choices=["movies", "shop"])
    parser.add_argument("--data", type=Path, default=data, help="folder of msrd_movies")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one shop each")
    parser.add_argument("--small", action="store_true", help="few queries, to try the script")
    parser.add_argument("--json", type=Path, help="keep the figures here")
    options = parser.parse_args()
    rows: list[Row] = []
    if "movies" in options.sets:
        with tempfile.TemporaryDirectory() as work:
            rows += movies(options.data / "msrd_movies", Path(work), options.small)
    for seed in options.seeds if "shop" in options.sets else ():
        with tempfile.TemporaryDirectory() as work:
            rows += shop(seed, Path(work), options.small)
    if options.json:
        write_results(options.json, {"small": options.small, "window": WINDOW, "rows": rows})


if __name__ == "__main__":
    main()
