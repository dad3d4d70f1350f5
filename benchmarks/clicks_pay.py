"""What a shop gains from its clicks: `ssi retrain` on simulated logs of repeated queries, with the gate's decision.

    OMP_NUM_THREADS=1 python benchmarks/clicks_pay.py --json benchmarks/results/clicks_pay.json [--seeds 20]
        [--cases 1000,5000,14000,...]

The shop has 10,000 products of 40 kinds in the embedded engine, and a model trained on judgments of 150 other queries,
which is live with its default alpha. 260 queries are asked, some more often than others (popularity 0.8), in the order
of their number; 40 of them only in the newest fifth of the log, so that they are new to every model. A result page has
the first ten products. A product attracts (is clicked once examined) by the words that it shares with the query, and by
an appeal to those who ask it that no text tells. People examine rank r with the probability 1, .57, .42, .33 …
(`PositionBased`), or behave as `Cascade` and `DynamicBayesian`; a fifth of the lists is shuffled and marked; a log has
21 days and a person for every four impressions.

For each seed (with its own appeals and log) and case, nDCG@10 by the true attraction over the lists shown in the
newest fifth, weighed by how often they were asked, for repeated and new queries apart:

- ``live``: the order of the live model;
- ``served``: that of the new model if the gate promotes it, else the live one;
- ``candidate``: that of the new model, promoted or not;
- ``click rate``: clicks / examinations of each product of a query before the newest fifth, with the true examination,
  smoothed by two examinations at the mean rate; never judged by a gate;
- ``counts``: signals boosting, the live score plus ln(1 + clicks).

Cases: numbers of impressions; ``cascade`` and ``dbn`` (14,000 impressions of other people); ``small`` (14,000, products
attract nearly as their live score says, so that little is to be gained); ``noise`` (5,000, clicks ignore the product);
``nothing`` (5,000, products attract as their live score says); ``robots`` (5,000, of which 30 % are those of five
people who click at random and often); ``lasting`` and ``changing`` (14,000 in 360 days instead of 21, with the same
appeals throughout, or with others from day 180 on).

A row that is in FILE with the same program is not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import numpy.typing as npt
from provenance import program_of, write_results

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from indexer.build import BuildOptions, build_index
from reranker.clicks.log import ClickLog
from reranker.clicks.simulator import (
    Cascade,
    ClickModel,
    DynamicBayesian,
    LogPlan,
    PositionBased,
    SimulatedLog,
    simulate,
    tables_of,
)
from reranker.engines import open_engine
from reranker.engines.protocol import Engine
from reranker.models.model_folder import load_model, save_model
from reranker.models.ranking_model import RankingModel
from reranker.rerank.calibration.kept import DEFAULT
from reranker.retrain.loop import Retraining, folder_of
from reranker.retrain.served_ranks import ServedModel, ServingScores
from reranker.retrain.settings import RetrainSettings
from reranker.training import DocumentSource, Listener, TrainConfig, from_judgements, train_model

Values = npt.NDArray[np.float64]
EXAMINATION: Final = (1.0, 0.57, 0.42, 0.33, 0.28, 0.24, 0.21, 0.19, 0.17, 0.16)
N_PRODUCTS, N_KINDS, N_WORDS, N_QUERIES, N_NEW, N_SHOWN = 10_000, 40, 30, 260, 40, 10
NEWEST, DAYS, LONG_DAYS, SHUFFLED, POPULARITY = 0.2, 21.0, 360.0, 0.2, 0.8
DISCOUNT = 1.0 / np.log2(np.arange(2, N_SHOWN + 2))
CASES: Final = ("1000", "5000", "14000", "cascade", "dbn", "small", "noise", "nothing", "robots", "lasting", "changing")


@dataclass(frozen=True)
class Shop:
    """An index of products, the live model, the queries, and the page that each of them shows."""

    engine: Engine
    models: Path
    live: RankingModel
    queries: list[str]
    pages: npt.NDArray[np.str_]
    """(n_queries, N_SHOWN): ids in the live order."""
    scores: Values
    """The live model's scores of the pages."""
    relevance: Values
    """Share of the query's words that stand in each product of a page."""

    @classmethod
    def made(cls, folder: Path) -> Shop:
        """Return the shop in a new folder, always with the same products."""
        rng = np.random.default_rng(5)
        products, attributes = _products(rng)
        path = folder / "products.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for identifier, source in products.items():
                file.write(json.dumps({"id": identifier, **source}) + "\n")
        queries = _queries(rng, N_QUERIES + 150)
        words = [set(query.split()) for query in queries]
        names = list(products)
        grades = {
            f"j{number}": {
                names[place]: float(len(words[number] & attributes[place]) == len(words[number]))
                for place in rng.choice(N_PRODUCTS, 400, replace=False).tolist()
                if words[number] & attributes[place]
            }
            for number in range(N_QUERIES, len(queries))
        }
        texts = {f"j{number}": queries[number] for number in range(N_QUERIES, len(queries))}
        live, _ = train_model(DocumentSource(path), from_judgements(grades, texts), TrainConfig())
        models = folder / "models"
        save_model(live, folder_of(models, live.model_id))
        engine = open_engine(f"tantivy:{folder / 'index'}")
        build_index(engine, "shop", path, live, BuildOptions())
        asked = queries[:N_QUERIES]
        scores = ServingScores(engine, "shop", [ServedModel(live, DEFAULT.value)])
        lists = scores.rank_window(asked, 100)
        tops = [lists[query].top(0, N_SHOWN) for query in asked]
        of_page = [dict(zip(lists[q].documents, lists[q].scores[0].tolist(), strict=True)) for q in asked]
        place_of = {name: place for place, name in enumerate(names)}
        shared = [
            [len(words[number] & attributes[place_of[one]]) / len(words[number]) for one in top]
            for number, top in enumerate(tops)
        ]
        values = [[of_page[number][one] for one in top] for number, top in enumerate(tops)]
        return cls(engine, models, live, asked, np.array(tops), np.array(values), np.array(shared))


def _products(rng: np.random.Generator) -> tuple[dict[str, dict[str, str]], list[set[str]]]:
    products, attributes = {}, []
    for number in range(N_PRODUCTS):
        kind = number % N_KINDS
        own = {f"kind{kind}", *(f"kind{kind}has{one}" for one in rng.integers(0, N_WORDS, 4))}
        fillers = [f"filler{one}" for one in rng.integers(0, 500, 12)]
        attributes.append(own)
        products[f"p{number:05}"] = {"title": " ".join(sorted(own)), "text": " ".join(fillers)}
    return products, attributes


def _queries(rng: np.random.Generator, n: int) -> list[str]:
    queries: dict[str, None] = {}
    while len(queries) < n:
        kind = int(rng.integers(N_KINDS))
        more = rng.choice(N_WORDS, int(rng.integers(0, 3)), replace=False).tolist()
        queries[" ".join([f"kind{kind}", *(f"kind{kind}has{one}" for one in sorted(more))])] = None
    return list(queries)


def attraction_of(shop: Shop, case: str, rng: np.random.Generator) -> Values:
    """Return P(click | examined) of the products of each page."""
    if case == "noise":
        return np.full(shop.relevance.shape, 0.2)
    if case == "nothing":
        z = shop.scores - shop.scores.mean(axis=1, keepdims=True)
        z += np.linspace(0.1, -0.1, N_SHOWN) * max(float(shop.scores.std()), 1.0)  # ties are in the live order too
        return as_scored(z)
    if case == "small":
        z = shop.scores - shop.scores.mean(axis=1, keepdims=True)
        return as_scored(z + 0.5 * z.std() * rng.standard_normal(z.shape))
    appeal = rng.beta(0.8, 2.5, shop.relevance.shape)
    attraction: Values = np.clip(shop.relevance * appeal, 0.005, 0.95)
    return attraction


def as_scored(z: Values) -> Values:
    """Return attractions that rise with scores."""
    attraction: Values = np.clip(0.15 * np.exp(z / max(float(z.std()), 1e-9) * 0.7), 0.01, 0.95)
    return attraction


def log_of(shop: Shop, case: str, attraction: Values, rng: np.random.Generator) -> SimulatedLog:
    """Return the log of a case, ordered by time; the last `N_NEW` queries are asked in the newest fifth only."""
    n = int(case) if case.isdigit() else 5_000 if case in ("noise", "nothing", "robots") else 14_000
    all_days = LONG_DAYS if case in ("lasting", "changing") else DAYS
    before = attraction_of(shop, case, rng) if case == "changing" else attraction
    readers: Mapping[str, ClickModel] = {"cascade": Cascade(), "dbn": DynamicBayesian()}
    people = readers.get(case, PositionBased(EXAMINATION))
    numbers = np.arange(shop.pages.size).reshape(shop.pages.shape)
    known, parts = N_QUERIES - N_NEW, []
    for first, share, queries, attracts in (
        (0.0, 0.5, known, before),
        (0.5, 0.5 - NEWEST, known, attraction),
        (1 - NEWEST, NEWEST, N_QUERIES, attraction),
    ):
        days = all_days * share
        plan = LogPlan(round(n * share), users=n // 4, popularity=POPULARITY, randomised=SHUFFLED, days=days)
        # Queries are dealt to ranks of popularity, so that new ones are not the rarest.
        order = np.random.default_rng(7).permutation(N_QUERIES)
        order = order[order < queries]
        part = simulate(numbers[order], attracts[order], people, plan, rng)
        shift = round(all_days * first * 86_400_000)
        parts.append(replace(part, query=order[part.query], time=part.time + shift))
    joined = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("query", "shown", "looked", "clicked", "user", "time", "randomised")
    }
    if case == "robots":
        robot = rng.random(n) < 0.3
        joined["user"] = np.where(robot, n + rng.integers(0, 5, n), joined["user"])
        joined["clicked"] = np.where(robot[:, None], rng.random(joined["clicked"].shape) < 0.6, joined["clicked"])
    return SimulatedLog(**joined)


def values_of(order: Values, attraction: Values, weight: Values) -> float:
    """Return the mean nDCG@10 of pages by the true attraction, given their scores and how often each was asked."""
    ranked = np.take_along_axis(attraction, np.argsort(-order, axis=1, kind="stable"), axis=1) @ DISCOUNT
    best = -np.sort(-attraction, axis=1) @ DISCOUNT
    return float((ranked / best) @ weight / weight.sum()) if weight.sum() else float("nan")


def ranks_of(shop: Shop, model: RankingModel) -> Values:
    """Return minus the rank of the products of each page in a model's order."""
    scores = ServingScores(shop.engine, "shop", [ServedModel(model, DEFAULT.value)])
    pages = [page.tolist() for page in shop.pages]
    lists = scores.rank_shown(dict(zip(shop.queries, pages, strict=True)))
    rows = []
    for query, page in zip(shop.queries, pages, strict=True):
        rank = dict(zip(lists[query].documents, lists[query].ranks[0].tolist(), strict=True))
        rows.append([-float(rank.get(one, N_SHOWN + 1)) for one in page])
    return np.array(rows)


def counted(log: SimulatedLog, until: int) -> tuple[Values, Values]:
    """Return clicks and true examinations of the products of each page in the older part, (n_queries, N_SHOWN)."""
    clicks, examined = np.zeros((2, N_QUERIES * N_SHOWN))
    np.add.at(clicks, log.shown[:until], log.clicked[:until])
    np.add.at(examined, log.shown[:until], np.broadcast_to(EXAMINATION, log.shown[:until].shape))
    return clicks.reshape(N_QUERIES, N_SHOWN), examined.reshape(N_QUERIES, N_SHOWN)


def row_of(shop: Shop, case: str, seed: int, folder: Path) -> dict[str, Any]:
    """Simulate a log, retrain on it, and compare the orders."""
    rng = np.random.default_rng([seed, CASES.index(case)])
    attraction = attraction_of(shop, case, rng)
    log = log_of(shop, case, attraction, rng)
    kept = ClickLog(folder / "log", create=True)
    kept.add([tables_of(log, shop.queries, shop.pages.ravel().tolist())], "simulated")
    settings = RetrainSettings(models=shop.models, dry_run=True, train=TrainConfig(seed=seed))
    started = time.perf_counter()
    said: list[str] = []
    result = Retraining(shop.engine, "shop", kept, settings, listener=Listener(said.append)).run()
    seconds = time.perf_counter() - started
    new = load_model(result.model_path, shop.engine)
    until = len(log) - round(len(log) * NEWEST)
    clicks, examined = counted(log, until)
    rate = 2.0 * clicks.sum() / examined.sum()
    live = ranks_of(shop, shop.live)
    by_new = ranks_of(shop, new)
    orders = {
        "live": live,
        "served": by_new if result.outcome == "would promote" else live,
        "candidate": by_new,
        "click rate": (clicks + rate) / (examined + 2.0),
        "counts": shop.scores + np.log1p(clicks),
    }
    asked = np.bincount(log.query[until:], minlength=N_QUERIES).astype(np.float64)
    is_new = np.arange(N_QUERIES) >= N_QUERIES - N_NEW
    weights = {"all": asked, "repeated": np.where(is_new, 0.0, asked), "new": np.where(is_new, asked, 0.0)}
    return {
        "case": case,
        "seed": seed,
        "outcome": result.outcome,
        "reason": result.reason,
        "repeated queries": 0 if new.repeated is None else len(new.repeated),
        "same words": new.encoder_id == shop.live.encoder_id,
        "seconds": round(seconds, 1),
        "nDCG@10": {
            name: {of: round(values_of(order, attraction, weight), 4) for of, weight in weights.items()}
            for name, order in orders.items()
        },
    }


def summary(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the means of each case over its seeds."""
    for case in CASES:
        of = [row for row in rows if row["case"] == case]
        if not of:
            continue
        promoted = [row for row in of if row["outcome"] == "would promote"]
        worse = [row for row in promoted if row["nDCG@10"]["served"]["all"] < row["nDCG@10"]["live"]["all"]]
        names = list(of[0]["nDCG@10"])
        yield {
            "case": case,
            "logs": len(of),
            "promoted": len(promoted),
            "although worse": len(worse),
            "seconds": round(float(np.mean([row["seconds"] for row in of])), 1),
            **{
                f"{name}, {part}": round(float(np.mean([row["nDCG@10"][name][part] for row in of])), 4)
                for name in names
                for part in ("all", "repeated", "new")
            },
        }


def main() -> None:
    """Measure the rows that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    options = parser.parse_args()
    program, rows = program_of(Path(__file__)), []
    if options.json and options.json.exists():
        rows = [row for row in json.loads(options.json.read_text())["rows"] if row["program"] == program]
    done = {(row["case"], row["seed"]) for row in rows}
    with tempfile.TemporaryDirectory(prefix="clicks-pay-") as folder:
        shop = Shop.made(Path(folder))
        with closing(shop.engine):
            for seed in range(options.seeds):
                for case in options.cases.split(","):
                    if (case, seed) in done:
                        continue
                    with tempfile.TemporaryDirectory(prefix="clicks-pay-") as work:
                        row = {**row_of(shop, case, seed, Path(work)), "program": program}
                    rows.append(row)
                    values = {name: one["all"] for name, one in row["nDCG@10"].items()}
                    print(f"{case:8} seed {seed:2}  {row['outcome']:13} {row['seconds']:5.1f} s  {values}", flush=True)
                    print(f"    {row['reason']}", flush=True)
                    if options.json:
                        write_results(options.json, {"summary": list(summary(rows)), "rows": rows})
    for line in summary(rows):
        print(json.dumps(line))


if __name__ == "__main__":
    main()
