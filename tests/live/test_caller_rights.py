"""With `ssi serve --proxy` every caller sees what the engine shows it, and no more: real engines with security."""

from __future__ import annotations

import itertools
import re
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from reranker.engines import EngineSettings, open_engine
from reranker.engines.protocol import WriteOp
from reranker.models.model_folder import save_model
from tests.engines.launcher import QUICK_START, EngineProcess
from tests.engines.security import DEMO_ADMIN, FileUser, Security
from tests.live.callers import Site, Told, basic, lines, unordered
from tests.live.service_process import ServiceProcess
from tests.served import model_of, random_documents, serve
from tests.unit.service.upstream import Arrived, Upstream, passing_to, running_upstream

SHOP, OTHER = "rights-shop", "rights-other"
PASSWORD = "Canary-Of-7-Rights!"
WORDS = "word3 word11"
N = 60
OF_TEXT, OF_SECRET, OF_HIDDEN, OF_OTHER, OF_TITLE = (
    f"canary{part}" for part in ("text", "secret", "hidden", "other", "title")
)
"""Words of all texts, of all secrets, of the texts with tag y, of the other index, and of all titles."""
DOCUMENTS = {
    name: {
        "title": f"{one['title']} {OF_TITLE}",
        "text": f"{one['text']} {OF_TEXT}" + f" {OF_HIDDEN}" * (one["tag"] == "y"),
        "tag": one["tag"],
        "secret": OF_SECRET,
        "n": place,
    }
    for place, (name, one) in enumerate(random_documents(N).items())
}
PROPERTIES = {"secret": {"type": "keyword"}, "n": {"type": "long"}}
READS = ["read", "view_index_metadata"]
FILTER = {"term": {"tag": "x"}}
OF_FIELDS = ["title", "tag", "n"]
ROLES: dict[str, dict[str, Any]] = {
    "reader": {"indices": [{"names": [SHOP], "privileges": READS}]},
    "stranger": {"indices": [{"names": [OTHER], "privileges": READS}]},
    "partial": {"indices": [{"names": [SHOP], "privileges": READS, "query": FILTER}]},
    "masked": {"indices": [{"names": [SHOP], "privileges": READS, "field_security": {"grant": OF_FIELDS}}]},
}
METADATA = ["indices:admin/get", "indices:admin/mappings/get", "indices:admin/resolve/index"]
USERS: dict[str, dict[str, str]] = {
    **{name: basic(name, PASSWORD) for name in ("chief", *ROLES)},
    "mistaken": basic("reader", "not the password"),
    "unknown": basic("nobody", PASSWORD),
    "anonymous": {},
}
"""Users by name, and the headers that say who they are."""
UNSEEN: dict[str, tuple[str, ...]] = {
    "chief": (),
    "reader": (OF_OTHER,),
    "stranger": (OF_TEXT, OF_SECRET, OF_HIDDEN, OF_TITLE),
    "partial": (OF_HIDDEN, OF_OTHER),
    "masked": (OF_TEXT, OF_SECRET, OF_HIDDEN, OF_OTHER),
    **dict.fromkeys(("mistaken", "unknown", "anonymous"), (OF_TEXT, OF_SECRET, OF_HIDDEN, OF_TITLE, OF_OTHER)),
}
"""Words that no answer to a user may have. No request has one of them."""


class Guarded(NamedTuple):
    """An engine with security, and the service before it."""

    kind: str
    engine: Site
    service: Site
    hop: Upstream
    """Between the service and the engine."""
    own: str
    """The service's own ``Authorization``."""
    process: ServiceProcess


@pytest.fixture(scope="module", params=["elasticsearch", "opensearch"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("rights")
    with _secured(request) as process, running_upstream() as hop, pytest.MonkeyPatch.context() as environ:
        tls = None
        if process.url.startswith("https"):
            authority = folder / "authority.pem"
            authority.write_text(process.authority, encoding="utf-8")
            tls = ssl.create_default_context(cafile=str(authority))
        chief = (DEMO_ADMIN if request.param == "opensearch" else "elastic", PASSWORD)
        site, own = Site(process.url, tls), basic(*chief)
        hop.reply = passing_to(process.url, tls)
        _let_in(request.param, site, own)
        engine = open_engine(f"{request.param}:{hop.url}", EngineSettings(user=chief[0], password=chief[1]))
        served = serve(engine, SHOP, folder, DOCUMENTS, model_of(DOCUMENTS), properties=PROPERTIES)
        save_model(served.model, folder / "model")
        engine.create_index(OTHER, {"properties": {"tag": {"type": "keyword"}, "secret": {"type": "keyword"}}})
        secret = {"title": OF_OTHER, "text": f"{WORDS} {OF_OTHER}", "tag": ["x", OF_OTHER], "secret": "x"}
        engine.bulk(OTHER, [WriteOp("index", "1", secret), WriteOp("index", "d1", secret)])
        engine.refresh(OTHER)
        environ.setenv("SSI_ENGINE_USER", chief[0])
        environ.setenv("SSI_ENGINE_PASSWORD", chief[1])
        options = ["--engine", engine.spec, "--index", SHOP, "--model", str(folder / "model"), "--window", "100"]
        with ServiceProcess(*options, "--proxy", "--deadline-ms", "20000") as service:
            there = Site(f"http://127.0.0.1:{service.port}")
            yield Guarded(request.param, site, there, hop, own["Authorization"], service)
        engine.close()


def _secured(request: pytest.FixtureRequest) -> EngineProcess:
    """Return an engine with security, to be started."""
    if request.param == "opensearch":
        request.getfixturevalue("reranking_launchable")
        security = Security(password=PASSWORD)
        return EngineProcess("opensearch", heap="768m", java_options=QUICK_START, rerank=True, security=security)
    request.getfixturevalue("launchable")("elasticsearch")
    users = {name: FileUser(PASSWORD, ("superuser" if name == "chief" else name,)) for name in ("chief", *ROLES)}
    security = Security(password=PASSWORD, users=users, roles=ROLES)
    return EngineProcess("elasticsearch", heap="512m", java_options=QUICK_START, security=security)


def _let_in(kind: str, site: Site, own: dict[str, str]) -> None:
    """Make the users of OpenSearch; Elasticsearch has them, and needs a trial licence for rights to documents."""
    if kind == "elasticsearch":
        begun = site.ask("POST", "/_license/start_trial?acknowledge=true", headers=own)
        assert begun.status == 200, begun
        return
    for name, role in ROLES.items():
        (of_index,) = role["indices"]
        reads = {
            "index_patterns": of_index["names"],
            "allowed_actions": ["read", *METADATA],
            **({"dls": '{"term":{"tag":"x"}}'} if "query" in of_index else {}),
            **({"fls": OF_FIELDS} if "field_security" in of_index else {}),
        }
        rights = {"cluster_permissions": ["cluster_composite_ops_ro"], "index_permissions": [reads]}
        for what, body in (
            ("roles", rights),
            ("internalusers", {"password": PASSWORD}),
            ("rolesmapping", {"users": [name]}),
        ):
            made = site.ask("PUT", f"/_plugins/_security/api/{what}/{name}", body, own)
            assert made.status in (200, 201), made
    admin = {"password": PASSWORD, "backend_roles": ["admin"]}
    assert site.ask("PUT", "/_plugins/_security/api/internalusers/chief", admin, own).status in (200, 201)


# --- what is asked

MATCH = {"multi_match": {"query": WORDS, "fields": ["title^2", "text"]}}
SEARCH: dict[str, Any] = {"query": MATCH, "size": N}
SCRIPT = {"source": "doc['n'].value + 1", "lang": "painless"}
ALL: dict[str, Any] = {"match_all": {}}


class Call(NamedTuple):
    """A request of a user."""

    method: str
    path: str
    body: Any = None


RERANKED = {
    "search": Call("POST", f"/{SHOP}/_search", SEARCH),
    "search by GET": Call("GET", f"/{SHOP}/_search", SEARCH),
    "search with facets": Call(
        "POST",
        f"/{SHOP}/_search",
        {**SEARCH, "aggs": {"a": {"terms": {"field": "secret"}}, "b": {"max": {"field": "n"}}}},
    ),
    "search with fields": Call("POST", f"/{SHOP}/_search", {**SEARCH, "_source": False, "fields": ["*"]}),
    "search with doc values": Call("POST", f"/{SHOP}/_search", {**SEARCH, "docvalue_fields": ["secret", "n"]}),
    "search with highlights": Call(
        "POST", f"/{SHOP}/_search", {**SEARCH, "highlight": {"fields": {"*": {}}, "require_field_match": False}}
    ),
    "search in the title": Call("POST", f"/{SHOP}/_search", {"query": {"match": {"title": "word0 word1"}}, "size": N}),
    "search that filters by a secret": Call(
        "POST",
        f"/{SHOP}/_search",
        {"query": {"bool": {"must": MATCH, "filter": {"exists": {"field": "secret"}}}}, "size": N},
    ),
    "search with a lookup in another index": Call(
        "POST",
        f"/{SHOP}/_search",
        {
            "query": {
                "bool": {"must": MATCH, "filter": {"terms": {"tag": {"index": OTHER, "id": "1", "path": "tag"}}}}
            },
            "size": N,
        },
    ),
    "several searches": Call(
        "POST",
        "/_msearch",
        lines({"index": SHOP}, SEARCH, {"index": OTHER}, SEARCH, {"index": SHOP}, {"query": ALL, "size": 3}),
    ),
    "several searches of the index": Call("POST", f"/{SHOP}/_msearch", lines({}, SEARCH, {}, {"size": 0}, {}, SEARCH)),
}
"""Requests whose answers may be in another order than the engine's, and nothing else."""
PASSED = {
    "another index": Call("POST", f"/{OTHER}/_search", SEARCH),
    "both indexes": Call("POST", f"/{SHOP},{OTHER}/_search", SEARCH),
    "all indexes": Call("POST", "/_search", {"query": {"match": {"text": WORDS}}, "sort": ["_index", "_doc"]}),
    "a pattern": Call("POST", "/rights-*/_search?filter_path=hits", {**SEARCH, "sort": ["_index", "_doc"]}),
    "an encoded pattern": Call("POST", "/rights-%2A/_search", {**SEARCH, "sort": ["_index", "_doc"]}),
    "in another order": Call("POST", f"/{SHOP}/_search", {**SEARCH, "sort": [{"n": "asc"}]}),
    "without a text": Call("POST", f"/{SHOP}/_search", {"query": ALL, "size": N}),
    "text in the URL": Call("GET", f"/{SHOP}/_search?q=word1&size={N}"),
    "facets only": Call("POST", f"/{SHOP}/_search", {"size": 0, "aggs": {"a": {"terms": {"field": "secret"}}}}),
    "top hits": Call(
        "POST",
        f"/{SHOP}/_search",
        {"size": 0, "aggs": {"a": {"terms": {"field": "tag"}, "aggs": {"b": {"top_hits": {"size": 5}}}}}},
    ),
    "aggregation with a script": Call(
        "POST", f"/{SHOP}/_search", {"size": 0, "aggs": {"a": {"avg": {"script": SCRIPT}}}}
    ),
    "runtime field": Call(
        "POST",
        f"/{SHOP}/_search",
        {"runtime_mappings": {"r": {"type": "long", "script": SCRIPT}}, "fields": ["r"], "size": 3, "sort": ["n"]},
    ),
    "script field": Call(
        "POST",
        f"/{SHOP}/_search",
        {"script_fields": {"s": {"script": SCRIPT}}, "size": 3, "sort": ["n"], "_source": True},
    ),
    "score by a script": Call(
        "POST", f"/{SHOP}/_search", {"query": {"script_score": {"query": MATCH, "script": SCRIPT}}, "size": N}
    ),
    "lookup in another index": Call(
        "POST",
        f"/{SHOP}/_search",
        {"query": {"terms": {"tag": {"index": OTHER, "id": "1", "path": "tag"}}}, "size": N, "sort": ["n"]},
    ),
    "more like a document of another index": Call(
        "POST",
        f"/{SHOP}/_search",
        {
            "query": {
                "more_like_this": {"fields": ["text"], "like": [{"_index": OTHER, "_id": "1"}], "min_term_freq": 1}
            },
            "sort": ["n"],
        },
    ),
    "collapsed": Call("POST", f"/{SHOP}/_search", {**SEARCH, "collapse": {"field": "secret"}}),
    "profile": Call("POST", f"/{SHOP}/_search?filter_path=hits.total", {**SEARCH, "profile": True}),
    "count": Call("POST", f"/{SHOP}/_count", {"query": MATCH}),
    "count of a pattern": Call("GET", "/rights-*/_count"),
    "document": Call("GET", f"/{SHOP}/_doc/d1"),
    "document of the other index": Call("GET", f"/{OTHER}/_doc/d1"),
    "source": Call("GET", f"/{SHOP}/_source/d2"),
    "whether a document is there": Call("HEAD", f"/{SHOP}/_doc/d1"),
    "documents": Call("POST", f"/{SHOP}/_mget", {"ids": [f"d{n}" for n in range(12)]}),
    "documents of several indexes": Call(
        "POST", "/_mget", {"docs": [{"_index": SHOP, "_id": "d1"}, {"_index": OTHER, "_id": "d1"}]}
    ),
    "mapping": Call("GET", f"/{SHOP}/_mapping"),
    "index": Call("GET", f"/{OTHER}"),
    "indexes": Call("GET", "/_cat/indices/rights-*?h=index,docs.count&s=index"),
    "field capabilities": Call("GET", f"/{SHOP}/_field_caps?fields=secret,title"),
    "field capabilities of all": Call("POST", "/_field_caps?fields=tag"),
    "explanation": Call("POST", f"/{SHOP}/_explain/d3", {"query": {"match": {"text": "word1"}}}),
    "term vectors": Call("GET", f"/{SHOP}/_termvectors/d1?fields=text,title"),
    "validation": Call("POST", f"/{SHOP}/_validate/query?explain=true", {"query": {"match": {"text": "word1"}}}),
    "health": Call("GET", "/_cluster/health?filter_path=status,cluster_name"),
    "settings of the cluster": Call("GET", "/_cluster/settings"),
    "nodes": Call("GET", "/_nodes/_local?filter_path=nodes.*.version"),
    "who am I": Call("GET", "/_security/_authenticate?filter_path=username,roles"),
    "users": Call("GET", "/_security/user"),
    "account of OpenSearch": Call("GET", "/_plugins/_security/api/account"),
    "an index that is not there": Call("POST", "/rights-none/_search", SEARCH),
    "a body that is no search": Call("POST", f"/{SHOP}/_search", {"query": {"no_such_clause": {}}}),
    "several searches that all pass": Call(
        "POST", "/_msearch", lines({"index": OTHER}, {}, {"index": SHOP}, {"size": 0})
    ),
}
"""Requests whose answers are the engine's own, byte by byte."""
OWN_JOBS = re.compile(
    rf"/{SHOP}(/_settings/index\.uuid|/_alias|/_mapping(/field/[^/]+)?)?|/_nodes/_local|/_cluster/stats|/"
    rf"|/ssi-control/.*|/{SHOP}/_analyze"
)
"""Paths that the service asks for itself."""
numbers = itertools.count()


def made(guarded: Guarded, call: Call, user: str) -> tuple[Told, list[Arrived]]:
    """Return the answer of the service to a user's call, and the requests that arrived at the engine meanwhile."""
    before = len(guarded.hop.requests)
    named = f"call-{next(numbers)}"
    answer = guarded.service.ask(*call, headers={**USERS[user], "X-Opaque-Id": named})
    arrived = guarded.hop.requests[before:]
    mine = USERS[user].get("Authorization")
    n_mine = 0
    for one in arrived:
        said, path = one.headers.get("authorization"), one.target.partition("?")[0]
        if said == mine:
            n_mine += 1
        elif one.headers.get("x-opaque-id") == named or path != f"/{SHOP}/_search":
            assert said == guarded.own, (user, one)
            reads = one.method in ("GET", "HEAD") or path.endswith(("/_analyze", "/ssi-control/_mget"))
            assert OWN_JOBS.fullmatch(path) and reads, (user, one)
        else:  # a search of the health check, which is nobody's
            assert said == guarded.own and "x-opaque-id" not in one.headers, (user, one)
    assert n_mine > 0, "the engine was not asked for the caller"
    return answer, arrived


def check_unseen(user: str, answer: Told) -> None:
    for word in UNSEEN[user]:
        assert word.encode() not in answer.content, (user, word)


@pytest.mark.parametrize("name", RERANKED)
def test_a_reranked_answer_has_the_documents_that_the_engine_shows_the_user(guarded: Guarded, name: str) -> None:
    answered = set()
    for user, who in USERS.items():
        own = guarded.engine.ask(*RERANKED[name], headers=who)
        ours, _ = made(guarded, RERANKED[name], user)
        check_unseen(user, ours)
        assert ours.status == own.status, (user, own, ours)
        if own.status != 200:
            assert ours.same == own.same, user
        elif "responses" in own.value:
            theirs, mine = ([unordered(one) for one in told.value["responses"]] for told in (own, ours))
            assert mine == theirs, user
            answered.add(user)
        else:
            assert unordered(ours.value) == unordered(own.value), user
            # Who may not read the fields with the vectors gets the engine's order.
            assert ours.headers["x-ssi-reranked"] == "true" or user == "masked", (user, ours)
            answered.add(user)
    assert "chief" in answered


def test_the_model_orders_what_each_user_sees(guarded: Guarded) -> None:
    call = RERANKED["search"]
    orders = {}
    for user in ("chief", "reader", "partial"):
        own, ours = guarded.engine.ask(*call, headers=USERS[user]), made(guarded, call, user)[0]
        theirs, orders[user] = ([hit["_id"] for hit in told.value["hits"]["hits"]] for told in (own, ours))
        assert orders[user] != theirs and sorted(orders[user]) == sorted(theirs)
    assert orders["chief"] == orders["reader"]
    assert orders["partial"] and {DOCUMENTS[name]["tag"] for name in orders["partial"]} == {"x"}


@pytest.mark.parametrize("name", PASSED)
def test_all_other_answers_are_those_that_the_engine_gives_the_user(guarded: Guarded, name: str) -> None:
    for user, who in USERS.items():
        own = guarded.engine.ask(*PASSED[name], headers=who)
        ours, _ = made(guarded, PASSED[name], user)
        check_unseen(user, ours)
        assert ours.same == own.same, user


def test_who_is_refused_gets_the_engines_own_words(guarded: Guarded) -> None:
    for user, status in {"stranger": 403, "mistaken": 401, "unknown": 401, "anonymous": 401}.items():
        for name in ("search", "several searches of the index"):
            answer, arrived = made(guarded, RERANKED[name], user)
            told = [answer.status]
            if answer.status == 200 and "_msearch" in RERANKED[name].path:
                told = [one["status"] for one in answer.value["responses"]]
            assert set(told) == {status}, (user, name, answer)
            # Others may be the service's own jobs, which it does at any time.
            assert RERANKED[name].path in {one.target for one in arrived}
        if status == 401 and guarded.kind == "elasticsearch":
            assert "Basic" in answer.headers["www-authenticate"]


def test_a_scroll_shows_each_user_what_the_engine_shows(guarded: Guarded) -> None:
    first = Call("POST", f"/{SHOP}/_search?scroll=1m&size=7", {"query": ALL, "sort": ["_doc"]})

    def read(site: Site, user: str) -> list[Told]:
        answers = [site.ask(*first, headers=USERS[user])]
        while answers[-1].status == 200 and answers[-1].value["hits"]["hits"]:
            more = {"scroll": "1m", "scroll_id": answers[-1].value["_scroll_id"]}
            answers.append(site.ask("POST", "/_search/scroll", more, USERS[user]))
        if answers[-1].status == 200:
            opened = {"scroll_id": answers[-1].value["_scroll_id"]}
            answers.append(site.ask("DELETE", "/_search/scroll", opened, USERS[user]))
        return answers

    for user in USERS:
        own, ours = read(guarded.engine, user), read(guarded.service, user)
        assert [one.same for one in ours] == [one.same for one in own], user
        for answer in ours:
            check_unseen(user, answer)
    for user in ("stranger", "anonymous", "partial"):
        answers = []
        for site in (guarded.engine, guarded.service):
            opened = site.ask(*first, headers=USERS["reader"]).value["_scroll_id"]
            answers.append(site.ask("POST", "/_search/scroll", {"scroll": "1m", "scroll_id": opened}, USERS[user]))
        assert answers[0].status == answers[1].status, (user, answers)
        check_unseen(user, answers[1])


def test_a_point_in_time_shows_each_user_what_the_engine_shows(guarded: Guarded) -> None:
    elastic = guarded.kind == "elasticsearch"
    opening = Call("POST", f"/{SHOP}/_pit?keep_alive=1m" if elastic else f"/{SHOP}/_search/point_in_time?keep_alive=1m")
    key, closing = ("id", "/_pit") if elastic else ("pit_id", "/_search/point_in_time")

    def read(site: Site, user: str) -> list[tuple[Any, ...]]:
        opened = site.ask(*opening, headers=USERS[user])
        if opened.status != 200:
            return [opened.same]
        pit = opened.value[key]
        told = []
        for asking in (user, "stranger", "anonymous"):
            answer = site.ask("POST", "/_search", {**SEARCH, "pit": {"id": pit, "keep_alive": "1m"}}, USERS[asking])
            check_unseen(asking, answer)
            found = [hit["_id"] for hit in answer.value["hits"]["hits"]] if answer.status == 200 else []
            told.append((answer.status, found))
        assert set(told[0][1]) <= set(DOCUMENTS)
        ended = site.ask("DELETE", closing, {key: pit if elastic else [pit]}, USERS[user])
        return [*told, (ended.status,)]

    for user in USERS:
        assert read(guarded.service, user) == read(guarded.engine, user), user


def test_a_user_who_acts_for_another_sees_what_the_other_sees(guarded: Guarded) -> None:
    if guarded.kind != "elasticsearch":
        pytest.skip("only Elasticsearch has es-security-runas-user")
    for other in ("reader", "stranger", "partial", "nobody-at-all"):
        headers = {**USERS["chief"], "es-security-runas-user": other}
        for call in (RERANKED["search"], PASSED["who am I"], PASSED["without a text"]):
            own, ours = (site.ask(*call, headers=headers) for site in (guarded.engine, guarded.service))
            assert ours.status == own.status, (other, own, ours)
            for word in UNSEEN.get(other, UNSEEN["anonymous"]):
                assert word.encode() not in ours.content, (other, word)
            if call is RERANKED["search"] and own.status == 200:
                assert unordered(ours.value) == unordered(own.value)
            else:
                assert ours.same == own.same
    denied = {**USERS["reader"], "es-security-runas-user": "chief"}
    own, ours = (site.ask(*RERANKED["search"], headers=denied) for site in (guarded.engine, guarded.service))
    assert ours.status == 403 and ours.same == own.same


def test_users_at_the_same_time_are_not_taken_for_each_other(guarded: Guarded) -> None:
    names = ["search", "search with facets", "search with fields"]
    asked = [(user, name) for _ in range(6) for name in names for user in USERS]

    def ask(one: tuple[str, str]) -> Told:
        return guarded.service.ask(*RERANKED[one[1]], headers=USERS[one[0]])

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, asked))
    expected = {one: guarded.engine.ask(*RERANKED[one[1]], headers=USERS[one[0]]) for one in asked[: len(asked) // 6]}
    for one, ours in zip(asked, answers, strict=True):
        own = expected[one]
        check_unseen(one[0], ours)
        assert ours.status == own.status, (one, ours)
        if own.status == 200:
            assert unordered(ours.value) == unordered(own.value), one
        else:
            assert ours.same == own.same, one
