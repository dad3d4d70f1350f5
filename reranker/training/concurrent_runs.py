"""Concurrent runs of training, one for each core: the results do not depend on how many run at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final, TypeVar

from threadpoolctl import threadpool_limits  # type: ignore[import-untyped, unused-ignore]

from reranker.cores import Abandoned, n_cores

Result = TypeVar("Result")
GoOn = Callable[..., None]
"""Progress callback of a run: raises `Abandoned` when the others have failed or were abandoned."""
RUNS_MB: Final = 400
"""Memory for the tables of concurrent runs, MiB; a single run may take more."""


@contextmanager
def one_core_a_product() -> Iterator[None]:
    """Compute products of dense matrices on one core each while the context lasts.

    The products of a run are small: sharing one among cores takes longer than the product, and takes the cores from
    other runs. The sums, too, would depend on the number of cores.
    """
    with threadpool_limits(limits=1, user_api="blas"):
        yield


def mb_of_run(n_documents: int, n_rows: int, dim: int) -> float:
    """Return the memory of a run's tables, MiB: Vd; U and V, those of the epoch before, and the best."""
    return 4 * dim * (n_documents + 6 * n_rows) / 2**20


def concurrent_runs(runs: Sequence[Callable[[GoOn], Result]], mb_of_each: float) -> Iterator[Result]:
    """Yield the results of the runs, in order.

    The runs share nothing that they change, and use one core each. As many run at the same time as fit into `RUNS_MB`;
    they begin in order. Closing the generator, or an error of a run, stops the others.
    """
    stopped = threading.Event()

    def go_on(*_: object) -> None:
        if stopped.is_set():
            raise Abandoned

    n_at_once = max(1, min(len(runs), n_cores(), int(RUNS_MB / max(mb_of_each, 1.0))))
    with ThreadPoolExecutor(n_at_once, thread_name_prefix="ssi-training") as pool:
        waiting = [pool.submit(run, go_on) for run in runs]
        try:
            for each in waiting:
                yield each.result()
        finally:
            stopped.set()
            pool.shutdown(cancel_futures=True)
