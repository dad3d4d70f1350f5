"""``ssi serve``: run the HTTP service."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from reranker.cli import common
from reranker.cli.common import FILE, FOLDER
from reranker.errors import ConfigError
from reranker.rerank.settings import RerankSettings
from reranker.service.settings import FORWARDS, Limits, ServiceSettings, is_loopback

if TYPE_CHECKING:
    from reranker.engines.protocol import Engine


def _print_key(context: click.Context, option: click.Parameter, value: str | None) -> None:
    """Print a new key and its line for the key file, and exit."""
    if value is None or context.resilient_parsing:
        return
    from reranker.service.auth import new_key

    name, _, role = value.partition(":")
    key, line = new_key(name, role or "search")
    click.echo(key)
    click.echo(f"# The key is shown only once. Add this line to the file of --api-keys:\n{line}", err=True)
    context.exit()


@click.command(
    "serve",
    epilog="""\b
Examples:
  ssi serve --engine tantivy:./index --index docs --model model/
  ssi serve --engine elasticsearch:http://localhost:9200 --index shop --models models/ --api-keys keys.txt --shadow
  ssi serve --engine opensearch:http://localhost:9200 --index shop --models models/ --percent 10 \\
            --body body.json --sink engine --host 0.0.0.0 --api-keys keys.txt --tls-cert cert.pem --tls-key key.pem
  ssi serve --engine elasticsearch:http://localhost:9200 --index shop --models models/ --proxy --port 9201
  ssi serve --new-key website
  curl -s localhost:8080/search -H 'Content-Type: application/json' -d '{"query": "red shoes"}'
Signals: on SIGTERM, the service answers the requests in progress and exits; on SIGHUP, it polls for a new live version.
""",
)
@common.engine_options
@click.option(
    "--model",
    "model_path",
    type=FOLDER,
    metavar="DIR",
    help="One model folder. If it is replaced, the service loads the new model.",
)
@click.option(
    "--models",
    "models_path",
    type=FOLDER,
    metavar="DIR",
    help="Folder of model folders. The service uses the version that `ssi promote` made live.",
)
@common.setting(ServiceSettings, "route", type=common.ROUTE, help="Where scores come from.")
@common.setting(
    RerankSettings,
    "retrieve",
    type=common.RETRIEVE,
    help="Candidates: only the engine's own hits, or also the documents with the largest sums of impacts.",
)
@common.mode_option
@common.boost_option
@common.read_store_option
@click.option(
    "--body",
    "body_path",
    type=FILE,
    help="Search body (JSON) with {{query}} in it.  [default: BM25 over the text fields]",
)
@click.option(
    "--named-body",
    "named_bodies",
    multiple=True,
    metavar="NAME=FILE",
    help="Additional search body that requests select by its name; can be repeated.",
)
@click.option(
    "--page",
    "page_fields",
    multiple=True,
    metavar="NAME=FIELD",
    help="Field that the search page shows. NAME is title, text, url, image or facts. Can be repeated.",
)
@common.setting(
    ServiceSettings,
    "proxy",
    help="Also answer the engine's own requests, with the rights of their callers: searches of the index are reranked, "
    "everything else passes through.",
)
@common.setting(
    ServiceSettings,
    "forward",
    type=click.Choice(FORWARDS),
    help="With --proxy: which requests pass through, those that only read, or all.",
)
@click.option(
    "--caller-header",
    "caller_headers",
    multiple=True,
    metavar="NAME",
    help="With --proxy: one more header that tells the engine who the caller is, like Authorization. Repeatable.",
)
@click.option(
    "--open",
    "is_open",
    is_flag=True,
    help="With --proxy: listen on an address that other machines can reach, although the engine asks nobody for "
    "credentials.",
)
@common.window_option
@common.setting(
    RerankSettings, "alpha", help="Weight of the model, from 0 to 1.  [default: the value fitted by `ssi calibrate`]"
)
@common.setting(
    RerankSettings,
    "deadline_ms",
    help="Timeout of a request, including its time in the queue. After it, the service answers in the engine's order, "
    "or with 503.",
)
@common.setting(
    ServiceSettings, "shadow", help="Shadow mode: score and log searches, but answer in the engine's order."
)
@common.setting(ServiceSettings, "percent", help="Percentage of sessions whose searches are reranked.")
@common.setting(
    ServiceSettings,
    "explore",
    metavar="PERCENT",
    help="Percentage of sessions whose first result page is shuffled. Their clicks measure how often each rank is "
    "examined.",
)
@click.option(
    "--interleave",
    "challenger",
    metavar="VERSION",
    help="Interleave the results of this version and the live one, see `ssi interleave report`.",
)
@click.option(
    "--sink",
    "sink_spec",
    default="none",
    metavar="engine|FILE|none",
    help="Where to log impressions and events: the engine's ubi_* indexes, or a file of JSON lines.",
)
@click.option(
    "--golden",
    "golden_path",
    type=FILE,
    help='Queries that a version must pass before it goes into service: JSON lines {"query", "expect"}.',
)
@common.setting(ServiceSettings, "host", help="Address to listen on.")
@common.setting(ServiceSettings, "port", help="Port to listen on.")
@click.option(
    "--api-keys",
    "keys_path",
    type=FILE,
    help="File of hashed API keys. Requests to the service's own paths must have a key.",
)
@common.setting(ServiceSettings, "without_keys", help="Allow the service to listen on any address without API keys.")
@click.option(
    "--new-key",
    metavar="NAME[:ROLE]",
    callback=_print_key,
    is_eager=True,
    expose_value=False,
    help="Print a new key (role search, events or admin) and exit.",
)
@common.setting(ServiceSettings, "tls_cert", type=FILE, help="TLS certificate chain (PEM).")
@common.setting(ServiceSettings, "tls_key", type=FILE, help="Private key of the certificate (PEM).")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    help="Number of service processes that share the port.",
)
@common.setting(Limits, "at_once", help="Number of requests that a process handles at the same time. 64 more wait.")
@common.setting(
    ServiceSettings,
    "events_per_second",
    help="Rate limit for events from one address. The limit for one session is a tenth of it. 0: no limit.",
)
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Host name that requests may use to reach the service; can be repeated.  [default: the names of the loopback "
    "address if the service listens on it without keys, else any]",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="Minimum level of the log, which is JSON lines on standard error.",
)
def command(**options: Any) -> None:
    """Serve search with reranking, the rerank APIs and the search page over HTTP.

    If a model is missing or the deadline is near, the service returns the engine's own answer to the same body, and the
    response gives the reason. A part of the deadline is reserved for that.

    The service maps the model and the store into memory from their folders. Replace a folder by renaming, as the
    commands of ssi do: the service then loads the new one. If you overwrite its files in place (cp, rsync --inplace),
    the service crashes.
    """
    if options["model_path"] is not None and options["models_path"] is not None:
        # A configuration has the folder of all models; on the command line, one of them can take its place.
        source_of = click.get_current_context().get_parameter_source
        named = [name for name in ("model_path", "models_path") if source_of(name) is not ParameterSource.DEFAULT_MAP]
        if len(named) == 1:
            options["models_path" if named[0] == "model_path" else "model_path"] = None
    if (options["model_path"] is None) == (options["models_path"] is None):
        raise click.UsageError("give either --model or --models")
    from reranker.service.app import all_parts, create_app
    from reranker.service.processes import inherited_socket, run_processes
    from reranker.service.server import end_process, listen, run_server
    from reranker.service.serving import read_golden
    from reranker.service.sink import open_sink
    from reranker.service.state import open_state
    from reranker.service.telemetry import configure_logs, configure_tracing

    settings = _settings(options)
    golden = None if options["golden_path"] is None else read_golden(options["golden_path"])
    configure_logs(level=options["log_level"].upper())
    shared = inherited_socket()
    if shared is None:
        listener = listen(settings.host, settings.port)
        if options["workers"] > 1:
            command = [sys.executable, "-m", "reranker", *sys.argv[1:]]
            raise SystemExit(run_processes(options["workers"], listener, command, settings.drain_s))
        listener.close()
    configure_tracing()
    engine = common.open_engine_of(options["engine_spec"])
    if settings.proxy:
        _check_rights(engine, settings, is_open=options["is_open"])
    state = open_state(
        engine,
        settings,
        model=options["model_path"],
        models=options["models_path"],
        store=options["store_path"],
        sink=open_sink(options["sink_spec"], engine),
        golden=golden,
    )
    run_server(create_app(settings, state, all_parts(options["challenger"])), state, settings, shared)
    end_process()


def _check_rights(engine: Engine, settings: ServiceSettings, *, is_open: bool) -> None:
    """Raise `ConfigError` unless the engine can decide who may ask what, or the operator wants it to be open.

    `Unsupported` is raised for an embedded engine, which has no clients of its own.
    """
    from reranker.service.forward import answers_anybody, connections_of

    connections = connections_of(engine)
    if connections.settings.aws_region is not None:
        raise ConfigError(
            "--proxy passes on the credentials of callers, and AWS signatures are made for one host name: callers of "
            "this service have none for the engine. Let them use POST /search, and leave out --proxy"
        )
    if is_open or is_loopback(settings.host):
        return
    answers = asyncio.run(answers_anybody(connections))
    if answers is None:
        raise ConfigError(
            f"the engine does not answer, so it is unknown whether it asks the clients of {settings.host}:"
            f"{settings.port} for credentials: start the service when the engine runs, or give --open"
        )
    if answers:
        raise ConfigError(
            f"the engine asks nobody for credentials: every client that reaches {settings.host}:{settings.port} could "
            "read all its indexes. Switch on the engine's security, listen on a loopback address, or give --open to "
            "allow this"
        )


def _settings(options: dict[str, Any]) -> ServiceSettings:
    from reranker.rerank.search import read_body

    named, page = ([one.partition("=")[::2] for one in options[name]] for name in ("named_bodies", "page_fields"))
    if wrong := [name for name, value in (*named, *page) if not name or not value]:
        raise click.UsageError(
            f"{wrong[0]!r} is not NAME=VALUE, as in --named-body blog=blog.json or --page title=name"
        )
    facts = [value for name, value in page if name == "facts"]
    return ServiceSettings(
        rerank=RerankSettings(**common.stated(RerankSettings, options)),
        body=None if options["body_path"] is None else read_body(options["body_path"], as_template=True),
        page={**dict(page), **({"facts": facts} if facts else {})},
        bodies={name: read_body(Path(path), as_template=True) for name, path in named},
        api_keys=options["keys_path"],
        limits=Limits(**common.stated(Limits, options)),
        **common.stated(ServiceSettings, options),
    )
