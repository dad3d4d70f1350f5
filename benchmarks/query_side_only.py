"""Retraining the query side alone beside full retraining: quality kept, time and engine writes saved.

    python benchmarks/query_side_only.py [--engine SPEC] [--set NAME] [--impressions N] [--small] [--out FOLDER]

A base model learns from part of the judged training queries of a set in SSI_DATA (default: ``msrd_movies``; of the
linked pages of ``cppdocs`` the queries are the pages' beginnings, and what they link to is wanted), is indexed and goes
live. People then ask other training queries, look less at lower ranks of what the live model shows
(position-based, 1 / rank), and click what the judges call relevant with 0.8, and anything else with 0.1. From that log
`ssi retrain` learns twice, the index being put back in between: U and V, and U alone. Printed are

* the gate's difference to the live model on the newest fifth of the log,
* nDCG@10 of the served order on test queries that nobody has asked, beside the live model's, with the standard error of
  the difference,
* seconds of training and of publishing, and what was sent to the index (operations and bytes of the documents).
"""

from __future__ import annotations

import os

from provenance import write_results

os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import argparse
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from end_to_end_data import Collection, read_collection, read_linked_collection

from indexer.build import build_index
from indexer.versions import promote
from reranker.clicks.log import ClickLog
from reranker.clicks.simulator import LogPlan, PositionBased, attraction_of, simulate, tables_of
from reranker.engines import open_engine
from reranker.engines.protocol import Engine, WriteOp, WriteResult
from reranker.engines.wire import json_bytes
from reranker.evaluation import evaluate_run, paired_test
from reranker.models.model_folder import load_model, save_model
from reranker.models.ranking_model import RankingModel
from reranker.releases import CONTROL_INDEX
from reranker.retrain.loop import Retraining, folder_of
from reranker.retrain.result import RetrainResult
from reranker.retrain.served_ranks import ServedModel, ServingScores
from reranker.retrain.settings import RetrainSettings
from reranker.text.view import TextView
from reranker.training import DocumentSource, Listener, TrainConfig, from_judgements, train_model

INDEX = "query-side-only"
MEASURE = "nDCG@10"
SHOWN, WINDOW, BASE_PARTS, BATCH = 10, 100, 2, 500


class Counting:
    """An engine that counts what is written into other indexes than the record's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.operations = self.bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def bulk(self, index: str, ops: Sequence[WriteOp]) -> list[WriteResult]:
        """Count the operations and the bytes of their documents, and pass them on."""
        if index != CONTROL_INDEX:
            self.operations += len(ops)
            self.bytes += sum(len(json_bytes(op.source)) for op in ops if op.source is not None)
        return self._engine.bulk(index, ops)


@dataclass
class Site:
    """Documents in an engine, a live base model, and a click log over it."""

    engine: Engine
    data: Collection
    work: Path
    dim: int
    test: list[str]
    title_weight: float = 0.3
    models: Path = field(init=False)
    base: RankingModel = field(init=False)

    def __post_init__(self) -> None:
        self.models = self.work / "models"
        train = self.data.side(test=False)
        self.taught = [query for query in train if self.data.part(query) < BASE_PARTS]
        self.asked = [query for query in train if self.data.part(query) >= BASE_PARTS]

    def build(self) -> None:
        """Train the base model, index the documents with it, and make it live."""
        grades = {query: self.data.grades[query] for query in self.taught}
        corpus = DocumentSource(self.data.docs, TextView.parse([f"title^{self.title_weight}", "text^1"]))
        evidence = from_judgements(grades, self.data.texts)
        self.base, _ = train_model(corpus, evidence, TrainConfig(dim=self.dim))
        save_model(self.base, folder_of(self.models, self.base.model_id))
        build_index(self.engine, INDEX, self.data.docs, self.base)

    def log(self, impressions: int) -> ClickLog:
        """Return the log of people who ask what the base model was not taught."""
        texts = list(dict.fromkeys(self.data.texts[query] for query in self.asked))
        relevant = {self.data.texts[q]: {d for d, g in self.data.grades[q].items() if g > 0} for q in self.asked}
        served = ServingScores(self.engine, INDEX, [ServedModel(self.base, 0.5)]).rank_window(texts, WINDOW)
        pages = {
            text: [one.documents[place] for place in np.argsort(one.ranks[0])[:SHOWN].tolist()]
            for text, one in served.items()
        }
        texts = [text for text in texts if len(pages[text]) == SHOWN]
        ids = sorted({one for text in texts for one in pages[text]})
        number = {one: place for place, one in enumerate(ids)}
        lists = np.array([[number[one] for one in pages[text]] for text in texts])
        liked = np.array([[one in relevant[text] for one in pages[text]] for text in texts])
        plan = LogPlan(impressions=impressions, users=impressions // 5, randomised=0.05)
        attraction = attraction_of(liked, of_relevant=0.8, of_others=0.1)
        simulated = simulate(lists, attraction, PositionBased.power(SHOWN, 1.0), plan, np.random.default_rng(1))
        log = ClickLog(self.work / "log", create=True)
        log.add([tables_of(simulated, texts, ids)], "simulated")
        return log

    def retrain(self, log: ClickLog, *, query_side_only: bool) -> tuple[RetrainResult, Counting]:
        """Retrain from the base model, which is live."""
        engine = Counting(self.engine)
        models = self.work / f"models-{query_side_only}"
        shutil.copytree(self.models, models)
        settings = RetrainSettings(models, train=TrainConfig(dim=self.dim), query_side_only=query_side_only)
        result = Retraining(engine, INDEX, log, settings, listener=Listener(say=print)).run()
        promote(self.engine, INDEX, self.base.model_id)
        return result, engine

    def measure(self, models: Mapping[str, RankingModel]) -> dict[str, npt.NDArray[np.float64]]:
        """Return nDCG@10 of the served order of each model on the test queries."""
        topics = [query for query in self.data.side(test=True) if query in set(self.test)]
        rankers = [ServedModel(model, 0.5) for model in models.values()]
        texts = [self.data.texts[query] for query in topics]
        lists = ServingScores(self.engine, INDEX, rankers).rank_window(texts, WINDOW)
        qrels = {query: self.data.grades[query] for query in topics}
        found = {}
        for place, name in enumerate(models):
            run = {
                query: [lists[text].documents[n] for n in np.argsort(lists[text].ranks[place])[:SHOWN].tolist()]
                for query, text in zip(topics, texts, strict=True)
            }
            values = evaluate_run(qrels, run, [MEASURE])[MEASURE]
            found[name] = np.array([values[query] for query in topics])
        return found


def run(options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """Return all figures."""
    folder = options.data / options.set
    linked = (folder / "links_en.tsv.gz").is_file()
    data = (read_linked_collection if linked else read_collection)(folder, work, options.small)
    test = np.random.default_rng(0).permutation(sorted(data.side(test=True)))[: options.test].tolist()
    spec = f"tantivy:{work / 'index'}" if options.engine == "tantivy:" else options.engine
    engine = open_engine(spec)
    try:
        site = Site(engine, data, work, 16 if options.small else 100, test, 2.0 if linked else 0.3)
        site.build()
        log = site.log(options.impressions)
        rows, models = {}, {"live": site.base}
        for name, alone in (("query side", True), ("full", False)):
            result, written = site.retrain(log, query_side_only=alone)
            models[name] = load_model(result.model_path)
            rows[name] = {
                "outcome": result.outcome,
                "train_s": result.seconds["train"],
                "publish_s": result.seconds.get("publish", 0.0),
                "writes": written.operations,
                "written_bytes": written.bytes,
                "gate": result.verdict["measured"][0]["difference"] if result.verdict["measured"] else None,
                "preferences": result.data["pairs"],
            }
        values = site.measure(models)
        for name, row in rows.items():
            test_of = paired_test(values[name], values["live"])
            row |= {MEASURE: float(values[name].mean()), "gain": test_of.difference, "gain_se": test_of.standard_error}
        between = paired_test(values["query side"], values["full"])
        return {
            "set": data.name,
            "engine": spec.partition(":")[0],
            "documents": engine.count(INDEX),
            "small": options.small,
            "impressions": options.impressions,
            "test_queries": len(values["live"]),
            "live": float(values["live"].mean()),
            "runs": rows,
            "query_side_less_full": {"difference": between.difference, "se": between.standard_error},
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        }
    finally:
        for name in engine.index_names(INDEX):
            engine.delete_index(name)
        if engine.index_names(CONTROL_INDEX):
            engine.bulk(CONTROL_INDEX, [WriteOp("delete", INDEX)])
        engine.close()


def table(result: Mapping[str, Any]) -> str:
    """Return the figures as Markdown."""
    lines = [
        f"{result['set']}, {result['engine']}, {result['documents']:,} documents, {result['impressions']:,} "
        f"impressions; live model: {MEASURE} {result['live']:.4f} on {result['test_queries']:,} test queries",
        "",
        f"| retrained | gate | {MEASURE} | gain | training s | publishing s | writes | MB written |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, row in result["runs"].items():
        gate = row["gate"]
        shown = f"{row['outcome']} ({gate['estimate']:+.4f}, at least {gate['lower']:+.4f})" if gate else row["outcome"]
        lines.append(
            f"| {name} | {shown} | {row[MEASURE]:.4f} | {row['gain']:+.4f} ± {row['gain_se']:.4f} | "
            f"{row['train_s']:.1f} | {row['publish_s']:.2f} | {row['writes']:,} | {row['written_bytes'] / 1e6:.1f} |"
        )
    between = result["query_side_less_full"]
    lines += ["", f"query side - full: {between['difference']:+.4f} ± {between['se']:.4f}"]
    return "\n".join(lines)


def main() -> None:
    """Print the figures and keep them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    data = Path(os.environ.get("SSI_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    parser.add_argument("--engine", default="tantivy:", metavar="SPEC")
    parser.add_argument("--set", default="msrd_movies", help="folder of judged queries or linked documents in --data")
    parser.add_argument("--data", type=Path, default=data)
    parser.add_argument("--impressions", type=int, default=40_000)
    parser.add_argument("--test", type=int, default=1_000, help="test queries at most")
    parser.add_argument("--small", action="store_true", help="300 queries and their documents, to try the script")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        result = run(options, Path(work))
    print(table(result))
    options.out.mkdir(parents=True, exist_ok=True)
    write_results((options.out / "query_side_only.json"), result)


if __name__ == "__main__":
    main()
