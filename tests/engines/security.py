"""Security for tests: Elasticsearch's password, users and roles of the file realm, and TLS; OpenSearch's admin."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEMO_ADMIN = "admin"
"""Superuser of OpenSearch's demo configuration."""
_ITERATIONS = 10_000
_SALT_BYTES = 32
_HASH_BYTES = 32


@dataclass(frozen=True)
class FileUser:
    """A user of Elasticsearch's file realm."""

    password: str = field(repr=False)
    roles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Certificate:
    """A server's certificate and key, and the certificate of the authority that signed it; all PEM."""

    chain: str
    key: str = field(repr=False)
    authority: str


def sign_certificate(host: str = "127.0.0.1") -> Certificate:
    """Return a certificate of an address, signed by an authority made for it alone; needs ``openssl``."""
    of_host = f"subjectAltName=IP:{host}\nbasicConstraints=critical,CA:FALSE\n"
    new_key = ("-newkey", "rsa:2048", "-nodes")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "host.ext").write_text(of_host, encoding="utf-8")
        for command in (
            ("req", "-x509", *new_key, "-days", "2", "-subj", "/CN=tests", "-keyout", "ca.key", "-out", "ca.crt"),
            ("req", "-new", *new_key, "-subj", f"/CN={host}", "-keyout", "host.key", "-out", "host.csr"),
            (
                "x509",
                "-req",
                "-in",
                "host.csr",
                "-CA",
                "ca.crt",
                "-CAkey",
                "ca.key",
                "-days",
                "2",
                "-set_serial",
                "1",
                "-extfile",
                "host.ext",
                "-out",
                "host.crt",
            ),
        ):
            subprocess.run(["openssl", *command], cwd=folder, capture_output=True, check=True)
        return Certificate(*((folder / name).read_text() for name in ("host.crt", "host.key", "ca.crt")))


@dataclass(frozen=True)
class Security:
    """Security switched on: who may do what.

    Parameters
    ----------
    password : str
        Password of the built-in superuser: ``elastic``, or `DEMO_ADMIN` of OpenSearch, which takes only strong ones.
    users : mapping of str to FileUser, optional
        Users by name; a name may not be a reserved one.
    roles : mapping of str to mapping, optional
        Roles by name, each a role body as ``PUT _security/role`` takes it.
    certificate : Certificate, optional
        Speak TLS with it; None speaks plain HTTP.
    """

    password: str = field(default="engine-tests", repr=False)
    users: Mapping[str, FileUser] = field(default_factory=dict)
    roles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    certificate: Certificate | None = None

    def settings(self) -> dict[str, str]:
        """Return the settings of the engine."""
        tls = self.certificate is not None
        names = {"certificate": "http.crt", "key": "http.key"} if tls else {}
        return {
            "xpack.security.transport.ssl.enabled": "false",
            "xpack.security.http.ssl.enabled": str(tls).lower(),
            **{f"xpack.security.http.ssl.{name}": file for name, file in names.items()},
        }

    def files(self) -> dict[str, str]:
        """Return the texts of the files that go into Elasticsearch's ``config`` folder, by name."""
        tls = self.certificate
        return {
            **({} if tls is None else {"http.crt": tls.chain, "http.key": tls.key}),
            "users": "".join(f"{name}:{password_hash(user.password)}\n" for name, user in self.users.items()),
            "users_roles": "".join(f"{role}:{','.join(names)}\n" for role, names in self._names_by_role().items()),
            "roles.yml": "".join(f"{name}: {json.dumps(body)}\n" for name, body in self.roles.items()),
        }

    def _names_by_role(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for name, user in self.users.items():
            for role in user.roles:
                names.setdefault(role, []).append(name)
        return names


def password_hash(password: str) -> str:
    """Return a salted PBKDF2 hash in the form that Elasticsearch's file realm reads."""
    salt = os.urandom(_SALT_BYTES)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS, dklen=_HASH_BYTES)
    return f"{{PBKDF2}}{_ITERATIONS}${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
