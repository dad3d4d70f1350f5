"""``ssi drift``: measure how far the documents of an index have moved from those that its model was trained on."""

from __future__ import annotations

from pathlib import Path

import click

from reranker.cli import common


@click.command(
    "drift",
    epilog="""\b
Examples:
  ssi drift --engine elasticsearch:http://localhost:9200 --index shop --model model/
  ssi drift --engine tantivy:./index --index docs --model model/ --sample 1000 --json
""",
)
@common.engine_options
@common.model_option()
@click.option("--sample", type=click.IntRange(1), default=5000, help="Maximum number of documents to read.")
@click.option("--seed", type=int, default=0, help="Seed of the sample.")
@common.json_option
def drift_command(engine_spec: str, index: str, model_path: Path, sample: int, seed: int, as_json: bool) -> None:
    """Print the share of words unknown to the model, the shift of idf, and whether you should train again."""
    import numpy as np

    from indexer.drift import measure_drift
    from reranker.models.model_folder import changed_analyzer, load_model

    engine = common.open_engine_of(engine_spec, retry=True)
    model = load_model(model_path, engine)
    if warning := changed_analyzer(model, engine):
        common.warn(f"warning: {warning}")
    drift = measure_drift(engine, index, model.encoder, sample=sample, rng=np.random.default_rng(seed))
    if as_json:
        common.print_json(drift.to_json())
        return
    console = common.out()
    console.print(f"{drift.documents:,} documents, {drift.tokens:,} words")
    console.print(
        f"unknown words: {drift.unknown_share:.2%} of all, in {drift.documents_with_unknown:.1%} of the documents; "
        f"without a learned vector: {drift.without_learned_share:.2%}"
    )
    console.print(f"idf shift: {drift.idf_shift:.3f} on average over {drift.words_compared:,} words")
    if drift.unknown_words:
        console.print("new words: " + ", ".join(f"{word} ({n})" for word, n in drift.unknown_words), markup=False)
    if drift.shifted_words:
        console.print(
            "shifted idf: " + ", ".join(f"{w} ({shift:+.2f})" for w, shift in drift.shifted_words), markup=False
        )
    console.print(drift.advice)
