"""Functions to train, index and search in five lines: ``reranker.train``, ``index``, ``search``.

They have the defaults of the commands. The modules that they call offer all other options of the commands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from indexer.build import BuildReport, build_index
from reranker.engines import open_engine
from reranker.engines.protocol import Engine
from reranker.errors import TrainingError
from reranker.models.ranking_model import RankingModel
from reranker.releases import ControlRecord, read_control
from reranker.rerank.answer import RerankedPage
from reranker.rerank.calibration.kept import Calibration
from reranker.rerank.search import Reranker
from reranker.tables import read_judgements, read_links, read_pairs, read_queries
from reranker.text.view import TextView
from reranker.training import (
    DocumentSource,
    TrainConfig,
    TrainingReport,
    from_judgements,
    from_links,
    from_pairs,
    train_model,
)


def train(
    docs: str | Path,
    links: str | Path | None = None,
    *,
    qrels: str | Path | None = None,
    queries: str | Path | None = None,
    pairs: str | Path | None = None,
    fields: Iterable[str] = ("title", "text"),
    config: TrainConfig | None = None,
) -> tuple[RankingModel, TrainingReport]:
    """Train a model as `ssi train` does.

    Parameters
    ----------
    docs : path
        Documents, one JSON object per line (or Parquet), with an ``id`` and the ``fields``.
    links : path, optional
        Links between documents: source TAB target.
    qrels, queries : path, optional
        Judgments in the TREC format, and the texts of the judged queries: id TAB text. Give both or neither.
    pairs : path, optional
        Preference pairs, as `ssi clicks pairs` writes them.
    fields : iterable of str
        Text fields, such as ``title^2``.
    config : TrainConfig, optional
        Settings of the training; None: the defaults.

    Returns
    -------
    RankingModel, TrainingReport
        The model, and how it came about and compares with its lexical score.

    Raises
    ------
    TrainingError
        If not exactly one kind of evidence is given: links, judgments with queries, or pairs.
    """
    given = [name for name, path in {"links": links, "qrels": qrels, "pairs": pairs}.items() if path is not None]
    if len(given) != 1 or (qrels is None) != (queries is None):
        raise TrainingError(
            f"{' and '.join(given) or 'no evidence'} given: train on links, on qrels with queries, or on pairs"
        )
    if links is not None:
        evidence = from_links(read_links(Path(links)))
    elif pairs is not None:
        evidence = from_pairs(read_pairs(Path(pairs)))
    else:
        texts = {query.id: query.text for query in read_queries(Path(str(queries)))}
        evidence = from_judgements(read_judgements(Path(str(qrels))), texts)
    corpus = DocumentSource(Path(docs), view=TextView.parse(list(fields)))
    return train_model(corpus, evidence, config)


def index(engine: str | Engine, name: str, docs: str | Path, model: RankingModel | None = None) -> BuildReport:
    """Send documents with the vectors of a model to an index, which is created if it does not exist.

    ``engine`` is an engine or its spec (``tantivy:./index``, ``elasticsearch:http://localhost:9200``). Raises the
    errors of `indexer.build.build_index`.
    """
    return build_index(_engine_of(engine), name, Path(docs), model)


def search(
    engine: str | Engine,
    name: str,
    model: RankingModel,
    query: str,
    body: Mapping[str, Any] | None = None,
    *,
    size: int = 10,
) -> RerankedPage:
    """Search and return the first page, reranked with the calibration that is stored for the model and the index.

    ``body`` is a search body with ``{{query}}`` in the place of the query text. None searches the text fields of the
    model. Raises the errors of `reranker.rerank.search.Reranker.search`.
    """
    opened = _engine_of(engine)
    record: ControlRecord = read_control(opened, name)
    calibration = Calibration.from_release(record.calibration(model.model_id))
    return Reranker(opened, name, model, calibration=calibration).search(query, body, size=size)


def _engine_of(engine: str | Engine) -> Engine:
    return open_engine(engine) if isinstance(engine, str) else engine
