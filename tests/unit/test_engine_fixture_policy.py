"""The rules by which a test gets its engine, is skipped or fails, and the small parts that start one."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines import processes
from tests.engines.assembly import link_tree, parse_java_major
from tests.engines.containers import docker_ready
from tests.engines.policy import (
    REQUIRABLE,
    Means,
    choose_source,
    do_without,
    engine_reason,
    lacking,
    library,
    parse_required,
    what_to_do_without,
)
from tests.engines.recipes import RECIPES, recipe_of
from tests.engines.security import Certificate, FileUser, Security, password_hash


@pytest.mark.parametrize(
    ("means", "source"),
    [
        (Means(url="http://127.0.0.1:1", docker_ready=True), "url"),
        (Means(url="http://127.0.0.1:1", missing_tools=["Maven (mvn)"]), "url"),
        (Means(docker_ready=True), "docker"),
        (Means(docker_ready=True, missing_tools=["Maven (mvn)"]), "docker"),
        (Means(), "launcher"),
        (Means(missing_tools=["Maven (mvn)"]), "nowhere"),
    ],
)
def test_source_is_url_then_docker_then_launcher(means: Means, source: str) -> None:
    assert choose_source(means) == source


@pytest.mark.parametrize(
    ("succeeds", "ready"), [("info", False), ("info image", True), ("info pull", True), ("image pull", False)]
)
def test_docker_is_a_source_only_with_the_image(
    succeeds: str, ready: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library("testcontainers")
    docker = tmp_path / "docker"
    docker.write_text(
        f'#!/bin/sh\ncase " {succeeds} " in *" $1 "*) echo 1 ;; *) echo "no registry" >&2; exit 1 ;; esac\n'
    )
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert docker_ready("elasticsearch") == docker_ready("opensearch") == ready


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", set()),
        ("elasticsearch", {"elasticsearch"}),
        (" elasticsearch, opensearch,data,", {"elasticsearch", "opensearch", "data"}),
        ("chromium,docker-compose", {"chromium", "docker-compose"}),
    ],
)
def test_required_names_are_a_comma_list(text: str, names: set[str]) -> None:
    assert parse_required(text) == names


def test_required_refuses_an_unknown_name_and_lists_the_known() -> None:
    with pytest.raises(ValueError, match=r"solr.*elasticsearch, opensearch, data"):
        parse_required("solr,data")


@pytest.mark.parametrize("name", REQUIRABLE)
def test_what_is_lacking_skips_or_fails_and_is_counted(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    assert request.node.get_closest_marker("live") is None, "a unit test that names an engine starts none"
    monkeypatch.delenv("SSI_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception) as skipped:
        do_without(name, "install it")
    assert lacking([str(skipped.value), str(skipped.value), "another reason"]) == [
        f"2 skipped without {name}: install it"
    ]
    monkeypatch.setenv("SSI_REQUIRE", name)
    with pytest.raises(pytest.fail.Exception, match="install it"):
        do_without(name, "install it")


def test_a_missing_library_skips_or_fails_and_one_that_is_there_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library("json.decoder").JSONDecoder is json.JSONDecoder
    monkeypatch.delenv("SSI_REQUIRE", raising=False)
    with pytest.raises(pytest.skip.Exception, match="without libraries: no_such_library is not installed"):
        library("no_such_library.part")
    monkeypatch.setenv("SSI_REQUIRE", "libraries")
    with pytest.raises(pytest.fail.Exception, match="no_such_library is not installed"):
        library("no_such_library.part")


def test_no_test_skips_for_a_library_by_itself() -> None:
    tests = Path(__file__).resolve().parents[1]
    called = re.compile(r"pytest\.import" + "orskip")  # in parts, so that this file does not find itself
    assert [path.name for path in tests.rglob("*.py") if called.search(path.read_text("utf-8"))] == []


def test_every_name_that_a_skip_offers_can_be_required() -> None:
    tests = Path(__file__).resolve().parents[1]
    offered = {
        name
        for path in tests.rglob("*.py")
        for name in re.findall(r"do_without\(\s*\"([\w-]+)\"", path.read_text("utf-8"))
    }
    assert offered <= set(REQUIRABLE)
    assert {"chromium", "docker-compose", "data", "openssl"} <= offered


def test_only_what_is_required_fails() -> None:
    required = parse_required("opensearch")
    assert what_to_do_without("opensearch", required) == "fail"
    assert what_to_do_without("elasticsearch", required) == "skip"
    assert what_to_do_without("opensearch", frozenset()) == "skip"


def test_reason_names_what_to_install_and_the_variable() -> None:
    reason = engine_reason("opensearch", ["Maven (mvn)", "Java 17 to 23"])
    assert "install Maven (mvn) and Java 17 to 23" in reason
    assert "SSI_TEST_OPENSEARCH_URL" in reason


@pytest.mark.parametrize(
    ("text", "major"),
    [
        ('JAVA_VERSION="17.0.15"', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("no version here", 0),
    ],
)
def test_java_major(text: str, major: int) -> None:
    assert parse_java_major(text) == major


def test_artifacts_have_distinct_file_names() -> None:
    for recipe in (recipe for recipes in RECIPES.values() for recipe in recipes):
        names = [artifact.file_name for artifact in recipe.artifacts]
        assert len(names) == len(set(names))


def test_the_plugins_of_reranking_make_another_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSI_TEST_OPENSEARCH_VERSION", raising=False)
    plain, reranking = recipe_of("opensearch"), recipe_of("opensearch", rerank=True)
    assert reranking.folder_name == f"{plain.folder_name}-rerank"
    assert {"opensearch-ml-plugin", "neural-search"} <= {one.name for one in reranking.artifacts}
    assert set(plain.artifacts) < set(reranking.artifacts)
    monkeypatch.setenv("SSI_TEST_OPENSEARCH_VERSION", "3.3.0")
    with pytest.raises(ValueError, match=r"only OpenSearch 2\.19\.1"):
        recipe_of("opensearch", rerank=True)


def test_the_environment_chooses_an_engines_version(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in RECIPES:
        monkeypatch.delenv(f"SSI_TEST_{kind.upper()}_VERSION", raising=False)
    assert recipe_of("opensearch") is RECIPES["opensearch"][0]
    monkeypatch.setenv("SSI_TEST_OPENSEARCH_VERSION", "3.3.0")
    chosen = recipe_of("opensearch")
    assert {artifact.version for artifact in chosen.artifacts if "opensearch" in artifact.group} == {"3.3.0", "3.3.0.0"}
    assert "opensearch.version=3.3.0\n" in chosen.modules[0].descriptor(chosen.distribution.version)
    assert recipe_of("elasticsearch") is RECIPES["elasticsearch"][0]
    monkeypatch.setenv("SSI_TEST_OPENSEARCH_VERSION", "1.0")
    with pytest.raises(ValueError, match=r"SSI_TEST_OPENSEARCH_VERSION is '1\.0'; .* 2\.19\.1, 3\.3\.0"):
        recipe_of("opensearch")


def test_security_files_say_who_may_do_what() -> None:
    users = {"ann": FileUser("a", ("serve", "index")), "bob": FileUser("b", ("serve",))}
    files = Security(users=users, roles={"serve": {"indices": [{"names": ["x"], "privileges": ["read"]}]}}).files()
    assert [line.split(":")[0] for line in files["users"].splitlines()] == ["ann", "bob"]
    assert files["users_roles"] == "serve:ann,bob\nindex:ann\n"
    name, body = files["roles.yml"].strip().split(": ", 1)
    assert (name, json.loads(body)["indices"][0]["privileges"]) == ("serve", ["read"])


def test_password_hash_is_salted_and_verifies() -> None:
    hashed = password_hash("secret")
    assert hashed != password_hash("secret")
    rounds, salt, digest = hashed.removeprefix("{PBKDF2}").split("$")
    again = hashlib.pbkdf2_hmac("sha512", b"secret", base64.b64decode(salt), int(rounds), dklen=32)
    assert base64.b64decode(digest) == again


def test_security_does_not_show_passwords() -> None:
    certificate = Certificate("chain", "hidden-key", "authority")
    security = Security(password="hidden-one", users={"ann": FileUser("hidden-two")}, certificate=certificate)
    assert "hidden" not in repr(security)


def test_link_tree_copies_only_the_configuration(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "config").mkdir(parents=True)
    (source / "big.jar").write_text("jar")
    (source / "config" / "engine.yml").write_text("original")
    target = tmp_path / "target"
    link_tree(source, target)
    (target / "config" / "engine.yml").write_text("changed")
    assert (source / "config" / "engine.yml").read_text() == "original"
    assert (target / "big.jar").stat().st_ino == (source / "big.jar").stat().st_ino


def _sleeper(folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", str(folder)], start_new_session=True)


def _dead_pid() -> int:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def test_sweep_ends_the_engines_of_dead_owners_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine, orphan = (tmp_path / f"{processes.RUN_PREFIX}{name}" for name in ("mine", "orphan"))
    for folder in (mine, orphan):
        folder.mkdir()
    kept, abandoned = _sleeper(mine), _sleeper(orphan)
    try:
        processes.record_owner(mine, group=kept.pid)
        record = {"pid": _dead_pid(), "started": 0.0, "group": abandoned.pid}
        (orphan / "owner.json").write_text(json.dumps(record))
        processes.sweep_abandoned()
        assert abandoned.wait(timeout=10) != 0
        assert not orphan.exists()
        assert kept.poll() is None
        assert mine.exists()
    finally:
        kept.kill()
        abandoned.kill()
        kept.wait()


def test_end_group_ends_a_paused_process(tmp_path: Path) -> None:
    process = _sleeper(tmp_path)
    processes.pause_group(process.pid)
    assert processes.group_members(process.pid)[0].status() == "stopped"
    processes.end_group(process.pid, grace_s=5)
    assert process.wait(timeout=5) == -15
