"""Finds a Java that both engines run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

# Elasticsearch 8.19 needs 17; OpenSearch 2.19 needs the security manager, which Java 24 took away.
OLDEST_JAVA = 17
NEWEST_JAVA = 23

_HOME_VARIABLES = ("SSI_JAVA_HOME", "JAVA_HOME", "JDK17_HOME", "JDK21_HOME")
_JVM_FOLDERS = ("/usr/lib/jvm", "/opt/java", "/Library/Java/JavaVirtualMachines")


def find_java_home() -> Path | None:
    """Return the home of the first Java from 17 to 23, or None.

    Looks at the variables SSI_JAVA_HOME, JAVA_HOME, JDK17_HOME and JDK21_HOME, then at ``java`` on the PATH, then in
    the usual folders of JVMs.
    """
    for home in _candidates():
        if OLDEST_JAVA <= java_major(home) <= NEWEST_JAVA:
            return home.resolve()
    return None


def java_major(home: Path) -> int:
    """Return the major version of the Java in ``home``, from its ``release`` file or ``java -version``; 0 if none."""
    if not (home / "bin" / "java").is_file():
        return 0
    release = home / "release"
    text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
    return parse_java_major(text) or parse_java_major(_version_output(home / "bin" / "java"))


def parse_java_major(text: str) -> int:
    """Return the major version in a ``release`` file or in the output of ``java -version``; 0 if there is none."""
    match = re.search(r'(?:JAVA_VERSION=|version )"(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else 0


def _version_output(java: Path) -> str:
    try:
        done = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stderr + done.stdout


def _candidates() -> Iterator[Path]:
    """Yield possible Java homes, the user's own choice first."""
    yield from (Path(os.environ[name]) for name in _HOME_VARIABLES if os.environ.get(name))
    java = shutil.which("java")
    if java:
        yield Path(java).resolve().parents[1]
    for folder in map(Path, _JVM_FOLDERS):
        for home in sorted(folder.glob("*")):
            yield from (home, home / "Contents" / "Home")
