"""Whether pairs of neighbouring words pay as words of the model: `ssi train` with and without, on the same queries.

    python benchmarks/bigrams.py --json benchmarks/results/bigrams.json [--corpora LIST] [--small]

Two neighbours in a field's text are one more word, ``left_right``, where at least `FLOOR` documents have it, in a field
of their own that is weighed as the others are (`--fields title,text,bigrams`); queries get those of their own text. All
else is `ssi train` with its defaults. `FLOOR` was stated before a corpus was looked at, and no other was tried.

Each corpus' main row of `generalisation` is run with and without, and the differences are tested by the paired t-test;
``bm25`` is the tuned baseline of `ssi evaluate`, likewise with and without.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from generalisation import DATA, Job, Results, Study, Values
from generalisation_data import Corpus, read_corpus
from provenance import write_results

from reranker.evaluation import paired_test
from reranker.text.analyzers import make_analyzer, parse_analyzer

FLOOR = 5
"""Documents that must hold a bigram."""
CORPORA = ("nfcorpus", "insuranceqa", "aws")


def with_bigrams(corpus: Corpus, work: Path) -> Corpus:
    """Return the corpus with the bigrams of documents in a field of their own, and of queries in their texts."""
    analyzer = make_analyzer(parse_analyzer("unicode"))

    def bigrams(texts: Iterable[str]) -> list[str]:
        tokens = analyzer.tokens(list(texts))
        return [f"{left}_{right}" for words in tokens for left, right in pairwise(words)]

    of_documents = {name: bigrams(texts) for name, texts in corpus.documents.items()}
    frequency = Counter(chain.from_iterable(set(found) for found in of_documents.values()))

    def known(found: Iterable[str]) -> str:
        return " ".join(bigram for bigram in found if frequency[bigram] >= FLOOR)

    path = work / "docs.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with corpus.docs.open(encoding="utf-8") as documents, path.open("w", encoding="utf-8") as written:
        for line in documents:
            document = json.loads(line)
            written.write(json.dumps({**document, "bigrams": known(of_documents[str(document["id"])])}) + "\n")
    queries = {name: f"{text} {known(bigrams([text]))}".rstrip() for name, text in corpus.queries.items()}
    return replace(corpus, docs=path, queries=queries)


def compared(name: str, work: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what model and BM25 reach on the main row of a corpus, without and with bigrams."""
    corpus = read_corpus(DATA / name, work / "plain" / name, options.small)
    job = Job("pages" if corpus.linked else "split", 0)
    systems = {"model": f"model {job.key} 0", "bm25": "ssi bm25"}
    values: dict[str, list[Values]] = {system: [] for system in systems}
    trained = []
    for kind, one in (("plain", corpus), ("bigrams", with_bigrams(corpus, work / "bigrams" / name))):
        more = " --fields title,text,bigrams" if kind == "bigrams" else ""
        study = Study(one, Results(None, options.small), work / kind, options)
        study.run(replace(job, options=more.strip()))
        trained.append(study.kept.parts["rows"][0])
        for system, key in systems.items():
            found = study.load(job.row, key + more * (system == "model"))
            assert found is not None
            values[system].append(found)
    rows = []
    for system, (without, having) in values.items():
        test = paired_test(having, without)
        row = {"corpus": name, "row": job.row.title, "measure": trained[0]["measure"], "system": system}
        row |= {"queries": len(without), "without": float(without.mean()), "with": float(having.mean())}
        row |= {"difference": test.difference, "p": test.p_t_test}
        if system == "model":
            row |= {f"train_s {kind}": of["train_s"] for kind, of in zip(("without", "with"), trained, strict=True)}
        rows.append(row)
        print(f"{name}: {system} {row['without']:.4f} -> {row['with']:.4f} (p = {row['p']:.2g})", flush=True)
    return rows


def main() -> None:
    """Run what is asked for and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpora", default=",".join(CORPORA), metavar="LIST")
    parser.add_argument("--small", action="store_true", help="a cut of each corpus: that it works, not what is gained")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows: list[dict[str, Any]] = []
        for name in options.corpora.split(","):
            rows += compared(name, Path(scratch), options)
            if options.json is not None:
                write_results(options.json, {"floor": FLOOR, "small": options.small, "rows": rows})


if __name__ == "__main__":
    main()
