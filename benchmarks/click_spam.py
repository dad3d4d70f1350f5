"""Fake clicks against a click log: what they do to the ranking, with and without the rules against them.

    OMP_NUM_THREADS=1 python benchmarks/click_spam.py DATA/msrd_movies [--seeds 0 1 2] [--small] [--json FILE]

People search and click (position-based, p = 1 / rank) on a site whose truth is known. Then come, each to push one
irrelevant document of one query:

- one user with 5,000 clicks, in 100 sessions over a week;
- 100 bots with 50 clicks each, every one a user of its own, ten seconds between clicks;
- 500 headless browsers with a click each, which say so in their user agent;
- 40 sessions that click a result a second, 60 in all, the pushed document with every fifth.

Models are trained on the pairs (default strategy) of the clean log and of the whole log, with the default rules of
`PairConfig` and with none (`PairConfig.unprotected`). Printed: nDCG@10 on queries that nobody asked, the rank of the
pushed documents for their queries among all documents, and the share of spam sessions and of people taken for robots.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provenance import write_results

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from simulated_data import SITES, Site

from reranker.baselines.comparison import read_corpus
from reranker.clicks.log import ClickLog
from reranker.clicks.pairs import LogFiles, LogTask, PairConfig, Resources, make_pairs, prepared
from reranker.clicks.schema import DAY_MS
from reranker.clicks.simulator import START_MS, LogPlan, PositionBased
from reranker.models.ranking_model import RankingModel
from reranker.records import Pair
from reranker.text.rows import inner_products
from reranker.training import TrainConfig, from_pairs, train_model

PAGE, DAYS = 10, 7
Tables = dict[str, dict[str, list[Any]]]


@dataclass(frozen=True)
class Attack:
    """One kind of spam: ``clicks`` of each of ``users`` in ``sessions``, ``gap_s`` apart, pushing every ``push``-th."""

    name: str
    users: int
    clicks: int
    sessions: int = 1
    gap_s: float = 10.0
    push: int = 1
    agent: str = ""


ATTACKS = (
    Attack("one user", 1, 5_000, sessions=100, gap_s=8.0),
    Attack("100 bots", 100, 50),
    Attack("headless", 500, 1, agent="HeadlessChrome"),
    Attack("a click a second", 40, 60, gap_s=1.0, push=5),
)


@dataclass(frozen=True)
class Target:
    """The query (number and id) whose document is pushed; it stands last on the page and is not relevant."""

    row: int
    query: str
    document: str


def targets_of(site: Site) -> list[Target]:
    """Return one target an attack: among the first asked queries, those whose last document is irrelevant."""
    found = []
    for row, query in enumerate(site.asked):
        last = site.pages[query][-1]
        if len(site.pages[query]) >= min(PAGE, 5) and site.grades[query].get(last, 0) <= 0:
            found.append(Target(row, query, last))
    return found[: len(ATTACKS)]


def spam(site: Site, attack: Attack, target: Target, rng: np.random.Generator) -> Tables:
    """Return the queries, results and clicks of an attack."""
    tables: Tables = {name: {} for name in ("queries", "hits", "events")}
    of_session = attack.clicks // attack.sessions
    for user in range(attack.users):
        for session in range(attack.sessions):
            started = START_MS + int(rng.integers(DAYS * DAY_MS))
            for click in range(of_session):
                pushes = click % attack.push == attack.push - 1
                row = target.row if pushes else int(rng.integers(len(site.asked)))
                page = site.pages[site.asked[row]]
                place = len(page) if pushes else int(rng.integers(len(page))) + 1
                who = f"{attack.name}-{user}"
                time_ms = started + round(1000 * attack.gap_s * click)
                common = {
                    "query_id": f"{who}-{session}-{click}",
                    "query": site.texts[site.asked[row]],
                    "user": who,
                    "session": f"{who}-{session}",
                    "agent": attack.agent,
                }
                _add(tables["queries"], common | {"time": time_ms})
                _add(
                    tables["events"],
                    common | {"time": time_ms + 500, "action": "click", "ordinal": place, "document": page[place - 1]},
                )
                for position, one in enumerate(page, start=1):
                    hit = {"query_id": common["query_id"], "position": position, "document": one}
                    _add(tables["hits"], hit)
    return tables


def _add(table: dict[str, list[Any]], row: dict[str, Any]) -> None:
    for name, value in row.items():
        table.setdefault(name, []).append(value)


def flagged(log: LogFiles) -> dict[str, dict[str, float]]:
    """Return sessions, and those taken for robots, by attack and for ``people``."""
    text = """SELECT s.session, BOOL_OR(j.status LIKE 'robot%') FROM statuses AS j
        JOIN searches AS s ON s.query_id = j.query_id GROUP BY s.session"""
    found = {name: {"sessions": 0.0, "flagged": 0.0} for name in ("people", *(one.name for one in ATTACKS))}
    with prepared(LogTask(log, PairConfig(), "pairs"), Resources(threads=1)) as connection:
        for session, robot in connection.execute(text).fetchall():
            name = next((one.name for one in ATTACKS if session.startswith(f"{one.name}-")), "people")
            found[name]["sessions"] += 1
            found[name]["flagged"] += robot
    return found


def pairs_of(log: LogFiles, config: PairConfig) -> list[Pair]:
    """Return the pairs of a log."""
    with make_pairs(log, config, resources=Resources(threads=1)) as table:
        return list(table.pairs())


def trained(site: Site, pairs: list[Pair], seed: int) -> RankingModel:
    """Return the model of pairs."""
    model, _ = train_model(site.corpus, from_pairs(pairs), TrainConfig(seed=seed), valid=site.labels(site.valid))
    return model


def ranks_of(site: Site, model: RankingModel, targets: list[Target]) -> list[int]:
    """Return the rank of each pushed document for its query among all documents."""
    corpus = read_corpus(site.docs, model, set())
    queries = model.encode_queries([site.texts[one.query] for one in targets])
    scores = queries.vectors @ corpus.vectors.T + model.identity * inner_products(queries.rows, corpus.rows)
    return [int((scores[n] > scores[n, corpus.row_of[one.document]]).sum()) + 1 for n, one in enumerate(targets)]


def run(site: Site, work: Path, seed: int, searches: int) -> dict[str, Any]:
    """Return the figures of one seed; ``searches`` of people a query."""
    started = time.perf_counter()
    rng = np.random.default_rng(seed)
    targets = targets_of(site)
    plan = LogPlan(searches * len(site.asked), users=searches * len(site.asked) // 5, days=DAYS)
    people = site.clicks(PositionBased.power(PAGE, 1.0), plan, rng)
    logs: dict[str, ClickLog] = {name: site.keep(people, work / name) for name in ("clean", "with spam")}
    fakes = [spam(site, attack, target, rng) for attack, target in zip(ATTACKS, targets, strict=True)]
    n_spam = sum(len(rows["queries"]["query_id"]) for rows in fakes)
    logs["with spam"].add(fakes, "spam")
    result: dict[str, Any] = {
        "seed": seed,
        "searches": len(people),
        "spam": n_spam,
        "sessions": flagged(logs["with spam"]),
    }
    known: list[tuple[list[Pair], dict[str, Any]]] = []
    for rules, config in (("protected", PairConfig()), ("unprotected", PairConfig().unprotected())):
        for name, log in logs.items():
            pairs = pairs_of(log, config)
            # Equal pairs make equal models: nothing is trained twice.
            found = next((figures for others, figures in known if others == pairs), None)
            if found is None:
                found = figures_of(site, trained(site, pairs, seed), targets)
                known.append((pairs, found))
            result[f"{rules}, {name}"] = {"pairs": len(pairs), **found}
            print(f"seed {seed}: {rules}, {name}: {result[f'{rules}, {name}']}", file=sys.stderr, flush=True)
    return {**result, "seconds": round(time.perf_counter() - started, 1)}


def figures_of(site: Site, model: RankingModel, targets: list[Target]) -> dict[str, Any]:
    """Return nDCG@10 on test queries, and the ranks of the pushed documents."""
    values = site.evaluate(model, site.test, "nDCG@10")
    return {"nDCG@10": float(values.mean()), "ranks": ranks_of(site, model, targets)}


def summary(result: dict[str, Any]) -> dict[str, float]:
    """Return loss of nDCG@10 in percent and the largest rise in ranks, protected and not, and the shares flagged."""
    found: dict[str, float] = {}
    for rules in ("protected", "unprotected"):
        clean, spammed = (result[f"{rules}, {name}"] for name in ("clean", "with spam"))
        found[f"{rules}: nDCG@10 lost, %"] = 100 * (1 - spammed["nDCG@10"] / clean["nDCG@10"])
        found[f"{rules}: ranks risen at most"] = max(
            before - after for before, after in zip(clean["ranks"], spammed["ranks"], strict=True)
        )
    sessions = result["sessions"]
    bots = [one for name, one in sessions.items() if name != "people"]
    found["spam sessions flagged, %"] = 100 * sum(b["flagged"] for b in bots) / sum(b["sessions"] for b in bots)
    found["people's sessions flagged, %"] = 100 * sessions["people"]["flagged"] / sessions["people"]["sessions"]
    return found


def main() -> None:
    """Print a line a seed, and write everything as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--queries", type=int, default=2_000, help="asked")
    parser.add_argument("--searches", type=int, default=20, help="of people, a query")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = []
    for seed in options.seeds:
        n_asked = 120 if options.small else options.queries
        with tempfile.TemporaryDirectory() as name:
            work = Path(name)
            site = SITES[options.folder.name](
                options.folder, work, n_asked=n_asked, page=PAGE, seed=seed, small=options.small
            )
            results.append(run(site, work, seed, options.searches))
        for name, value in summary(results[-1]).items():
            print(f"seed {seed}: {name}: {value:.3g}", flush=True)
        if options.json:
            table = [{"seed": one["seed"], **summary(one)} for one in results]
            write_results(options.json, {"summary": table, "runs": results})


if __name__ == "__main__":
    main()
