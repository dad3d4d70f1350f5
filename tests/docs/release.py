"""``python -m tests.docs.release``: what `make dist` writes into a folder, with the same bytes in every run.

A wheel, a source archive, an SBOM of the program's dependencies (CycloneDX) and ``SHA256SUMS``. The sources are the
files that git tracks. Their time is that of the last commit, and the tools of the build are pinned.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Final

from packaging.utils import canonicalize_name

from tests.docs.licences import licence, users

ROOT = Path(__file__).resolve().parents[2]
NOT_SENT: Final = ("tests/", "benchmarks/", "docker/", ".ci/")
"""Beginnings of the paths that the archive does not contain."""
SUMS: Final = "SHA256SUMS"


def commit_time() -> int:
    """Return ``SOURCE_DATE_EPOCH`` if it is set, else the time of the last commit, in seconds since 1970."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or _git("log", "-1", "--format=%ct"))


def copy_sources(target: Path) -> None:
    """Copy the tracked files of the program, with modes that do not depend on the umask."""
    for name in _git("ls-files", "-z").rstrip("\0").split("\0"):
        if not name.startswith(NOT_SENT) and (ROOT / name).is_file():
            copy = target / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((ROOT / name).read_bytes())
            copy.chmod(0o755 if os.access(ROOT / name, os.X_OK) else 0o644)


def build(target: Path, epoch: int) -> list[Path]:
    """Build the wheel and the source archive; return their paths."""
    pinned = ROOT / "constraints.txt"
    with tempfile.TemporaryDirectory() as name:
        source, made = Path(name) / "source", Path(name) / "made"
        copy_sources(source)
        options = ["--dependency-constraints-txt", str(pinned), "--outdir", str(made)]
        command = [sys.executable, "-m", "build", *options, str(source)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
        subprocess.run(command, check=True, capture_output=True, env=environment, umask=0o022)
        found = []
        for path in sorted(made.iterdir()):
            found.append(target / path.name)
            if path.suffix == ".gz":
                found[-1].write_bytes(same_archive(path.read_bytes(), epoch))
            else:
                shutil.copyfile(path, found[-1])
        return found


def same_archive(content: bytes, epoch: int) -> bytes:
    """Return a tar.gz archive with sorted members, without times, owners and the name of the compressed file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(content)) as old, tarfile.open(fileobj=packed, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda one: one.name):
            plain = tarfile.TarInfo(member.name)
            plain.type, plain.size, plain.mtime = member.type, member.size, epoch
            plain.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            new.addfile(plain, old.extractfile(member) if member.isfile() else None)
    return gzip.compress(packed.getvalue(), mtime=epoch)


def sbom(epoch: int) -> bytes:
    """Return the SBOM of this environment, reduced to what the program and its extras need, as CycloneDX JSON."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--pyproject", str(ROOT / "pyproject.toml")]
    command += ["--output-reproducible", "--output-file", "-"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run(command, check=True, capture_output=True, env=environment)
    return (json.dumps(reduced(json.loads(done.stdout), users()), indent=1, sort_keys=True) + "\n").encode()


def reduced(bom: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return an SBOM with only some components, and the licence of those for which none was found.

    Parameters
    ----------
    bom : dict
        Content of a CycloneDX file.
    names : collection of str
        Canonical names of the packages that stay.
    """
    kept = [one for one in bom["components"] if canonicalize_name(one["name"]) in names]
    named = [
        one if one.get("licenses") else {**one, "licenses": [{"license": {"name": licence(one["name"])}}]}
        for one in kept
    ]
    refs = {one["bom-ref"] for one in kept} | {bom["metadata"]["component"]["bom-ref"]}
    needs = [
        {**one, **({"dependsOn": [ref for ref in one["dependsOn"] if ref in refs]} if "dependsOn" in one else {})}
        for one in bom["dependencies"]
        if one["ref"] in refs
    ]
    return {**bom, "components": named, "dependencies": needs}


def sums(paths: Iterable[Path]) -> str:
    """Return the lines of ``SHA256SUMS``, which ``sha256sum --check`` reads."""
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths)
    return "".join(sorted(lines, key=lambda line: line.split()[1]))


def release(target: Path) -> list[Path]:
    """Write all files of a release into a folder; return their paths."""
    target.mkdir(parents=True, exist_ok=True)
    epoch = commit_time()
    found = build(target, epoch)
    (wheel,) = (path for path in found if path.suffix == ".whl")
    inventory = target / f"{'-'.join(wheel.name.split('-')[:2])}.cdx.json"
    inventory.write_bytes(sbom(epoch))
    found.append(inventory)
    (target / SUMS).write_text(sums(found), encoding="utf-8")
    return [*found, target / SUMS]


def _git(*words: str) -> str:
    """Return the output of a git command in the checkout."""
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    for written in release(Path(sys.argv[1] if len(sys.argv) > 1 else "dist")):
        sys.stdout.write(f"{written}\n")
