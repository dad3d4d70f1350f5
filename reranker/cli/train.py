"""``ssi train``: train a model from documents and links, judgments or preference pairs."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from reranker.accounts import MAX_UNKNOWN
from reranker.cli import common
from reranker.cli.common import PATH
from reranker.engines import Engine
from reranker.errors import ConfigError, EngineError, TrainingError
from reranker.text.analyzers import ANALYZER_SYNTAX, STEMMERS
from reranker.training.config import TrainConfig

if TYPE_CHECKING:
    from reranker.formats import RejectLog
    from reranker.models.ranking_model import RankingModel
    from reranker.text.view import TextView
    from reranker.training import DocumentSource, TrainingReport, TrainingSet
    from reranker.training.own_search import OwnSearch
    from reranker.training.train import StageCost

_DECIDED = (
    "fields",
    "analyzer",
    "vector_field",
    "html",
    "dim",
)
"""Options that cannot be given with ``--warm-start``, because the model to start from determines them."""

TOLD_S = 1.0
"""Seconds from which a stage is named in the summary."""
EXAMPLES = """\b
Examples:
  ssi train --docs docs.jsonl.gz --links links.tsv --model model/
  ssi train --docs docs.jsonl --links links.tsv --model model/ --report report.html
  ssi train --docs docs.jsonl --links train.tsv --valid valid.tsv --model model/
  ssi train --docs docs.parquet --qrels qrels.tsv --query-file queries.tsv --model model/
  ssi train --docs docs.jsonl --vector-field embedding --model model/
  ssi train --docs docs.jsonl --pairs pairs.parquet --warm-start model/ --model model-clicks/
  ssi train --engine elasticsearch:http://localhost:9200 --index shop --fields name,description \\
            --qrels qrels.tsv --query-file queries.tsv --model model/
"""


@click.command("train", epilog=EXAMPLES)
@click.option(
    "--docs", type=PATH, metavar="FILE", help="Documents: JSON lines (also gz) or Parquet.  [default: those of --index]"
)
@common.id_field_option
@click.option("--links", type=PATH, metavar="FILE", help="Links: source id TAB target id, no header.")
@click.option("--qrels", type=PATH, metavar="FILE", help="Judgments: query id TAB document id TAB grade.")
@click.option("--query-file", type=PATH, metavar="FILE", help="Queries of --qrels: query id TAB text.")
@click.option(
    "--pairs", type=PATH, metavar="FILE", help="Preference pairs: query, better, worse, weight (TSV or Parquet)."
)
@click.option("--valid", type=PATH, metavar="FILE", help="Validation data, in the format of the training file.")
@click.option("--model", "model_path", required=True, type=PATH, metavar="DIR", help="Folder to write the model to.")
@common.setting(TrainConfig, "dim", help="Number of dimensions of a vector.")
@click.option(
    "--fields",
    default="title,text",
    metavar="LIST",
    help="Field paths, each with an optional weight in the lexical score (title^2). Weights that are not given are "
    "tuned.",
)
@click.option(
    "--analyzer",
    default="auto",
    metavar="NAME",
    help="auto (unicode; English texts as stems unless training queries are ranked worse by them; bigrams if these are "
    "ranked better), "
    f"{ANALYZER_SYNTAX} (with --engine). LANGUAGE is one of {', '.join(STEMMERS)}.",
)
@click.option(
    "--engine", "engine_spec", metavar="SPEC", help="Engine of --index and of the analyzer engine:INDEX/FIELD."
)
@click.option(
    "--index",
    metavar="NAME",
    help="Read the documents of this index, if --docs is not given, and compare its BM25 with the model.",
)
@click.option(
    "--vector-field",
    default="",
    metavar="FIELD",
    help="Field with the vectors that a text encoder has computed of the documents. Word vectors are learned from "
    "them, so that queries need no encoder.",
)
@click.option(
    "--encoder",
    "encoder_path",
    type=PATH,
    metavar="DIR",
    help="Folder of the text encoder that computed --vector-field (see ssi embed). In training, it computes vectors "
    "of words and training queries. The model does not need it.",
)
@click.option("--html", is_flag=True, help="Strip HTML from the fields.")
@common.setting(TrainConfig, "seed", help="Seed of all random numbers.")
@click.option("--warm-start", type=PATH, metavar="DIR", help="Model to start from. Its vocabulary and fields are kept.")
@click.option(
    "--report",
    "report_path",
    type=common.FILE,
    help="Write an HTML report: data, forms of the score, words, best and worst queries, advice.",
)
@click.option(
    "--rejects",
    type=PATH,
    metavar="FILE",
    help="Write rejected lines to this file, with line number, offset and reason.",
)
@common.json_option
def command(**options: Any) -> None:
    """Train a model: learn which query words and document words are related.

    Give one of --links, --qrels with --query-file, or --pairs. Part of this data is held out for early stopping. At
    the end, the tuned lexical score, the same with a memory of queries or links, and both with the learned vectors (and
    those of --vector-field) are compared on queries that none of them was fitted to. The model has all parts that
    usually help, unless these queries show that another choice is better. The command says which parts it has.

    If the documents have vectors of a text encoder, --vector-field is enough: then the model is BM25 with usual
    settings and these vectors, and nothing is measured.

    If a run is interrupted, run the command again to continue from its checkpoint (DIR.checkpoint). With --index, the
    new run reuses the documents that were already read from the same fields of the index (DIR.documents-….jsonl). If
    the reading of an Elasticsearch or OpenSearch index was interrupted, it continues with a new point-in-time view:
    documents that were changed meanwhile are read in their new version. If documents were deleted meanwhile, everything
    is read again, so that the file always corresponds to one view.

    With --index and judged queries, the engine's order by BM25 over the model's text fields is compared with the model
    on the held-out queries.
    """
    from reranker.files import write_file
    from reranker.formats import RejectLog
    from reranker.heap import share_arenas
    from reranker.models.model_folder import load_model, save_model
    from reranker.retrain.documents import forget_documents
    from reranker.training import Listener, train_model
    from reranker.training.report import render_training
    from reranker.training.trainer import remove_checkpoints

    share_arenas(1)
    config = TrainConfig(**common.stated(TrainConfig, options))
    _check_combination(options)
    kind = _kind(options)
    with RejectLog(options["rejects"]) as rejects:
        if kind is None:
            _train_unlabelled(options, config, rejects)
            return
        evidence = _evidence(kind, options[kind], options["query_file"], rejects)
        if rejects.count and not evidence.preferences:
            raise TrainingError(f"there is nothing to learn from: {rejects.summary()}")
        valid = _evidence(kind, options["valid"], options["query_file"], rejects) if options["valid"] else None
        engine = common.open_engine_of(options["engine_spec"], retry=True) if options["engine_spec"] else None
        base = load_model(options["warm_start"], engine) if options["warm_start"] else None
        path: Path = options["model_path"]
        checkpoint = path.with_name(path.name + ".checkpoint")
        of_index = _file_of_index(options)
        corpus = _corpus(options, engine, of_index)
        if options["docs"] is None:
            _read_index(options, engine, corpus.view if base is None else base.encoder.view, of_index)
        with common.run_progress() as (update, run):
            listener = Listener(common.say, update, rejects, run)
            model, report = train_model(
                corpus,
                evidence,
                config,
                valid=valid,
                base=base,
                checkpoint=checkpoint,
                listener=listener,
            )
        if options["report_path"]:
            page = render_training(model, report, corpus.path, rejects.kinds, corpus.id_field)
            write_file(options["report_path"], page.encode("utf-8"))
        save_model(model, path)
        remove_checkpoints(checkpoint)
        forget_documents(of_index)
        compared = _own_search(options["index"], engine, model, report)
        _show(model, report, path, rejects, options["as_json"], compared)
        if engine is not None and options["index"] and not options["as_json"]:
            # click instead of rich, because a command for copying must not be wrapped.
            click.echo(_comparison_hint(engine, options["index"], path))
        common.end_with_accounts(rejects.account("records"), report.account)


def _train_unlabelled(options: dict[str, Any], config: TrainConfig, rejects: RejectLog) -> None:
    """Write a model of documents and their vectors, and print how it came about."""
    from reranker.models.model_folder import save_model
    from reranker.rerank.weighted_template import weighted_template
    from reranker.retrain.documents import forget_documents
    from reranker.training import Listener, train_unlabelled

    path: Path = options["model_path"]
    of_index = _file_of_index(options)
    engine = common.open_engine_of(options["engine_spec"], retry=True) if options["engine_spec"] else None
    corpus = _corpus(options, engine, of_index)
    if options["docs"] is None:
        _read_index(options, engine, corpus.view, of_index)
    with common.run_progress() as (update, run):
        listener = Listener(common.say, update, rejects, run)
        model, report = train_unlabelled(corpus, config, listener=listener)
    save_model(model, path)
    forget_documents(of_index)
    weighted = weighted_template(model.encoder)
    if options["as_json"]:
        common.print_json(
            {
                "model": str(path),
                "model_id": model.model_id,
                "encoder_id": model.encoder_id,
                "notes": list(report.notes),
                "weighted_body": weighted,
                "accounts": [rejects.account("records").to_json()],
                "stages": [cost._asdict() for cost in report.costs],
            }
        )
    else:
        common.out().print(f"model    {path}  ({model.model_id[:12]}, encoder {model.encoder_id[:12]})")
        _show_costs(report.costs, weighted)
    common.end_with_accounts(rejects.account("records"))


def _file_of_index(options: dict[str, Any]) -> Path:
    """Return the file that the documents of ``--index`` are written to, which depends on what is read of them."""
    path: Path = options["model_path"]
    read = [str(options[name]) for name in ("engine_spec", "index", "fields", "vector_field", "warm_start")]
    digest = hashlib.sha256(json.dumps(read).encode()).hexdigest()[:12]
    return path.with_name(f"{path.name}.documents-{digest}.jsonl")


def _kind(options: dict[str, Any]) -> str | None:
    """Return the kind of data to learn from; None if there are only documents with vectors."""
    given = [name for name in ("links", "qrels", "pairs") if options[name]]
    if not given and options["vector_field"] and not options["warm_start"]:
        unusable = [name for name in ("valid", "report_path") if options[name]]
        if unusable:
            names = " and ".join(f"--{name.removesuffix('_path')}" for name in unusable)
            raise ConfigError(f"{names} needs data to learn from: give --links, --qrels or --pairs, or leave it out")
        return None
    if len(given) != 1:
        stated = " and ".join(f"--{name}" for name in given) or "none of them"
        raise ConfigError(
            f"give exactly one of --links, --qrels or --pairs to learn from, or only --vector-field; given: {stated}"
        )
    return given[0]


def _evidence(kind: str, path: Path, query_file: Path | None, rejects: RejectLog) -> TrainingSet:
    from reranker.tables import read_judgements, read_links, read_pairs, read_queries
    from reranker.training import from_judgements, from_links, from_pairs

    if kind == "links":
        return from_links(read_links(path, rejects=rejects))
    if kind == "pairs":
        return from_pairs(read_pairs(path, rejects=rejects))
    if query_file is None:
        raise ConfigError("--qrels contains only query ids: give the texts with --query-file (query id TAB text)")
    texts = {query.id: query.text for query in read_queries(query_file, rejects=rejects)}
    judged = read_judgements(path, rejects)
    common.say_relevant(judged.values())
    return from_judgements(judged, texts)


def _check_combination(options: dict[str, Any]) -> None:
    """Raise `ConfigError` for options that have no effect together, and for a report that could not be written."""
    common.check_id_field(options)
    if options["query_file"] and not options["qrels"]:
        raise ConfigError("--query-file contains the queries of --qrels: give --qrels, or leave --query-file out")
    if options["encoder_path"] and not (options["vector_field"] or options["warm_start"]):
        raise ConfigError("--encoder needs vectors of documents: give --vector-field, or leave --encoder out")
    source_of = click.get_current_context().get_parameter_source
    typed = [name for name in _DECIDED if source_of(name) is ParameterSource.COMMANDLINE]
    if typed and options["warm_start"]:
        given = ", ".join(f"--{name.replace('_', '-')}" for name in typed)
        raise ConfigError(f"{given} cannot be given with --warm-start, whose model determines it; leave it out")
    report: Path | None = options["report_path"]
    if report is not None and not report.parent.is_dir():
        raise ConfigError(f"the folder of --report {str(report)!r} does not exist: create it, or name another file")


def _read_index(options: dict[str, Any], engine: Engine | None, view: TextView, path: Path) -> None:
    """Write the documents of ``--index`` to the file ``path``, unless an unfinished run of this model has done so."""
    if engine is None or not options["index"]:
        raise ConfigError("no documents are given: give --docs FILE, or --engine and --index to read an index")
    if path.exists():
        common.say(
            f"using the documents that an interrupted run wrote to {path}; remove this file to read {options['index']} "
            "again"
        )
        return
    from reranker.retrain.documents import export_documents

    with common.progress("reading documents of the index") as reading:
        export_documents(engine, options["index"], view, path, reading, common.say)


def _corpus(options: dict[str, Any], engine: Engine | None, of_index: Path) -> DocumentSource:
    """Return the corpus: file, text view and analyzer. Without ``--docs``, the file is ``of_index``."""
    from reranker.encoders import open_encoder
    from reranker.engines.analysis import analyzer_definition
    from reranker.text.analyzers import make_analyzer, parse_analyzer
    from reranker.text.view import TextView
    from reranker.training import DocumentSource

    analysis = None if options["analyzer"] == "auto" else parse_analyzer(options["analyzer"])
    analyze: Callable[..., list[list[str]]] | None = None
    definition: Mapping[str, Any] = {}
    if analysis and analysis.engine_field:
        if engine is None:
            raise ConfigError(f"the analyzer {options['analyzer']!r} runs in an engine: name the engine with --engine")
        index, _, name = analysis.engine_field.partition("/")
        analyze = lambda texts: engine.analyze(index, name, texts)  # noqa: E731
        definition = analyzer_definition(engine, index, name)
    fields = [part.strip() for part in options["fields"].split(",") if part.strip()]
    view = TextView.parse(fields, strip_html=options["html"])
    view = replace(view, vector=options["vector_field"])
    analyzer = None if analysis is None else make_analyzer(analysis, analyze, definition)
    return DocumentSource(
        options["docs"] or of_index,
        view,
        analyzer,
        id_field=options["id_field"],
        max_unknown=MAX_UNKNOWN,
        encoder=open_encoder(options["encoder_path"]) if options["encoder_path"] else None,
    )


def _show_costs(costs: Sequence[StageCost], weighted: Mapping[str, Any] | None) -> None:
    """Print the seconds of the stages, and the body with the tuned weights."""
    spent = ", ".join(f"{cost.stage} {cost.seconds:.0f}" for cost in costs if cost.seconds >= TOLD_S)
    common.out().print(f"seconds  {sum(cost.seconds for cost in costs):.0f}" + (f": {spent}" if spent else ""))
    if weighted is not None:
        # click instead of rich, because a body for copying must not be wrapped.
        click.echo(f"body     {json.dumps(weighted, ensure_ascii=False)}")


def _own_search(
    index: str | None,
    engine: Engine | None,
    model: RankingModel,
    report: TrainingReport,
) -> OwnSearch | None:
    """Return the comparison with BM25 in the engine; None without an index, or if the engine cannot search."""
    from reranker.training.own_search import own_search

    if engine is None or not index:
        return None
    try:
        return own_search(engine, index, model, report)
    except EngineError as error:
        common.warn(f"BM25 in the engine was not compared with the model: {error}")
        return None


def _comparison_hint(engine: Engine, index: str, model_path: Path) -> str:
    """Return the command that compares the model with the engine's order of the user's own search body."""
    command = ["ssi", "calibrate", "--engine", engine.spec, "--index", index, "--model", str(model_path)]
    files = ["--body", "body.json", "--qrels", "other-qrels.tsv", "--query-file", "other-queries.tsv"]
    return (
        "After `ssi revectorize` and `ssi promote`, this command compares what users get (the first hits of your body, "
        "reranked) with the engine's order, on judged queries that the model was not trained on:"
        f"\n{shlex.join([*command, *files])}"
    )


def _show(
    model: RankingModel,
    report: TrainingReport,
    path: Path,
    rejects: RejectLog,
    as_json: bool,
    compared: OwnSearch | None,
) -> None:
    from reranker.rerank.weighted_template import weighted_template
    from reranker.training.report import summary_of

    model_id, encoder_id, summary = model.model_id, model.encoder_id, summary_of(model, report)
    weighted = weighted_template(model.encoder)
    if as_json:
        common.print_json(
            {
                "model": str(path),
                "model_id": model_id,
                "encoder_id": encoder_id,
                "summary": summary,
                "split": report.split,
                "lexical_map": report.lexical_map,
                "valid_map": report.valid_map,
                "scale": report.scale,
                "best_epoch": report.result.best_epoch,
                "memory": report.memory._asdict(),
                "form": report.form.to_json(),
                "weighted_body": weighted,
                "dropped": report.dropped,
                "rejected_lines": rejects.count,
                "accounts": [rejects.account("records").to_json(), report.account.to_json()],
                "own_search": compared._asdict() if compared else None,
                "stages": [cost._asdict() for cost in report.costs],
            }
        )
        return
    console = common.out()
    held_out = "evidence (--valid)" if report.split == "given" else report.split
    console.print(f"model    {path}  ({model_id[:12]}, encoder {encoder_id[:12]})")
    console.print(f"stopped  after epoch {report.result.best_epoch}, the best one on held-out {held_out}")
    if report.scale not in (0, 1) or (report.scale == 0 and len(model.U)):
        console.print(
            f"scale    the learned part is multiplied by {report.scale:g}, the best factor on validation data"
        )
    console.print(f"memory   {report.memory.sentence}")
    _show_costs(report.costs, weighted)
    console.print(summary)
    if compared is not None:
        console.print(compared.sentence())
