"""Finds a Java, and puts a test engine together once, from Maven artifacts, in a cache folder."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.sax.saxutils import escape

from filelock import FileLock

from tests.engines.recipes import Artifact, EngineRecipe, Module

_DEPENDENCY_PLUGIN_VERSION = "3.8.1"
_MAVEN_LIMIT_S = 600
_PLUGIN_LIMIT_S = 120


class EngineUnavailableError(Exception):
    """The engine cannot be had on this machine; the message says what is missing and what to do."""


def missing_tools(recipe: EngineRecipe) -> tuple[str, ...]:
    """Return what must be installed to start an engine without Docker: Java, and Maven unless the cache has it."""
    missing = []
    if shutil.which("mvn") is None and not (cache_folder() / recipe.folder_name).is_dir():
        missing.append("Maven (mvn)")
    if find_java_home(recipe) is None:
        oldest, newest = recipe.java
        missing.append(f"Java {oldest} to {newest} (or SSI_JAVA_HOME pointing to one)")
    return tuple(missing)


def cache_folder() -> Path:
    """Return the folder of assembled engines: SSI_ENGINE_CACHE, or ``~/.cache/ssi-reranker/engines``."""
    chosen = os.environ.get("SSI_ENGINE_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "ssi-reranker" / "engines"


def ensure_distribution(recipe: EngineRecipe) -> Path:
    """Return the folder of the assembled engine; assemble it first if the cache lacks it.

    Several processes may call this at once: one assembles, in a temporary folder that is renamed at the end, and the
    others wait for it.

    Raises
    ------
    EngineUnavailableError
        If Maven or Java is missing, or Maven could not get the artifacts.
    """
    if missing := missing_tools(recipe):
        raise EngineUnavailableError(f"{recipe.kind} cannot be started: install {' and '.join(missing)}")
    target = cache_folder() / recipe.folder_name
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(target.with_name(f"{target.name}.lock")):
            if not target.is_dir():
                _assemble(recipe, target)
    return target


def _assemble(recipe: EngineRecipe, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{recipe.folder_name}.", dir=target.parent) as work:
        downloads = Path(work) / "downloads"
        copy_from_maven(recipe.artifacts, downloads)
        _unzip(downloads / recipe.distribution.file_name, Path(work) / "unzipped")
        (home,) = (Path(work) / "unzipped").iterdir()
        for module in recipe.modules:
            _add_module(home, module, recipe.distribution.version, downloads)
        for plugin in recipe.plugins:
            _install_plugin(home, recipe, downloads / plugin.file_name)
        for unneeded in home.glob(recipe.removed) if recipe.removed else ():
            unneeded.unlink()
        _make_readable(home)
        home.rename(target)


def copy_from_maven(artifacts: Iterable[Artifact], folder: Path) -> None:
    """Copy artifacts into a folder by one ``mvn dependency:copy``, from the repositories that Maven is set up for.

    Raises
    ------
    EngineUnavailableError
        If Maven fails or takes longer than ten minutes.
    """
    folder.mkdir(parents=True)
    pom = folder / "pom.xml"
    pom.write_text(_pom(artifacts, folder), encoding="utf-8")
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_MAVEN_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise EngineUnavailableError(
            f"mvn dependency:copy took longer than {_MAVEN_LIMIT_S} s; is the network up?"
        ) from None
    if done.returncode != 0:
        raise EngineUnavailableError(
            f"mvn dependency:copy failed with status {done.returncode}:\n{done.stdout[-2000:]}"
        )


def _pom(artifacts: Iterable[Artifact], folder: Path) -> str:
    """Return a project file whose only content is the list of artifacts to copy."""
    return f"""<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>ssi</groupId><artifactId>test-engines</artifactId><version>1</version><packaging>pom</packaging>
  <build><plugins><plugin>
    <groupId>org.apache.maven.plugins</groupId><artifactId>maven-dependency-plugin</artifactId>
    <version>{_DEPENDENCY_PLUGIN_VERSION}</version>
    <configuration>
      <outputDirectory>{escape(str(folder))}</outputDirectory>
      <artifactItems>
{"".join(map(_artifact_item, artifacts))}      </artifactItems>
    </configuration>
  </plugin></plugins></build>
</project>
"""


def _artifact_item(artifact: Artifact) -> str:
    return (
        f"        <artifactItem><groupId>{artifact.group}</groupId><artifactId>{artifact.name}</artifactId>"
        f"<version>{artifact.version}</version><type>{artifact.packaging}</type></artifactItem>\n"
    )


def _unzip(archive: Path, folder: Path) -> None:
    """Unpack a zip file with the permissions it records, which ``ZipFile.extractall`` drops."""
    with zipfile.ZipFile(archive) as packed:
        for entry in packed.infolist():
            path = packed.extract(entry, folder)
            mode = entry.external_attr >> 16
            if mode and not entry.is_dir():
                os.chmod(path, stat.S_IMODE(mode))


def _add_module(home: Path, module: Module, engine_version: str, downloads: Path) -> None:
    folder = home / "modules" / module.name
    folder.mkdir(parents=True)
    for jar in module.jars:
        shutil.copy(downloads / jar.file_name, folder)
    (folder / "plugin-descriptor.properties").write_text(module.descriptor(engine_version), encoding="utf-8")
    if policy := module.policy():
        (folder / "plugin-security.policy").write_text(policy, encoding="utf-8")


def _install_plugin(home: Path, recipe: EngineRecipe, archive: Path) -> None:
    command = [str(home / "bin" / f"{recipe.kind}-plugin"), "install", "--batch", archive.resolve().as_uri()]
    environment = {**os.environ, f"{recipe.variable_prefix}_JAVA_HOME": str(find_java_home(recipe))}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_PLUGIN_LIMIT_S, check=False
    )
    if done.returncode != 0:
        raise EngineUnavailableError(f"{command[0]} could not install {archive.name}:\n{done.stdout}{done.stderr}")


def _make_readable(home: Path) -> None:
    """Let any user read the files, and run those that the owner may run: the engine runs as another user."""
    for path in (home, *home.rglob("*")):
        mode = path.stat().st_mode
        readable = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
        runnable = stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH if path.is_dir() or mode & stat.S_IXUSR else 0
        path.chmod(stat.S_IMODE(mode) | readable | runnable)


def link_tree(source: Path, target: Path) -> None:
    """Copy a folder by hard links where the file system allows it; ``config`` is really copied, for it gets changed."""

    def place(origin: str, destination: str) -> object:
        if Path(origin).is_relative_to(source / "config"):
            return shutil.copy2(origin, destination)
        try:
            os.link(origin, destination)
        except OSError:
            shutil.copy2(origin, destination)
        return destination

    shutil.copytree(source, target, copy_function=place)


_HOME_VARIABLES = ("SSI_JAVA_HOME", "JAVA_HOME", "JDK17_HOME", "JDK21_HOME")
_JVM_FOLDERS = ("/usr/lib/jvm", "/opt/java", "/Library/Java/JavaVirtualMachines")


def find_java_home(recipe: EngineRecipe) -> Path | None:
    """Return the home of the first Java that runs an engine, or None.

    Looks at the variables SSI_JAVA_HOME, JAVA_HOME, JDK17_HOME and JDK21_HOME, then at ``java`` on the PATH, then in
    the usual folders of JVMs.
    """
    oldest, newest = recipe.java
    for home in _candidates():
        if oldest <= java_major(home) <= newest:
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
