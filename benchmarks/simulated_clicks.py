"""What position bias costs, and what inverse propensity weights win back, on clicks whose truth is known.

    OMP_NUM_THREADS=1 python benchmarks/simulated_clicks.py DATA [--sites msrd_movies cppdocs] [--seeds 0 1 2]
        [--readers pbm:1 pbm:2 cascade] [--searches 60] [--small] [--json FILE]

DATA holds msrd_movies (judged movie searches) and cppdocs (documentation: a page's beginning asks, wanted are its
links). Each asked query has a result page of ten in an arbitrary order that stays, as of a poor live ranking; a share
of 5 % of the searches sees it shuffled, and the log says so. Readers are position-based with p = rank**-eta
(``pbm:ETA``) or follow a cascade; they click what is relevant, and with probability 0.1 what is not (Joachims,
Swaminathan, Schnabel 2017). From the log, as `ssi clicks` would: propensities (``auto``), then pairs "clicked over
unclicked", all clicks alike (naive) or each weighed by 1 / propensity of its rank (IPS). ``labels`` are the truth of
the same pages as pairs. Models differ in their pairs alone: fields, settings and the judged validation queries that
training stops by are the same. MAP is over all documents, of queries that nobody asked and, beside it, of asked ones.

Printed for each seed and in the mean: the gap between naive and labels, the part of it that IPS closes, and how far the
propensities are from the truth.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from simulated_data import SITES, Site

from reranker.clicks.log import ClickLog
from reranker.clicks.pairs import PairConfig, Resources, make_pairs
from reranker.clicks.propensities import Propensities, count_log, estimate_propensities
from reranker.clicks.simulator import Cascade, ClickModel, LogPlan, PositionBased, SimulatedLog
from reranker.errors import ConfigError
from reranker.evaluation import paired_test
from reranker.models.ranking_model import RankingModel
from reranker.training import Listener, TrainConfig, TrainingSet, from_pairs, train_model

PAGE, RANDOMISED, STRATEGY, SEEN = 10, 0.05, "clicked-over-unclicked", 1_000


def reader_of(name: str) -> ClickModel:
    """Return the click model of ``pbm:ETA`` or ``cascade``."""
    kind, _, eta = name.partition(":")
    if kind == "pbm" and eta:
        return PositionBased.power(PAGE, float(eta))
    if name == "cascade":
        return Cascade()
    raise ConfigError(f"reader {name!r}: choose pbm:ETA or cascade")


def learned(site: Site, evidence: TrainingSet, seed: int) -> RankingModel:
    """Return the model of some evidence; everything else is the same for all.

    Nothing is remembered: a pair counts at most once in a memory, however heavy, and the study asks of weights.
    """
    config = TrainConfig(seed=seed, memory="off")
    valid = site.labels(site.valid)
    model, report = train_model(site.corpus, evidence, config, valid=valid, listener=Listener())
    print(f"  trained: best epoch {report.result.best_epoch}, validation {report.valid_map:.4f}", file=sys.stderr)
    return model


def evidence_of(log: ClickLog, propensities: tuple[float, ...] | None, clip: float) -> tuple[TrainingSet, int]:
    """Return the pairs of a log, with weights where propensities are given, and their number."""
    config = PairConfig(strategy=STRATEGY, propensities=propensities, clip=clip)
    with make_pairs(log, config, resources=Resources(threads=1)) as table:
        return from_pairs(table.pairs()), len(table)


def truth_of(log: SimulatedLog, reader: ClickModel) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the examination of each rank: as the reader is, or as it came about."""
    return np.array(reader.examination) if isinstance(reader, PositionBased) else log.examination


def measured(site: Site, model: RankingModel) -> dict[str, Any]:
    """Return AP of each test query, and the mean over some asked ones."""
    return {"AP": site.evaluate(model, site.test), "asked": float(site.evaluate(model, site.asked[:SEEN]).mean())}


def run_reader(
    site: Site, name: str, labels: dict[str, Any], seed: int, options: argparse.Namespace, work: Path
) -> dict[str, Any]:
    """Return the figures of one kind of reader."""
    reader = reader_of(name)
    rng = np.random.default_rng([seed, len(name)])
    clicks = site.clicks(reader, LogPlan(options.searches * len(site.asked), randomised=RANDOMISED), rng)
    log = site.keep(clicks, work / name.replace(":", "-"))
    found: Propensities = estimate_propensities(count_log(log))
    truth = truth_of(clicks, reader)
    used = min(len(found.by_rank), len(truth))
    off = np.abs(np.array(found.by_rank[:used]) / truth[:used] - 1)
    result: dict[str, Any] = {
        "site": site.name,
        "reader": name,
        "seed": seed,
        "searches": len(clicks),
        "clicks": int(clicks.clicked.sum()),
        "propensities": found.to_json(),
        "truth": truth.tolist(),
        "propensities_off": float(off.max()),
        "labels": {"MAP": float(labels["AP"].mean()), "asked": labels["asked"]},
    }
    values = {}
    for way, propensities in (("naive", None), ("IPS", found.by_rank)):
        evidence, n_pairs = evidence_of(log, propensities, options.clip)
        one = measured(site, learned(site, evidence, seed))
        values[way] = one["AP"]
        result[way] = {"MAP": float(one["AP"].mean()), "asked": one["asked"], "pairs": n_pairs}
    result["p"] = paired_test(values["IPS"], values["naive"], rng).p_t_test
    result["gap"] = result["labels"]["MAP"] - result["naive"]["MAP"]
    result["closed"] = (result["IPS"]["MAP"] - result["naive"]["MAP"]) / result["gap"]
    return result


def line(result: dict[str, Any]) -> str:
    """Return a row of the table."""
    maps = " | ".join(f"{result[way]['MAP']:.4f} ({result[way]['asked']:.4f})" for way in ("naive", "IPS", "labels"))
    return (
        f"| {result['site']} | {result['reader']} | {result['seed']} | {result['clicks']:,} | {maps} | "
        f"{result['gap']:+.4f} | {result['closed']:.0%} | {result['p']:.1g} | {result['propensities']['method']}, "
        f"{result['propensities_off']:.1%} |"
    )


def means(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return, for each site and reader, the means over seeds and the part of the mean gap that IPS closes."""
    found = []
    for site, reader in dict.fromkeys((one["site"], one["reader"]) for one in results):
        of = [one for one in results if (one["site"], one["reader"]) == (site, reader)]
        mean = {way: float(np.mean([one[way]["MAP"] for one in of])) for way in ("naive", "IPS", "labels")}
        gap = mean["labels"] - mean["naive"]
        found.append(
            {
                "site": site,
                "reader": reader,
                "seeds": len(of),
                **mean,
                "gap": gap,
                "closed": (mean["IPS"] - mean["naive"]) / gap,
            }
        )
    return found


def run_site(name: str, seed: int, options: argparse.Namespace, keep: Any) -> None:
    """Run all kinds of readers on a site; ``keep`` takes each result."""
    with tempfile.TemporaryDirectory() as work_name:
        work = Path(work_name)
        n_asked = 150 if options.small else options.queries
        site = SITES[name](options.data / name, work, n_asked=n_asked, page=PAGE, seed=seed, small=options.small)
        labels = measured(site, learned(site, site.labels(site.asked, shown_only=True), seed))
        for reader in options.readers:
            started = time.perf_counter()
            result = run_reader(site, reader, labels, seed, options, work)
            keep({**result, "seconds": round(time.perf_counter() - started, 1)})


def main() -> None:
    """Print a row a run and the means, and write everything as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--sites", nargs="+", choices=list(SITES), default=list(SITES))
    parser.add_argument("--readers", nargs="+", default=["pbm:1", "pbm:2", "cascade"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--queries", type=int, default=2_500, help="asked")
    parser.add_argument("--searches", type=int, default=60, help="a query")
    parser.add_argument("--clip", type=float, default=100.0, help="most that a click weighs")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: list[dict[str, Any]] = []

    def keep(result: dict[str, Any]) -> None:
        results.append(result)
        print(line(result), flush=True)
        if options.json:
            head = {
                "python": platform.python_version(),
                "queries": options.queries,
                "searches": options.searches,
                "page": PAGE,
                "randomised": RANDOMISED,
                "strategy": STRATEGY,
                "clip": options.clip,
                "small": options.small,
            }
            write_results(options.json, {**head, "means": means(results), "runs": results})

    print(
        "| site | reader | seed | clicks | naive: MAP (asked) | IPS | labels | gap | closed | p of IPS over naive | "
        "propensities, off by |\n" + "|" + "---|" * 11
    )
    for name in options.sites:
        for seed in options.seeds:
            run_site(name, seed, options, keep)
    for one in means(results):
        print(
            f"{one['site']}, {one['reader']}, {one['seeds']} seeds: naive {one['naive']:.4f}, IPS {one['IPS']:.4f}, "
            f"labels {one['labels']:.4f}: IPS closes {one['closed']:.0%} of {one['gap']:.4f}"
        )


if __name__ == "__main__":
    main()
