"""Retries: which failures pass, how long is waited, and that neither pages nor changes are lost or done twice."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from reranker.deadline import Deadline
from reranker.engines import EngineSettings, open_engine
from reranker.engines.protocol import Engine, ReadsByWrites
from reranker.engines.retry import VIEW_LOST, Attempts, RequestRetryPolicy, Retries, attempts_of, back_off_s, retried
from reranker.engines.wire import request_deadline
from reranker.errors import (
    EngineAuthError,
    EngineError,
    EngineOverloaded,
    EngineRejected,
    EngineUnavailable,
    IndexMissing,
    VersionConflict,
)
from tests.engines.scripted import FAULTS, Answer, Request, Script, ScriptedServer, error_body, json_answer, whole
from tests.unit.indexer.stand_ins import FakeTime

DOWN = EngineUnavailable("no answer", status=None)


class Highest(random.Random):
    """Draws the upper end each time: pauses are as long as they may be."""

    def random(self) -> float:
        return 1.0


def retries_of(time: FakeTime, notes: list[str] | None = None, **policy: Any) -> Retries:
    told: list[str] = [] if notes is None else notes
    made = Retries(RequestRetryPolicy(**policy), rng=Highest(), notice=told.append, sleep=time.sleep, clock=time.clock)
    made.answered = True
    return made


def failing(*errors: EngineError) -> Callable[[], str]:
    """Return a function that raises these errors, one a call, and then returns."""
    queue = list(errors)

    def call() -> str:
        if queue:
            raise queue.pop(0)
        return "done"

    return call


def test_pauses_double_up_to_the_longest_and_each_is_noted() -> None:
    time, notes = FakeTime(), list[str]()
    retries = retries_of(time, notes, first_pause_s=1, longest_pause_s=5)
    assert retried(failing(*[DOWN] * 5), retries.attempts("GET /docs")) == "done"
    assert time.naps == [1, 2, 4, 5, 5]
    assert retries.count == len(notes) == 5
    assert notes[0] == "GET /docs failed (no answer): attempt 2 in 1.0 s, giving up in 300 s"
    assert "attempt 3 in 2.0 s, giving up in 299 s" in notes[1]


def test_pauses_are_drawn_between_nothing_and_the_limit() -> None:
    time = FakeTime()
    retries = Retries(
        RequestRetryPolicy(first_pause_s=1, longest_pause_s=1, deadline_s=1e6),
        rng=random.Random(5),
        notice=print,
        sleep=time.sleep,
        clock=time.clock,
    )
    retries.answered = True
    retried(failing(*[DOWN] * 400), retries.attempts("r"))
    assert 0 <= min(time.naps) < 0.05
    assert 0.95 < max(time.naps) <= 1
    assert sum(time.naps) / 400 == pytest.approx(0.5, abs=0.05)


def test_the_back_off_never_overflows() -> None:
    assert back_off_s(10**6, 0.5, 30) == 30


def test_retry_after_is_honoured_where_it_is_longer() -> None:
    time = FakeTime()
    asked = [EngineOverloaded("busy", status=429, retry_after_s=seconds) for seconds in (7.0, 0.5)]
    retried(failing(*asked), retries_of(time, first_pause_s=1).attempts("r"))
    assert time.naps == [7, 2]


def test_a_retry_after_past_the_deadline_is_not_waited_for() -> None:
    time = FakeTime()
    asked = EngineOverloaded("busy", status=429, retry_after_s=400.0)
    with pytest.raises(EngineOverloaded, match="the engine requests a pause of 400 s"):
        retried(failing(asked), retries_of(time).attempts("r"))
    assert time.naps == []


def test_past_the_deadline_the_error_names_the_request_the_time_and_the_remedy() -> None:
    time = FakeTime()
    retries = retries_of(time, first_pause_s=4, longest_pause_s=4, deadline_s=10)
    with pytest.raises(EngineUnavailable, match=r"^GET /docs failed 3 times in 8 s, .*no answer.*start the same") as e:
        retried(failing(*[DOWN] * 9), retries.attempts("GET /docs"))
    assert time.naps == [4, 4]
    # Whoever retries a whole of several requests does not begin another deadline.
    with pytest.raises(EngineUnavailable):
        retries.attempts("all").wait(e.value)
    assert retries.count == 2


@pytest.mark.parametrize("cls", [EngineRejected, EngineAuthError, VersionConflict, IndexMissing])
def test_what_the_engine_refuses_is_not_sent_again(cls: type[EngineError]) -> None:
    time = FakeTime()
    with pytest.raises(cls):
        retried(failing(cls("no", status=400)), retries_of(time).attempts("r"))
    assert time.naps == []


def test_an_address_where_nothing_ever_answered_is_not_waited_for() -> None:
    time = FakeTime()
    retries = retries_of(time)
    refused = EngineUnavailable("refused", status=None, unreached=True)
    assert retried(failing(refused), retries.attempts("r")) == "done"
    retries.answered = False
    assert retried(failing(DOWN), retries.attempts("r")) == "done"
    with pytest.raises(EngineUnavailable):
        retried(failing(refused), retries.attempts("r"))


@pytest.mark.parametrize("status", [200, 500])
def test_a_request_that_makes_the_engine_fail_each_time_is_given_up_early(status: int) -> None:
    time = FakeTime()
    attempts = retries_of(time, max_answers=3, deadline_s=1e6).attempts("r")
    broken = EngineUnavailable("broken", status=status)
    # Other failures between them begin the count again.
    assert retried(failing(broken, broken, DOWN, broken, broken), attempts) == "done"
    attempts.succeeded()
    with pytest.raises(EngineUnavailable, match="failed 3 times"):
        retried(failing(*[broken] * 9), attempts)


def test_a_lost_view_is_retried_only_by_what_opens_another() -> None:
    time = FakeTime()
    lost = EngineUnavailable("lost", status=404, error_type=VIEW_LOST)
    assert retried(failing(lost), retries_of(time).attempts("r", resumes=True)) == "done"
    with pytest.raises(EngineUnavailable):
        retried(failing(lost), retries_of(time).attempts("r"))


def test_progress_begins_the_deadline_again() -> None:
    time = FakeTime()
    attempts = retries_of(time, first_pause_s=4, longest_pause_s=4, deadline_s=10).attempts("r")
    for _ in range(10):
        attempts.wait(DOWN)
        attempts.wait(DOWN)
        attempts.succeeded()
    time.now += 1000  # time of successful work does not count
    attempts.wait(DOWN)
    assert len(time.naps) == 21


@pytest.mark.parametrize("step", [0.0, -50.0])
def test_a_clock_that_stands_still_or_goes_back_ends_the_attempts_all_the_same(step: float) -> None:
    naps: list[float] = []
    now = [1000.0]

    def clock() -> float:
        now[0] += step
        return now[0]

    policy = RequestRetryPolicy(deadline_s=100)
    retries = Retries(policy, rng=Highest(), notice=print, sleep=naps.append, clock=clock)
    with pytest.raises(EngineUnavailable):
        retried(failing(*[DOWN] * 1000), retries.attempts("r"))
    assert sum(naps) <= 100


def test_an_engine_without_retries_has_one_attempt() -> None:
    with pytest.raises(EngineUnavailable) as caught:
        retried(failing(DOWN), attempts_of(object(), "r"))
    assert caught.value is DOWN
    with pytest.raises(EngineUnavailable):
        Attempts(None, "r").wait(DOWN)


# --- over HTTP


@pytest.fixture(params=["elasticsearch", "opensearch"])
def server(request: pytest.FixtureRequest) -> Iterator[PagingServer]:
    running = PagingServer(request.param, hang_s=1.2)
    with running:
        yield running


@pytest.fixture
def time() -> FakeTime:
    return FakeTime()


@pytest.fixture
def engine(server: PagingServer, time: FakeTime, request: pytest.FixtureRequest) -> Iterator[Engine]:
    # On a busy machine the server itself may take a while.
    patience_s = 0.8 if request.node.callspec.params.get("fault") == "hang" else 20.0
    opened = open_engine(server.spec, EngineSettings(read_timeout_s=patience_s), retries_of(time))
    yield opened
    opened.close()


class PagingServer(ScriptedServer):
    """A server with documents that can be read page by page: by scroll, or by point in time."""

    def __init__(self, product: str, hang_s: float) -> None:
        super().__init__(product, hang_s)
        self.seq_nos = {f"d{k}": k for k in range(25)}
        self.uuid = "u1"
        self.views: dict[str, list[tuple[str, int]]] = {}
        self.queries: list[Any] = []
        self.orders: list[Any] = []

    def change(self, name: str) -> None:
        """Write a document again: it moves to the end of the order of writes."""
        self.seq_nos.pop(name, None)
        self.seq_nos[name] = max(self.seq_nos.values()) + 1

    def _behave(self, request: Request) -> Answer:
        if request.path.endswith(("/_pit", "/scroll")) and request.method == "DELETE":
            return json_answer(200, {"succeeded": True})
        if request.path.endswith("/_pit"):
            return json_answer(200, {"id": self._view()})
        if request.path.endswith("/scroll"):
            return self._page(self._of(request)["scroll_id"], 10)
        if request.path.endswith("/_search"):
            return self._search(self._of(request), request.params)
        if "/_settings" in request.path:
            return json_answer(200, {"docs": {"settings": {"index.uuid": self.uuid}}})
        return super()._behave(request)

    @staticmethod
    def _of(request: Request) -> dict[str, Any]:
        import json

        value: dict[str, Any] = json.loads(request.body)
        return value

    def _view(self) -> str:
        name = f"view{len(self.views)}"
        self.views[name] = sorted(self.seq_nos.items(), key=lambda pair: pair[1])
        return name

    def _search(self, body: dict[str, Any], params: dict[str, str]) -> Answer:
        if "pit" not in body or "search_after" not in body:
            self.queries.append(body.get("query"))
            self.orders.append(body["sort"])
        least = 0
        for part in (body.get("query") or {}).get("bool", {}).get("filter", []):
            least = part.get("range", {}).get("_seq_no", {}).get("gte", least)
        name = body["pit"]["id"] if "pit" in body else self._view()
        kept = [pair for pair in self.views[name] if pair[1] >= least]
        if "search_after" in body:
            kept = [pair for pair in kept if pair[1] > body["search_after"][0]]
        self.views[name] = kept
        return self._page(name, body["size"], len(kept))

    def _page(self, name: str, size: int, total: int | None = None) -> Answer:
        page, self.views[name] = self.views[name][:size], self.views[name][size:]
        if self.product == "elasticsearch":
            self.views[name] = page + self.views[name]  # the client says where it is
        hits = [
            {"_id": key, "_index": "docs", "_seq_no": n, "_primary_term": 1, "_source": {"n": n}, "sort": [n, 0]}
            for key, n in page
        ]
        counted = {} if total is None else {"total": {"value": total, "relation": "eq"}}
        return json_answer(200, {"_scroll_id": name, "pit_id": name, "hits": {**counted, "hits": hits}})


def lost(server: ScriptedServer, request: Request) -> Answer:
    """Carry a request out; its answer never arrives."""
    server._behave(request)
    return Answer(mode="reset", body=b"", status=0)


def carried_out(answer: Answer, change: Callable[[], None]) -> Script:
    def script(server: ScriptedServer, request: Request) -> Answer:
        change()
        return answer

    return script


VIEW_GONE = whole(404, VIEW_LOST)
PASSING = [
    "reset_at_once",
    "cut_json",
    "half_closed_body",
    "hang",
    "all_408",
    "all_429_retry_after",
    "all_500",
    "all_502_html",
    "all_503",
    "all_504",
    "ok_html",
]


@pytest.mark.parametrize("fault", PASSING)
def test_reads_are_sent_again(server: PagingServer, engine: Engine, fault: str, time: FakeTime) -> None:
    broken = FAULTS[fault]
    if fault in ("cut_json", "half_closed_body"):

        def broken(server: ScriptedServer, request: Request) -> Answer:
            whole_body = server._behave(request).body
            if fault == "cut_json":
                return Answer(200, whole_body[: len(whole_body) // 2])
            return Answer(200, whole_body[:9], {"Content-Length": str(len(whole_body))}, "cut")

    for path in ("/_count", "/_settings/index.uuid", "/docs", "/_refresh"):
        server.script(path, broken, broken)
    assert engine.count("docs") == 0
    assert engine.index_names("docs") == ("docs",)
    assert engine.index_info("docs").name == "docs"
    engine.refresh("docs")
    assert len(time.naps) == 8
    if fault == "all_429_retry_after":
        assert min(time.naps) >= 1


def test_where_a_caller_sets_a_deadline_nothing_is_sent_again(
    server: PagingServer, engine: Engine, time: FakeTime
) -> None:
    server.script("/_search", whole(503))
    with pytest.raises(EngineUnavailable):
        engine.search("docs", {}, timeout_s=1.0)
    assert (server.calls("/_search"), time.naps) == (1, [])
    server.script("/_search", lambda s, r: json_answer(200, {"hits": {"hits": []}}))
    server._scripts["/_search"].insert(0, whole(503))
    assert engine.search("docs", {}).hits == ()
    assert len(time.naps) == 1


def test_within_the_deadline_of_a_request_nothing_is_sent_again(
    server: PagingServer, engine: Engine, time: FakeTime
) -> None:
    token = request_deadline.set(Deadline(60.0))
    try:
        server.script("/docs/_count", whole(503), whole(503))
        with pytest.raises(EngineUnavailable):
            engine.count("docs")
    finally:
        request_deadline.reset(token)
    assert not time.naps


def test_an_engine_opened_without_retries_asks_once(server: PagingServer) -> None:
    engine = open_engine(server.spec)
    server.script("/_count", whole(503))
    with pytest.raises(EngineUnavailable):
        engine.count("docs")
    assert server.calls("/_count") == 1


def test_bulk_writes_are_left_to_the_loop_that_knows_documents(server: PagingServer, engine: Engine) -> None:
    from reranker.engines import WriteOp

    server.script("/_bulk", FAULTS["cut_json"])
    with pytest.raises(EngineUnavailable):
        engine.bulk("docs", [WriteOp("index", "a", {})])
    assert server.calls("/_bulk") == 1


def test_a_refused_connection_is_waited_for_once_the_engine_has_answered(time: FakeTime) -> None:
    with PagingServer("elasticsearch", 0.1) as running:
        engine = open_engine(running.spec, EngineSettings(), retries_of(time, deadline_s=5))
        engine.retries.answered = False  # type: ignore[attr-defined]
        spec = running.spec
        running.script("/_count", lambda s, r: replace(s._behave(r), headers={"Connection": "close"}))
        engine.count("docs")
    with pytest.raises(EngineUnavailable, match="start the same command again"):
        engine.count("docs")
    assert time.naps
    never = open_engine(spec, EngineSettings(), Retries(rng=Highest(), sleep=time.sleep, clock=time.clock))
    time.naps.clear()
    with pytest.raises(EngineUnavailable, match="check that it is running and the URL is right"):
        never.count("docs")
    assert time.naps == []


def read(engine: Engine, **options: Any) -> list[tuple[str, int]]:
    return [(d.id, d.seq_no) for batch in engine.scan("docs", batch_size=10, **options) for d in batch]


WHOLE = [(f"d{k}", k) for k in range(25)]


@pytest.mark.parametrize("page", [1, 2, 3])
@pytest.mark.parametrize("fault", [lost, VIEW_GONE, whole(503), whole(429, retry_after="2")])
def test_a_scan_that_loses_a_page_yields_each_document_once(
    server: PagingServer, engine: Engine, page: int, fault: Script
) -> None:
    path = "/_search" if server.product == "elasticsearch" or page == 1 else "/scroll"
    behave: Script = lambda s, r: s._behave(r)  # noqa: E731
    before = page - 1 if path == "/_search" else page - 2
    server.script(path, *[behave] * before, fault)
    assert read(engine) == WHOLE
    if fault is VIEW_GONE and (server.product, page) != ("opensearch", 1):
        assert len(server.views) == 2


def test_a_scroll_page_is_never_asked_for_twice(server: PagingServer, engine: Engine) -> None:
    behave: Script = lambda s, r: s._behave(r)  # noqa: E731
    # The second is the deletion of the first view.
    server.script("/scroll", lost, behave, behave, lost)
    assert read(engine, query={"exists": {"field": "n"}}) == WHOLE
    if server.product == "opensearch":
        query = {"exists": {"field": "n"}}
        since = [{"range": {"_seq_no": {"gte": n}}} for n in (0, 19)]
        assert server.queries == [query, *({"bool": {"filter": [part, query]}} for part in since)]
        # The first view is read in its own order, the others in one that is the same in every view.
        assert server.orders == [["_doc"], *[[{"_seq_no": "asc"}]] * 2]
    else:
        assert server.orders == [[{"_shard_doc": "asc"}]]


def test_a_scan_that_never_gets_past_what_it_has_read_ends(
    server: PagingServer, engine: Engine, time: FakeTime
) -> None:
    """Each view gives the one page that is known already, and is lost."""
    page = {"hits": {"total": {"value": 9}, "hits": [{"_id": "a", "_index": "docs", "_seq_no": 3, "sort": [3, 0]}]}}

    def first(server: ScriptedServer, request: Request) -> Answer:
        if request.method == "DELETE":
            return server._behave(request)
        if b"search_after" in request.body or request.path.endswith("/scroll"):
            return VIEW_GONE(server, request)
        return json_answer(200, {**page, "_scroll_id": "view0", "pit_id": "view0"})

    for path in ("/_search", "/scroll"):
        server.script(path, *[first] * 1000)
    with pytest.raises(EngineUnavailable, match="start the same command again"):
        list(engine.scan("docs", batch_size=1))
    assert sum(time.naps) <= 600


@pytest.mark.parametrize("losses", [1, 2, 3])
def test_a_view_lost_again_and_again_loses_no_document(server: PagingServer, engine: Engine, losses: int) -> None:
    behave: Script = lambda s, r: s._behave(r)  # noqa: E731
    if server.product == "elasticsearch":
        server.script("/_search", *[behave, VIEW_GONE] * losses)
    else:
        server.script("/scroll", *[behave, VIEW_GONE] * losses)
    assert read(engine) == WHOLE


def test_documents_changed_before_the_view_was_lost_come_once(server: PagingServer, engine: Engine) -> None:
    def change_and_lose(server: ScriptedServer, request: Request) -> Answer:
        assert isinstance(server, PagingServer)
        server.change("d3")  # yielded already
        server.change("d20")  # not yet
        del server.seq_nos["d21"]
        server.seq_nos["new"] = 99
        return VIEW_GONE(server, request)

    path = "/_search" if server.product == "elasticsearch" else "/scroll"
    if path == "/_search":
        server.script(path, lambda s, r: s._behave(r))
    server.script(path, change_and_lose)
    found = read(engine)
    kept = [f"d{k}" for k in range(25) if k not in (20, 21)]
    assert [key for key, _ in found] == [*kept, "d20", "new"]
    assert dict(found)["d20"] > 24


def test_a_scan_of_an_index_that_was_replaced_meanwhile_ends(server: PagingServer, engine: Engine) -> None:
    def replace_and_lose(server: ScriptedServer, request: Request) -> Answer:
        assert isinstance(server, PagingServer)
        server.uuid = "u2"
        return VIEW_GONE(server, request)

    server.script("/_search" if server.product == "elasticsearch" else "/scroll", replace_and_lose)
    with pytest.raises(EngineUnavailable, match="closed the snapshot"):
        read(engine)


def test_a_role_that_may_not_ask_which_index_it_reads_does_not_resume(server: PagingServer, engine: Engine) -> None:
    server.script("/_settings/index.uuid", whole(403), whole(403))
    server.script("/_search" if server.product == "elasticsearch" else "/scroll", VIEW_GONE)
    with pytest.raises(EngineUnavailable, match="closed the snapshot"):
        read(engine)
    server.script("/_settings/index.uuid", whole(403))
    assert read(engine) == WHOLE


def test_a_view_that_one_shard_lost_is_opened_again(server: PagingServer, engine: Engine) -> None:
    def partly(server: ScriptedServer, request: Request) -> Answer:
        failures = [{"shard": 0, "reason": {"type": VIEW_LOST, "reason": "gone"}}]
        answer = {"_scroll_id": "s", "hits": {"total": {"value": 9}, "hits": []}}
        return json_answer(200, {**answer, "_shards": {"failed": 1, "failures": failures}})

    server.script("/_search", partly)
    assert read(engine) == WHOLE
    # The same page is not asked for again: nothing would bring that shard's view back.
    assert list(server.views) == (["view0", "view1"] if server.product == "elasticsearch" else ["view0"])


def test_a_scan_from_a_write_on_begins_there(server: PagingServer, engine: Engine) -> None:
    assert isinstance(engine, ReadsByWrites)
    server.script("/_search" if server.product == "elasticsearch" else "/scroll", lost)
    found = [d.id for batch in engine.scan_writes("docs", 7, batch_size=10) for d in batch]
    assert found == [f"d{k}" for k in range(25)][-len(found) :]


def test_an_engine_that_stays_away_ends_a_scan(server: PagingServer, engine: Engine, time: FakeTime) -> None:
    server.script("/_search", *[whole(503)] * 200)
    with pytest.raises(EngineUnavailable, match="start the same command again"):
        read(engine)
    assert 200 < sum(time.naps) <= 300


# --- changes whose answer is lost


def test_an_index_that_was_made_without_our_hearing_of_it_is_made(server: PagingServer, engine: Engine) -> None:
    exists = whole(400, "resource_already_exists_exception")
    server.script("/docs", lost, exists)
    engine.create_index("docs", {})
    server.script("/docs", lost, exists)
    with pytest.raises(EngineRejected):  # made by somebody else, without our fields
        engine.create_index("docs", {"properties": {"ours": {"type": "long"}}})
    server.script("/docs", exists)
    with pytest.raises(EngineRejected):
        engine.create_index("docs", {})


def test_an_index_that_was_deleted_without_our_hearing_of_it_is_gone(server: PagingServer, engine: Engine) -> None:
    missing = whole(404, "index_not_found_exception")
    server.script("/docs", lost, missing)
    server.script("/_settings/index.uuid", missing)
    engine.delete_index("docs")
    server.script("/docs", missing)
    with pytest.raises(IndexMissing):
        engine.delete_index("docs")


@pytest.mark.parametrize(("behind", "done"), [(("new",), True), (("new", "old"), False), (("old",), False)])
def test_an_alias_that_was_moved_without_our_hearing_of_it(
    server: PagingServer, engine: Engine, behind: tuple[str, ...], done: bool
) -> None:
    names = {name: {"settings": {"index.uuid": name}} for name in behind}
    server.script("/_aliases", lost, lambda s, r: json_answer(404, error_body(404, "aliases_not_found_exception")))
    server.script("/_settings/index.uuid", lambda s, r: json_answer(200, names))
    if done:
        engine.swap_alias("docs", "new", ["old"])
    else:
        with pytest.raises(EngineRejected):
            engine.swap_alias("docs", "new", ["old"])
