"""Specs and settings: what opens, what is refused, and that secrets stay secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reranker.engines import EngineSettings, open_engine
from reranker.errors import ConfigError, EngineUnavailable


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("elasticsearch:http://localhost", "elasticsearch:http://localhost:9200"),
        ("elasticsearch:http://localhost:1/path/", "elasticsearch:http://localhost:1/path"),
        ("opensearch:https://search.example.org", "opensearch:https://search.example.org:443"),
        ("opensearch:http://[::1]:9201", "opensearch:http://[::1]:9201"),
    ],
)
def test_specs(spec: str, told: str) -> None:
    engine = open_engine(spec, EngineSettings())
    assert engine.spec == told
    engine.close()


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "elasticsearch",
        "solr:http://localhost",
        "memory:",
        "tantivy:",
        "elasticsearch:localhost:9200",
        "elasticsearch:ftp://localhost",
        "elasticsearch:http://",
        "elasticsearch:http://localhost:port",
        "elasticsearch:http://localhost?x=1",
    ],
)
def test_other_specs_are_refused_with_the_legal_ones(spec: str) -> None:
    with pytest.raises(ConfigError, match=r"tantivy:PATH|HOST:PORT"):
        open_engine(spec, EngineSettings())


@pytest.mark.parametrize("kind", ["elasticsearch", "opensearch"])
@pytest.mark.parametrize("url", ["http://me:hunter2@host:1", "http://:hunter2@host", "http://hunter2@host:9200"])
def test_credentials_in_a_url_are_refused_and_not_repeated(kind: str, url: str) -> None:
    with pytest.raises(ConfigError, match="SSI_ENGINE_PASSWORD") as caught:
        open_engine(f"{kind}:{url}", EngineSettings())
    assert "hunter2" not in str(caught.value)


def test_nothing_is_created_by_opening(tmp_path: Path) -> None:
    engine = open_engine(f"tantivy:{tmp_path / 'typo'}")
    assert engine.index_names("docs") == ()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    engine = open_engine(f"tantivy:{tmp_path / 'file'}")
    with pytest.raises(EngineUnavailable, match="file"):
        engine.create_index("docs", {})


def test_settings_from_the_environment(tmp_path: Path) -> None:
    ca_file = tmp_path / "ca.pem"
    ca_file.write_text("")
    environ = {
        "SSI_ENGINE_USER": "me",
        "SSI_ENGINE_PASSWORD": "hunter2",
        "SSI_ENGINE_API_KEY": "",
        "SSI_ENGINE_CA_FILE": str(ca_file),
        "SSI_ENGINE_READ_TIMEOUT": "7.5",
    }
    settings = EngineSettings.from_environment(environ)
    assert (settings.user, settings.password, settings.api_key) == ("me", "hunter2", None)
    assert (settings.ca_file, settings.read_timeout_s, settings.verify) == (str(ca_file), 7.5, True)
    assert "hunter2" not in repr(settings)
    assert EngineSettings.from_environment({}) == EngineSettings()
    assert not EngineSettings.from_environment({"SSI_ENGINE_VERIFY": "false"}).verify


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"user": "me"}, "SSI_ENGINE_PASSWORD"),
        ({"password": "hunter2"}, "SSI_ENGINE_USER"),
        ({"user": "me", "password": "hunter2", "api_key": "k"}, "SSI_ENGINE_API_KEY"),
        ({"ca_file": "/nowhere.pem"}, "nowhere"),
        ({"read_timeout_s": 0}, "read_timeout_s"),
        ({"connect_timeout_s": float("nan")}, "connect_timeout_s"),
    ],
)
def test_settings_that_do_not_fit_together(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        EngineSettings(**values)
    assert "hunter2" not in str(caught.value)


def test_a_time_that_is_no_number() -> None:
    with pytest.raises(ConfigError, match="SSI_ENGINE_READ_TIMEOUT"):
        EngineSettings.from_environment({"SSI_ENGINE_READ_TIMEOUT": "soon"})
