"""Elasticsearch security for tests: the bootstrap password, and users and roles of the file realm."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_ITERATIONS = 10_000
_SALT_BYTES = 32
_HASH_BYTES = 32


@dataclass(frozen=True)
class FileUser:
    """A user of Elasticsearch's file realm."""

    password: str = field(repr=False)
    roles: tuple[str, ...] = ()


@dataclass(frozen=True)
class Security:
    """Security switched on: who may do what.

    Parameters
    ----------
    password : str
        Password of the built-in superuser ``elastic``.
    users : mapping of str to FileUser, optional
        Users by name; a name may not be a reserved one.
    roles : mapping of str to mapping, optional
        Roles by name, each a role body as ``PUT _security/role`` takes it.
    """

    password: str = field(default="engine-tests", repr=False)
    users: Mapping[str, FileUser] = field(default_factory=dict)
    roles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def files(self) -> dict[str, str]:
        """Return the texts of the files that go into Elasticsearch's ``config`` folder, by name."""
        return {
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
