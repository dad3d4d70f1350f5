"""``ssi words``: show what a model has learned about words, and which words occur in the same documents."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import click

from reranker.cli import common
from reranker.cli.common import FILE
from reranker.errors import ConfigError

if TYPE_CHECKING:
    from reranker.engines import Engine
    from reranker.engines.protocol import TakesRequests
    from reranker.models.ranking_model import Encoder
    from reranker.rerank.calibrate import Topic
    from reranker.synonyms import SynonymDocuments, SynonymSet

_BATCH = 1_000
_DOCUMENTS = click.Path(exists=True, dir_okay=False, path_type=Path)
_SIDE = click.Choice(["documents", "queries"])


@click.group(
    "words",
    cls=common.CommandGroup,
    variables="SSI_WORDS",
    epilog="""\b
Examples:
  ssi words similar iterator --model model/
  ssi words pairs --query "read a file line by line" --model model/
  ssi words dice iterator "smart pointer" --docs docs.jsonl.gz
  ssi words synonyms --model model/ --docs docs.jsonl --qrels qrels.tsv --query-file queries.tsv --out synonyms.txt
""",
)
def words_group() -> None:
    """Inspect a model: nearest words, and document words related to a query; write synonyms for the engine."""


@words_group.command(
    "similar",
    short_help="List the words nearest to a word.",
    epilog="""\b
Examples:
  ssi words similar iterator --model model/
  ssi words similar iterator --model model/ --by cosine --n 20 --picture iterator.svg
  ssi words similar 検索 --of queries --model japanese-english/
""",
)
@click.argument("word")
@common.model_option()
@click.option("--n", type=click.IntRange(1), default=5, help="Number of neighbours.")
@click.option(
    "--of",
    "side",
    type=_SIDE,
    default="documents",
    help="Matrix that the vector of the word is taken from: V (documents) or U (queries).",
)
@click.option("--among", type=_SIDE, default="documents", help="Matrix whose vectors are searched for neighbours.")
@click.option(
    "--by",
    "measure",
    type=click.Choice(["distance", "cosine"]),
    default="distance",
    help="Euclidean distance, as in the tables of the papers, or cosine similarity, which ignores the lengths.",
)
@click.option(
    "--min-documents",
    type=click.IntRange(0),
    default=3,
    help="Leave out words in fewer documents, because little has been learned about them.",
)
@click.option("--picture", type=FILE, help="Draw the words on a plane and write the plot to this .png or .svg file.")
@common.json_option
def similar(word: str, model_path: Path, picture: Path | None, as_json: bool, **choice: Any) -> None:
    """List the words whose vectors are nearest to that of WORD, nearest first."""
    from reranker.models.model_folder import load_model
    from reranker.words import similar_words, write_words

    model = load_model(model_path)
    neighbours = similar_words(model, word, **choice)
    if picture is not None:
        spots = [(word, choice["side"]), *((neighbour.word, choice["among"]) for neighbour in neighbours)]
        write_words(model, spots, picture)
        common.say(f"drawn: {picture}")
    if as_json:
        common.print_json([asdict(neighbour) for neighbour in neighbours])
        return
    table = common.plain_table("word", choice["measure"], "documents", numbers=(1, 2))
    for neighbour in neighbours:
        table.add_row(neighbour.word, f"{neighbour.value:.4f}", f"{neighbour.documents:,}")
    common.out().print(table)


@words_group.command(
    "dice",
    short_help="List the words that most often occur in the same documents as a word or an n-gram.",
    epilog="""\b
Examples:
  ssi words dice iterator "smart pointer" --docs docs.jsonl.gz
  ssi words dice 検索 --docs docs_ja.jsonl.gz --analyzer japanese --n 20 --json
  ssi words dice iterator --docs docs.jsonl.gz --model model/
""",
)
@click.argument("terms", nargs=-1, required=True, metavar="TERM...")
@click.option(
    "--docs",
    "path",
    required=True,
    type=_DOCUMENTS,
    metavar="FILE",
    help="Documents to count in: JSON lines (may be gzipped) or Parquet.",
)
@common.renamed_option("--documents", "--docs", kind=_DOCUMENTS)
@common.id_field_option
@common.model_option(required=False)
@click.option(
    "--analyzer",
    "analyzer_text",
    metavar="SPEC",
    help="Analyzer, as in `ssi train`.  [default: that of --model, else unicode]",
)
@click.option(
    "--fields", metavar="FIELDS", help="Text fields, separated by commas.  [default: those of --model, else title,text]"
)
@click.option("--n", type=click.IntRange(1), default=5, help="Number of neighbours.")
@click.option(
    "--max-words",
    type=click.IntRange(1),
    default=30_000,
    help="Number of most frequent words that are considered as neighbours.",
)
@common.json_option
def dice(terms: tuple[str, ...], n: int, max_words: int, as_json: bool, **options: Any) -> None:
    """List the frequent words with the highest DICE coefficient for each TERM: a word, or consecutive words in quotes.

    DICE is twice the number of documents with both, divided by the sum of the numbers of documents with each. A
    frequent word is its own nearest neighbour. No model is needed.
    """
    from reranker.formats import read_documents
    from reranker.models.model_folder import load_model
    from reranker.text.analyzers import make_analyzer, parse_analyzer
    from reranker.text.view import TextView
    from reranker.text.vocabulary import VocabularyBuilder
    from reranker.words import DiceCounter

    model_path, analyzer_text, fields = (options[name] for name in ("model_path", "analyzer_text", "fields"))
    if model_path is not None and (analyzer_text or fields):
        raise ConfigError(
            "--model determines the analyzer and the fields: leave out --analyzer and --fields, or --model"
        )
    if model_path is None:
        analyzer = make_analyzer(parse_analyzer(analyzer_text or "unicode"))
        view = TextView.parse((fields or "title,text").split(","))
    else:
        encoder = load_model(model_path).encoder
        analyzer, view = encoder.analyzer, encoder.view

    def batches() -> Iterator[list[list[str]]]:
        """Yield the words of the documents in batches of `_BATCH`; the fields of a document are joined."""
        documents = read_documents(options["path"], id_field=options["id_field"])
        n_read = 0
        with common.progress("reading") as update:
            while batch := list(islice(documents, _BATCH)):
                yield analyzer.tokens(["\n".join(view.texts(document.source)) for document in batch])
                n_read += len(batch)
                update(n_read, None)

    builder = VocabularyBuilder()
    for tokens in batches():
        builder.add(tokens)
    cut_terms = [term for term in analyzer.tokens(terms) if term]
    counter = DiceCounter(cut_terms, builder.build(max_words), max_words)
    for tokens in batches():
        counter.add(tokens)
    neighbours_of = {" ".join(term): counter.neighbours(" ".join(term), n) for term in cut_terms}
    if as_json:
        common.print_json({term: list(map(asdict, neighbours)) for term, neighbours in neighbours_of.items()})
        return
    table = common.plain_table("term", "word", "DICE", "together", "documents", numbers=(2, 3, 4))
    for term, neighbours in neighbours_of.items():
        for place, neighbour in enumerate(neighbours):
            counts = (f"{neighbour.value:.4f}", f"{neighbour.together:,}", f"{neighbour.documents:,}")
            table.add_row(term if place == 0 else "", neighbour.word, *counts)
    common.out().print(table)


@words_group.command(
    "pairs",
    short_help="List the document words that a model relates to the words of a query.",
    epilog="""\b
Examples:
  ssi words pairs --query "read a file line by line" --model model/
  ssi words pairs --query sort --model model/ --n 30 --json
""",
)
@click.option("--query", required=True, metavar="TEXT", help="The query.")
@common.model_option()
@click.option("--n", type=click.IntRange(1), default=10, help="Number of pairs.")
@click.option(
    "--min-documents",
    type=click.IntRange(0),
    default=3,
    help="Leave out document words in fewer documents, except words of the query.",
)
@common.json_option
def word_pairs(query: str, model_path: Path, n: int, min_documents: int, as_json: bool) -> None:
    """List the document words that raise the score for a query most, each with the query word that it is paired with.

    The weight is the contribution of the pair to the score of a document in which the word has weight 1.
    """
    from reranker.models.model_folder import load_model
    from reranker.words import related_words

    model = load_model(model_path)
    word_pairs = related_words(model, query, n=n, min_documents=min_documents)
    if model.encoder.memory is not None:
        said = f"{len(model.encoder.memory):,} documents have a memory of queries, which also counts in the score"
        common.err().print(f"{said}: see `ssi search --explain`", soft_wrap=True)
    if as_json:
        common.print_json([asdict(pair) for pair in word_pairs])
        return
    table = common.plain_table("query", "document", "weight", "", numbers=(2,))
    for pair in word_pairs:
        table.add_row(pair.query_word, pair.document_word, f"{pair.weight:.4f}", "same word" if pair.same else "")
    common.out().print(table)


@words_group.command(
    "synonyms",
    short_help="Write synonym rules for the engine's analyzer, each with its measured gain.",
    epilog="""\b
Examples:
  ssi words synonyms --model model/ --docs docs.jsonl --qrels qrels.tsv --query-file queries.tsv --out synonyms.txt
  ssi words synonyms --model model/ --docs docs.jsonl --links links.tsv --json
  # without --yes, the request is only printed
  ssi words synonyms --model model/ --docs docs.jsonl --qrels qrels.tsv --query-file queries.tsv \\
      --engine elasticsearch:http://localhost:9200 --put shop-synonyms --yes
""",
)
@common.model_option()
@click.option("--docs", required=True, type=FILE, help="Documents: JSON lines (gz too) or Parquet.")
@common.id_field_option
@click.option("--qrels", type=FILE, help="Judgments: query id, document id, grade (or TREC).")
@click.option("--query-file", type=FILE, help="Queries: query id, text.")
@click.option("--links", type=FILE, help="Links between documents of --docs: source id, target id.")
@click.option(
    "--queries",
    default="title",
    metavar="title|keywords:K",
    help="With --links: how a document is turned into a query.",
)
@click.option("--out", type=FILE, help="Write the rules to this file, in Solr's format.")
@click.option("--put", "set_name", metavar="NAME", help="Synonym set of Elasticsearch for the rules; needs --engine.")
@click.option("--yes", is_flag=True, help="With --put: write the set. Without it, the request is only printed.")
@click.option(
    "--engine",
    "engine_spec",
    metavar="SPEC",
    help="Engine of --put, and of the model's analyzer if that runs in an engine.",
)
@click.option("--max-per-word", type=click.IntRange(1), default=3, help="Largest number of synonyms of a query word.")
@click.option(
    "--min-support",
    type=click.IntRange(1),
    default=3,
    help="Least number of judged queries with the word that have a relevant document with the synonym, but not the "
    "word.",
)
@common.partial_option("links or judgments")
@click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the words of --queries keywords:K.")
@common.json_option
def synonyms(model_path: Path, docs: Path, max_per_word: int, min_support: int, as_json: bool, **options: Any) -> None:
    """Write directed synonym rules (a => a, b) for the engine's own analyzer, in Solr's format.

    Candidates are the document words that the model relates most to a word of the queries. A rule is kept if it
    improves nDCG@10 of a lexical score in both of two halves of the judged queries, and by more than 1.64 standard
    errors in all of them. There, the word and its synonyms count as one word, as in the engine. The gain that is
    printed is cross-fitted: the order of each query is measured with rules that were chosen on the other half.

    Use the file as `synonyms_path` of a `synonym_graph` filter, the last filter of the search analyzer (not of the
    index analyzer).
    """
    from reranker.files import write_file
    from reranker.formats import RejectLog
    from reranker.models.model_folder import load_model
    from reranker.rerank.calibrate import topics_to_fit
    from reranker.synonyms import SynonymConfig, SynonymDocuments, check_learned, find_synonyms

    out, set_name = options["out"], options["set_name"]
    if out is None and set_name is None and not as_json:
        raise ConfigError("nothing would be written: give --out FILE, --put NAME or --json")
    if options["yes"] and set_name is None:
        raise ConfigError("--yes confirms --put: give --put NAME, or leave --yes out")
    if out is not None:
        _check_writable(out)
    engine = common.open_engine_of(options["engine_spec"], retry=True) if options["engine_spec"] else None
    with_sets = None if set_name is None else _with_synonym_sets(engine)
    model = load_model(model_path, engine)
    check_learned(model)
    with RejectLog() as rejects:
        with common.progress("reading documents") as update:
            documents = SynonymDocuments.read(docs, model.encoder, rejects, update, options["id_field"])
        topics = _topics(model.encoder, documents, rejects, docs, options)
    if options["qrels"]:
        common.say_relevant(topic.grades for topic in topics)
    chosen = topics_to_fit(topics, model.training_queries)
    with common.progress("measuring rules", unit="words") as update:
        config = SynonymConfig(max_per_word=max_per_word, min_support=min_support)
        found = find_synonyms(model, documents, topics, config, update)
    if out is not None:
        write_file(out, found.text().encode("utf-8"))
    if as_json:
        common.print_json({**found.to_json(), "queries_of_training": chosen.n_learned})
    else:
        _show_synonyms(found, chosen.n_learned, out)
    if with_sets is not None:
        _put_synonyms(with_sets, set_name, found, options["yes"])
    common.end_with_accounts(rejects.account())


def _topics(
    encoder: Encoder, documents: SynonymDocuments, rejects: Any, docs: Path, options: dict[str, Any]
) -> list[Topic]:
    """Return the judged queries of the given files."""
    from reranker.engines.stored_ids import IdCheck, StoredIds
    from reranker.rerank.calibrate import topics_of_links, topics_of_qrels

    check = IdCheck(
        lambda account: common.check_ids(account, options),
        lambda ids: StoredIds(frozenset(id_ for id_ in ids if id_ in documents.row_of)),
    )
    qrels, query_file, links = (options[name] for name in ("qrels", "query_file", "links"))
    if qrels and query_file and not links:
        return topics_of_qrels(qrels, query_file, rejects, check)
    if links and not (qrels or query_file):
        given = (links, docs, encoder, options["queries"], options["seed"], None, options["id_field"])
        return topics_of_links(*given, check)
    raise ConfigError("no judged queries: give either --qrels and --query-file, or --links")


def _check_writable(path: Path) -> None:
    """Raise `ConfigError` if a file cannot be written, before the measurement instead of after it."""
    try:
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise ConfigError(
            f"--out {str(path)!r} cannot be written ({error.strerror}): give a file in a folder that exists and that "
            "you may write to"
        ) from error


def _with_synonym_sets(engine: Engine | None) -> TakesRequests:
    """Return the engine if it has the `_synonyms` API; `ConfigError` otherwise."""
    from reranker.engines.protocol import TakesRequests

    if engine is None:
        raise ConfigError("--put writes to an engine: give --engine elasticsearch:URL")
    able = engine.capabilities()
    named = f"{able.kind} {able.version}".strip()
    if not able.synonym_sets or not isinstance(engine, TakesRequests):
        raise ConfigError(
            f"--put needs the `_synonyms` API of Elasticsearch (8.10 and later), and {named} has "
            "none: give --out FILE, and name the file in `synonyms_path` of the filter"
        )
    return engine


def _put_synonyms(engine: TakesRequests, name: str, found: SynonymSet, confirmed: bool) -> None:
    """Write the synonym set, or print the request that would write it."""
    from urllib.parse import quote

    if not found.rules:
        common.warn(f"warning: no rule was kept, so the synonym set {name!r} is not written")
        return
    path, body = f"/_synonyms/{quote(name, safe='')}", found.request_body()
    if not confirmed:
        common.say(f"would send PUT {path} (write it with --yes):")
        common.say(json.dumps(body, ensure_ascii=False, indent=1))
        return
    engine.request("PUT", path, body)
    common.say(f"written: synonym set {name!r}, {len(body['synonyms_set']):,} rules")


def _show_synonyms(found: SynonymSet, n_learned: int | None, out: Path | None) -> None:
    table = common.plain_table("word", "synonym", "support", "queries", "gain", numbers=(2, 3, 4))
    for rule in found.rules:
        table.add_row(rule.word, rule.synonym, f"{rule.support:,}", f"{rule.queries:,}", f"{rule.gain:+.4f}")
    console = common.out()
    if found.rules:
        console.print(table)
    console.print(
        f"{len(found.rules):,} of {found.n_candidates:,} candidates are kept. nDCG@10 of a lexical score on "
        f"{found.n_queries:,} judged queries: {found.before:.4f} without rules"
    )
    if (test := found.held_out) is not None:
        console.print(
            f"with rules chosen on the other half of the queries: {test.difference:+.4f} ± {test.interval:.4f} "
            f"(p = {test.p_t_test:.2g})"
        )
    if n_learned:
        common.warn(
            f"the model has learned from {n_learned:,} of these queries, so that the candidates are not independent of "
            "them: judge the rules on other queries before you use them"
        )
    if out is not None:
        common.say(f"written: {out}")
