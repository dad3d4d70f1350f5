"""Starts a real Elasticsearch or OpenSearch on this machine, without Docker.

    with start_elasticsearch(heap="768m") as engine:
        use(engine.url)

or, in a terminal, ``python -m tests.engines.launcher elasticsearch --port 19200``. Needs Maven and a Java; the first
start of each engine assembles it from Maven artifacts (see ``assembly``), in the version that the environment chooses
(`recipe_of`). Both listen on the loopback only.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypedDict, Unpack, get_args

import click

from tests.engines import processes
from tests.engines.assembly import EngineUnavailableError, ensure_distribution, find_java_home, link_tree
from tests.engines.processes import LOOPBACK, answers, basic_authorization, free_port
from tests.engines.recipes import EngineKind, recipe_of
from tests.engines.security import DEMO_ADMIN, Security

# A start costs about half the processor time without the second compiler. Not for tests that measure or search much.
QUICK_START = "-XX:TieredStopAtLevel=1"


class EngineOptions(TypedDict, total=False):
    """Options of an engine, all optional.

    Attributes
    ----------
    port : int
        HTTP port on 127.0.0.1 (default: a free one).
    heap : str
        Java heap, as in ``-Xmx`` (default ``1g``; ``768m`` is enough for small tests).
    java_options : str
        More options of the Java machine, such as `QUICK_START` (default none).
    settings : mapping of str to str
        More engine settings, as ``-E name=value`` takes them.
    security : Security
        Switches security on (default off). OpenSearch needs ``rerank`` for it, speaks TLS with its demo certificates,
        and takes only the password, that of the user ``admin``.
    rerank : bool
        Adds OpenSearch's ml-commons, neural-search and security plugins (default false; OpenSearch 2.19.1 only).
    start_limit_s : float
        Seconds until a start is given up (default 240).
    """

    port: int
    heap: str
    java_options: str
    settings: Mapping[str, str]
    security: Security
    rerank: bool
    start_limit_s: float


_STOP_GRACE_S = 20.0
_TOOL_LIMIT_S = 180
_LOG_TAIL_CHARACTERS = 4_000


class EngineStartError(Exception):
    """The engine did not come up; the message holds the end of its log."""


class EngineProcess:
    """One engine in a process group of its own, with its data in a temporary folder.

    The data outlive ``kill`` and ``restart``; ``stop`` removes them. It is stopped at the latest when this Python
    process ends. Use it as a context manager, or call ``start`` and ``stop``. Not to be shared between threads.

    Parameters
    ----------
    kind : {"elasticsearch", "opensearch"}
        Which engine.
    **options
        See `EngineOptions`.
    """

    def __init__(self, kind: EngineKind, **options: Unpack[EngineOptions]) -> None:
        self.kind: EngineKind = kind
        self._recipe = recipe_of(kind, rerank=options.get("rerank", False))
        self.port = options.get("port") or free_port()
        self.heap = options.get("heap", "1g")
        self.java_options = options.get("java_options", "")
        self.settings = dict(options.get("settings", {}))
        self.security = options.get("security")
        self.start_limit_s = options.get("start_limit_s", 240.0)
        if self.security is not None and kind == "opensearch" and self._recipe.added != "rerank":
            raise ValueError("this OpenSearch has no security plugin: add those of rerank=True")
        self._transport_port = free_port()
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Return the address of the engine's HTTP interface."""
        return f"http{'s' * self._has_tls}://{LOOPBACK}:{self.port}"

    @property
    def _has_tls(self) -> bool:
        return self.security is not None and (self.kind == "opensearch" or self.security.certificate is not None)

    @property
    def authority(self) -> str:
        """Return the certificate (PEM) that signs the engine's; only with TLS."""
        if self.security is not None and self.security.certificate is not None:
            return self.security.certificate.authority
        return (self.folder / "home" / "config" / "root-ca.pem").read_text(encoding="utf-8")

    @property
    def folder(self) -> Path:
        """Return the engine's temporary folder, with ``home/config``, ``data`` and ``engine.log``."""
        if self._folder is None:
            raise RuntimeError(f"{self.kind} has no folder before start() and after stop()")
        return self._folder

    @property
    def group(self) -> int:
        """Return the id of the engine's process group."""
        if self._process is None:
            raise RuntimeError(f"{self.kind} is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Say whether the engine's process lives (a paused one does)."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the engine and return when it answers; harmless when it runs.

        Raises
        ------
        EngineUnavailableError
            If the engine cannot be assembled here.
        EngineStartError
            If it ends, or does not answer within ``start_limit_s``.
        """
        if self.is_running:
            return self
        if self._folder is None:
            self._prepare()
        self._process = self._spawn()
        processes.record_owner(self.folder, group=self._process.pid)
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the engine, gracefully if it can be, and remove its data."""
        self._end(_STOP_GRACE_S)
        processes.forget(self)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def kill(self) -> None:
        """End the engine by SIGKILL and keep its data; ``start`` brings it back on the same port."""
        self._end(grace_s=0)

    def restart(self) -> Self:
        """End the engine, gracefully if it lives, and start it on the same data and port."""
        self._end(_STOP_GRACE_S)
        return self.start()

    def pause(self) -> None:
        """Freeze the engine by SIGSTOP: connections are accepted and not answered. Returns when it stands still."""
        processes.pause_group(self.group)

    def resume(self) -> None:
        """Wake a paused engine."""
        processes.signal_group(self.group, signal.SIGCONT)

    def wait(self) -> int:
        """Return the exit status of the engine once it ends by itself."""
        return self._process.wait() if self._process is not None else 0

    def log_tail(self) -> str:
        """Return the end of what the engine printed."""
        log = self.folder / "engine.log"
        return log.read_text(encoding="utf-8", errors="replace")[-_LOG_TAIL_CHARACTERS:] if log.exists() else ""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _prepare(self) -> None:
        """Make the engine's folder: a home of links to the cached distribution, own configuration, empty data."""
        distribution = ensure_distribution(self._recipe)
        self._folder = processes.create_run_folder(self.kind)
        processes.stop_at_exit(self)
        link_tree(distribution, self._folder / "home")
        for name in ("data", "tmp", "logs"):
            (self._folder / name).mkdir()
        if self.security is not None and self.kind == "opensearch":
            self._install_demo_security(self.security)
        elif self.security is not None:
            self._write_security(self.security)
        self._give_away()

    def _install_demo_security(self, security: Security) -> None:
        """Run the plugin's own script: certificates, and a password of the user ``admin``."""
        script = self.folder / "home" / "plugins" / "opensearch-security" / "tools" / "install_demo_configuration.sh"
        self._run_tool(["bash", str(script), "-y", "-i", "-s"], OPENSEARCH_INITIAL_ADMIN_PASSWORD=security.password)

    def _write_security(self, security: Security) -> None:
        config = self.folder / "home" / "config"
        for name, text in security.files().items():
            (config / name).write_text(text, encoding="utf-8")
        self._keystore("add", "--force", "--stdin", "bootstrap.password", secret=security.password)

    def _keystore(self, *arguments: str, secret: str = "") -> None:
        self._run_tool([str(self.folder / "home" / "bin" / f"{self.kind}-keystore"), *arguments], secret)

    def _run_tool(self, command: Sequence[str], secret: str = "", **environment: str) -> None:
        done = subprocess.run(
            command,
            input=secret,
            env={**self._environment(), **environment},
            capture_output=True,
            text=True,
            timeout=_TOOL_LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            raise EngineStartError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")

    def _give_away(self) -> None:
        """Make the engine's user the owner of its folders and configuration; the linked files stay ours."""
        user = processes.engine_user()
        if user is None:
            return
        config = self.folder / "home" / "config"
        folders = [path for path in self.folder.rglob("*") if path.is_dir()]
        for path in (self.folder, *folders, *config.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid)

    def _spawn(self) -> subprocess.Popen[bytes]:
        user = processes.engine_user()
        with (self.folder / "engine.log").open("ab") as log:
            return subprocess.Popen(
                self._command(),
                env=self._environment(),
                cwd=self.folder / "home",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=user.pw_uid if user else None,
                group=user.pw_gid if user else None,
                extra_groups=[] if user else None,
            )

    def _command(self) -> list[str]:
        pairs = (f"{name}={value}" for name, value in self._all_settings().items())
        return [str(self.folder / "home" / "bin" / self.kind), *(part for pair in pairs for part in ("-E", pair))]

    def _all_settings(self) -> dict[str, str]:
        settings = {
            "discovery.type": "single-node",
            "network.host": LOOPBACK,
            "http.port": str(self.port),
            "transport.port": str(self._transport_port),
            "path.data": str(self.folder / "data"),
            "path.logs": str(self.folder / "logs"),
            "cluster.routing.allocation.disk.threshold_enabled": "false",
        }
        if self._recipe.added == "rerank":
            settings["plugins.security.disabled"] = str(self.security is None).lower()
        if self.kind == "elasticsearch":
            settings["xpack.security.enabled"] = str(self.security is not None).lower()
            if self.security is not None:
                settings |= self.security.settings()
        return settings | self.settings

    def _environment(self) -> dict[str, str]:
        java = find_java_home(self._recipe)
        if java is None:
            raise EngineUnavailableError(f"no Java {self._recipe.java} found; see `tests.engines.assembly`")
        prefix = self._recipe.variable_prefix
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "LANG": "C.UTF-8",
            "HOME": str(self.folder),
            f"{prefix}_JAVA_HOME": str(java),
            f"{prefix}_JAVA_OPTS": f"-Xms{self.heap} -Xmx{self.heap} {self.java_options}",
            f"{prefix}_TMPDIR": str(self.folder / "tmp"),
        }

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.start_limit_s
        while not self._answers():
            if not self.is_running:
                raise EngineStartError(f"{self.kind} ended before it answered:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise EngineStartError(f"{self.kind} did not answer in {self.start_limit_s} s:\n{self.log_tail()}")
            time.sleep(0.25)

    def _answers(self) -> bool:
        if self.security is None:
            return answers(self.url)
        user = DEMO_ADMIN if self.kind == "opensearch" else "elastic"
        headers = basic_authorization(user, self.security.password)
        return answers(self.url, headers, authority=self.authority if self._has_tls else None)

    def _end(self, grace_s: float) -> None:
        if self._process is None:
            return
        processes.end_group(self._process.pid, grace_s)
        self._process.wait()
        self._process = None


def start_elasticsearch(**options: Unpack[EngineOptions]) -> EngineProcess:
    """Return a running Elasticsearch; see `EngineOptions` for the options and `EngineProcess.start` for the errors."""
    return EngineProcess("elasticsearch", **options).start()


def start_opensearch(**options: Unpack[EngineOptions]) -> EngineProcess:
    """Return a running OpenSearch; see `EngineOptions` for the options and `EngineProcess.start` for the errors."""
    return EngineProcess("opensearch", **options).start()


@click.command()
@click.argument("kind", type=click.Choice(get_args(EngineKind)))
@click.option("--port", type=int, help="HTTP port on 127.0.0.1 (default: a free one).")
@click.option("--heap", default="1g", show_default=True, help="Java heap.")
@click.option("--setting", "settings", multiple=True, metavar="NAME=VALUE", help="An engine setting; may be repeated.")
@click.option("--rerank", is_flag=True, help="Add the plugins of OpenSearch's own reranking.")
@click.option("--assemble-only", is_flag=True, help="Only put the engine into the cache, and print its folder.")
def main(
    kind: EngineKind, port: int | None, heap: str, settings: tuple[str, ...], rerank: bool, assemble_only: bool
) -> None:
    """Run one engine until Ctrl-C; its data are removed at the end."""
    try:
        if assemble_only:
            click.echo(ensure_distribution(recipe_of(kind, rerank=rerank)))
        else:
            options = EngineOptions(heap=heap, settings=_parse_settings(settings), rerank=rerank)
            if port is not None:
                options["port"] = port
            _run(kind, options)
    except (EngineUnavailableError, EngineStartError) as error:
        raise click.ClickException(str(error)) from error


def _run(kind: EngineKind, options: EngineOptions) -> None:
    began = time.monotonic()
    with EngineProcess(kind, **options) as engine:
        click.echo(f"{engine.url}  ({kind}, up in {time.monotonic() - began:.1f} s; Ctrl-C ends it)")
        status = engine.wait()
        raise EngineStartError(f"{kind} ended by itself with status {status}:\n{engine.log_tail()}")


def _parse_settings(pairs: tuple[str, ...]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE", param_hint="--setting")
    return dict(pair.split("=", 1) for pair in pairs)


if __name__ == "__main__":
    main(prog_name="python -m tests.engines.launcher")
