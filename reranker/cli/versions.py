"""``ssi versions``, ``promote``, ``rollback``, ``gc``, ``drift``: the versions of an index, and which is live."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table

from reranker.cli import common
from reranker.releases import ControlRecord, read_control

_force_option = click.option(
    "--force", is_flag=True, help="At once, also where documents lack the version's vector or have changed since."
)


@click.command("versions", epilog="""\b
Examples:
  ssi versions --engine elasticsearch:http://localhost:9200 --index shop
  ssi versions --engine tantivy:./index --index docs --json
""")  # fmt: skip
@common.engine_options
@click.option("--quick", is_flag=True, help="Do not read the texts: how many vectors are stale is not counted.")
@common.json_option
def versions_command(engine_spec: str, index: str, quick: bool, as_json: bool) -> None:
    """List the versions of an index: which one is live, how many documents carry their vectors, how many are stale.

    Stale are vectors of a text that has changed since; `ssi sync` renews those of one version.
    """
    from indexer.versions import list_versions

    engine = common.open_engine_of(engine_spec, retry=True)
    with common.progress(f"texts of {index}") as update:
        states = list_versions(engine, index, count_stale=not quick, progress=update)
    record = read_control(engine, index).without_leftovers(engine.index_names(index))
    if as_json:
        common.print_json({
            "index": index,
            "live": record.live,
            "versions": [asdict(state) for state in states],
            "retired": record.retired,
            "building": record.building,
        })  # fmt: skip
        return
    table = Table("", "version", "encoder", "documents with vector", "stale", "calibrated", "registered", "state")
    for state in states:
        table.add_row(
            "live" if state.live else "", (state.model_id or "(not registered)")[:16], state.encoder_id[:12],
            f"{state.with_vector:,} of {state.documents:,}", "?" if state.stale is None else f"{state.stale:,}",
            "yes" if state.calibrated else "no", state.created, state.state,
        )  # fmt: skip
    common.out().print(table if states else f"{index} has no versions: ssi index or ssi revectorize makes one")
    for title, names in (("replaced by a rebuild", record.retired), ("unfinished rebuild", record.building)):
        if names:
            common.out().print(f"{title}: {', '.join(names)}")


@click.command("promote", epilog="""\b
Examples:
  ssi promote 3f2a9c81d0aa --engine elasticsearch:http://localhost:9200 --index shop
  ssi promote 3f2a9c81d0aa --engine tantivy:./index --index docs --json
""")  # fmt: skip
@click.argument("version")
@common.engine_options
@_force_option
@common.json_option
def promote_command(version: str, engine_spec: str, index: str, force: bool, as_json: bool) -> None:
    """Make VERSION (a model id, or its first digits) the live one of an index.

    Refused, and nothing changed, while documents lack its vectors or have changed since they were made: every text is
    read to see it.
    """
    from indexer.versions import promote

    engine = common.open_engine_of(engine_spec, retry=True)
    with common.progress(f"texts of {index}") as update:
        record = promote(engine, index, version, force=force, progress=update)
    _show_live(record, index, as_json, "; `ssi rollback` goes back")


@click.command("rollback", epilog="""\b
Examples:
  ssi rollback --engine elasticsearch:http://localhost:9200 --index shop
  ssi rollback --engine tantivy:./index --index docs --json
""")  # fmt: skip
@common.engine_options
@_force_option
@common.json_option
def rollback_command(engine_spec: str, index: str, force: bool, as_json: bool) -> None:
    """Make the version live again that was live before this one, refused as by `ssi promote`.

    Its fields are still there: one write, and with --force nothing is read before it.
    """
    from indexer.versions import rollback

    engine = common.open_engine_of(engine_spec, retry=True)
    with common.progress(f"texts of {index}") as update:
        record = rollback(engine, index, force=force, progress=update)
    _show_live(record, index, as_json)


def _show_live(record: ControlRecord, index: str, as_json: bool, hint: str = "") -> None:
    if as_json:
        common.print_json({"index": index, "live": record.live, "previous": list(record.previous)})
    else:
        common.out().print(f"live for {index}: {(record.live or '')[:12]}{hint}")


@click.command("gc", epilog="""\b
Examples:
  ssi gc --engine elasticsearch:http://localhost:9200 --index shop --dry-run
  ssi gc --engine elasticsearch:http://localhost:9200 --index shop --keep 2
""")  # fmt: skip
@common.engine_options
@click.option("--keep", type=click.IntRange(0), default=1, help="How many earlier live versions stay, for a rollback.")
@click.option("--unfinished", is_flag=True,
              help="Also delete the indexes of interrupted rebuilds and half-written versions.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Print what would be removed; write nothing.")
@common.json_option
def gc_command(engine_spec: str, index: str, keep: int, unfinished: bool, dry_run: bool, as_json: bool) -> None:
    """Empty the fields of versions that are neither live, nor newer, nor kept, and delete retired indexes.

    What is live or kept under another name of the same index stays too, and what `ssi revectorize` is writing. Each
    document is written anew without them, over exactly the version read. Mapping entries remain.
    """
    import numpy as np

    from indexer.garbage import collect, plan_collection, remaining_note

    engine = common.open_engine_of(engine_spec, retry=True)
    plan = plan_collection(engine, index, keep=keep, unfinished=unfinished)
    if dry_run:
        if as_json:
            common.print_json(asdict(plan))
        else:
            common.out().print(f"would empty {len(plan.drop)} versions ({', '.join(plan.drop) or 'none'}) in "
                        f"{plan.documents:,} documents and delete {', '.join(plan.indexes) or 'no index'}")  # fmt: skip
        return
    with common.progress(f"gc {index}", total=plan.documents) as update:
        report = collect(engine, plan, rng=np.random.default_rng(), progress=update, notice=common.warn)
    if as_json:
        common.print_json(report.to_json())
    else:
        common.out().print(f"emptied {len(plan.drop)} versions in {report.emptied:,} documents, deleted "
                    f"{', '.join(report.deleted) or 'no index'}")  # fmt: skip
        if plan.unfinished:
            common.out().print(f"left alone: unfinished {', '.join(plan.unfinished)} (finish it, or --unfinished)")
        if note := remaining_note(plan):
            common.out().print(note)
    if report.error is not None:
        raise report.error


@click.command("uninstall", epilog="""\b
Examples:
  ssi uninstall --engine elasticsearch:http://localhost:9200 --index shop --dry-run
  ssi uninstall --engine elasticsearch:http://localhost:9200 --index shop
""")  # fmt: skip
@common.engine_options
@click.option("--dry-run", is_flag=True, help="Print what would be removed; write nothing.")
@common.json_option
def uninstall_command(engine_spec: str, index: str, dry_run: bool, as_json: bool) -> None:
    """Take all that is ours out of an index: vectors of every version, stored scripts, the record of versions.

    Each document is written anew without our fields, over exactly the version read; what its owner wrote stays. Click
    logs (ubi_*) stay. Mapping entries remain, empty: no engine can take a field out of a mapping.
    """
    import numpy as np

    from indexer.garbage import plan_collection, remaining_note, uninstall
    from reranker.engines.protocol import TakesRequests
    from reranker.engines.scripts import Setup, carry_out, remove_steps

    engine = common.open_engine_of(engine_spec, retry=True)
    plan = plan_collection(engine, index, everything=True)
    if dry_run:
        common.print_json(asdict(plan)) if as_json else common.out().print(
            f"would take {len(plan.drop)} versions ({', '.join(plan.drop) or 'none'}) out of {plan.documents:,} "
            f"documents, and delete {', '.join(plan.indexes) or 'no index'}"
        )
        return
    with common.progress(f"uninstall {index}", total=plan.documents) as update:
        report = uninstall(engine, plan, rng=np.random.default_rng(), progress=update, notice=common.warn)
    if isinstance(engine, TakesRequests):
        for head in plan.drop:
            carry_out(engine, remove_steps(Setup(head), engine.capabilities()))
    if as_json:
        common.print_json(report.to_json())
    else:
        common.out().print(f"took {len(plan.drop)} versions out of {report.emptied:,} documents, deleted "
                    f"{', '.join(report.deleted) or 'no index'}")  # fmt: skip
        if note := remaining_note(plan):
            common.out().print(note)
    if report.error is not None:
        raise report.error


@click.command("drift", epilog="""\b
Examples:
  ssi drift --engine elasticsearch:http://localhost:9200 --index shop --model model/
  ssi drift --engine tantivy:./index --index docs --model model/ --sample 1000 --json
""")  # fmt: skip
@common.engine_options
@common.model_option()
@click.option("--sample", type=click.IntRange(1), default=5000, help="Documents looked at, at most.")
@click.option("--seed", type=int, default=0, help="Chooses them.")
@common.json_option
def drift_command(engine_spec: str, index: str, model_path: Path, sample: int, seed: int, as_json: bool) -> None:
    """Print the share of words that the model does not know and how far idf has shifted, and whether to train again."""
    import numpy as np

    from indexer.drift import measure_drift
    from reranker.models.model_folder import load_model

    engine = common.open_engine_of(engine_spec, retry=True)
    model = load_model(model_path, engine)
    drift = measure_drift(engine, index, model.encoder, sample=sample, rng=np.random.default_rng(seed))
    if as_json:
        common.print_json(drift.to_json())
        return
    console = common.out()
    console.print(f"{drift.documents:,} documents, {drift.tokens:,} words")
    console.print(
        f"unknown words: {drift.unknown_share:.2%} of all, in {drift.documents_with_unknown:.1%} of the documents; "
        f"without a learned row: {drift.without_learned_share:.2%}"
    )
    console.print(f"idf shift: {drift.idf_shift:.3f} on average over {drift.words_compared:,} words")
    if drift.unknown_words:
        console.print("new: " + ", ".join(f"{word} ({n})" for word, n in drift.unknown_words), markup=False)
    if drift.shifted_words:
        console.print("moved: " + ", ".join(f"{w} ({shift:+.2f})" for w, shift in drift.shifted_words), markup=False)
    console.print(drift.advice)
