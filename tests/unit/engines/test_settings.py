"""How to reach an engine: variables win over the configuration file, secrets stay secret."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from reranker.engines import EngineSettings
from reranker.errors import ConfigError


def test_the_table_is_used_and_the_environment_wins() -> None:
    table = {"user": "file", "password": "p", "read_timeout_s": 7, "verify": False}
    assert EngineSettings.from_environment({}, table).user == "file"
    both = EngineSettings.from_environment({"SSI_ENGINE_USER": "shell", "SSI_ENGINE_READ_TIMEOUT": "9"}, table)
    assert (both.user, both.password, both.read_timeout_s, both.verify) == ("shell", "p", 9.0, False)
    assert EngineSettings.from_environment({"SSI_ENGINE_VERIFY": "1"}, table).verify


def test_an_empty_variable_is_unset() -> None:
    assert EngineSettings.from_environment({"SSI_ENGINE_API_KEY": "", "SSI_ENGINE_VERIFY": ""}) == EngineSettings()


def test_keys_are_the_fields() -> None:
    assert EngineSettings.keys() == tuple(one.name for one in fields(EngineSettings))


@pytest.mark.parametrize(
    ("environ", "table", "message"),
    [
        ({}, {"pasword": "secret"}, "unknown key 'pasword'; legal keys: api_key, aws_region, aws_service, ca_file"),
        ({}, {"password": 12345}, "engine setting 'password' is of type int"),
        ({}, {"verify": "no"}, "give true or false"),
        ({}, {"read_timeout_s": "secret"}, "give a number"),
        ({}, {"read_timeout_s": -1}, "must be a finite number above 0"),
        ({}, {"connect_timeout_s": True}, "give a number"),
        ({"SSI_ENGINE_READ_TIMEOUT": "soon"}, {}, "SSI_ENGINE_READ_TIMEOUT='soon' is not a number"),
        ({"SSI_ENGINE_USER": "u"}, {}, "belong together"),
        ({"SSI_ENGINE_USER": "u", "SSI_ENGINE_PASSWORD": "secret", "SSI_ENGINE_API_KEY": "secret"}, {}, "one kind"),
        ({"SSI_ENGINE_CA_FILE": "/nowhere.pem"}, {}, "'/nowhere.pem' is not a file"),
    ],
)
def test_what_is_not_legal_is_told_without_secrets(
    environ: dict[str, str], table: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineSettings.from_environment(environ, table)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "12345" not in str(caught.value)


def test_secrets_never_show(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("")
    settings = EngineSettings(user="u5er", password="pa55", ca_file=str(file))
    assert "pa55" not in repr(settings)
    assert "u5er" not in repr(settings)
