"""What each test engine is made of: Maven coordinates, added modules and plugins. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

EngineKind = Literal["elasticsearch", "opensearch"]

ELASTICSEARCH_VERSION = "8.19.21"
OPENSEARCH_VERSION = "2.19.1"

# Raise it when a recipe changes without a change of engine version: the cached folder is then assembled again.
RECIPE_REVISION = 1


@dataclass(frozen=True)
class Artifact:
    """One file of a Maven repository, named by its coordinates."""

    group: str
    name: str
    version: str
    packaging: str = "jar"

    @property
    def file_name(self) -> str:
        """Return the name under which ``dependency:copy`` stores the file."""
        return f"{self.name}-{self.version}.{self.packaging}"


@dataclass(frozen=True)
class Module:
    """An engine module made of plain jars, for distributions that come without it.

    Parameters
    ----------
    name : str
        Name of the module and of its folder below ``modules/``.
    class_name : str
        The plugin class.
    jars : tuple of Artifact
        The module's jar and those it needs.
    extends : str, optional
        Name of the module it extends.
    permissions : tuple of str, optional
        Names of the ``RuntimePermission`` that the module needs from the security manager.
    """

    name: str
    class_name: str
    jars: tuple[Artifact, ...]
    extends: str = ""
    permissions: tuple[str, ...] = ()

    def descriptor(self, engine_version: str) -> str:
        """Return the text of its ``plugin-descriptor.properties``."""
        fields = {
            "description": f"{self.name}, assembled for tests",
            "version": engine_version,
            "name": self.name,
            "classname": self.class_name,
            "java.version": "11",
            "opensearch.version": engine_version,
            "custom.foldername": "",
            "extended.plugins": self.extends,
            "has.native.controller": "false",
        }
        return "".join(f"{key}={value}\n" for key, value in fields.items())

    def policy(self) -> str:
        """Return the text of its ``plugin-security.policy``; empty when it needs no permission."""
        if not self.permissions:
            return ""
        lines = (f'  permission java.lang.RuntimePermission "{name}";\n' for name in self.permissions)
        return "grant {\n" + "".join(lines) + "};\n"


@dataclass(frozen=True)
class EngineRecipe:
    """An engine: its distribution, what is added to it, and the prefix of its environment variables."""

    kind: EngineKind
    variable_prefix: str
    distribution: Artifact
    modules: tuple[Module, ...] = ()
    plugins: tuple[Artifact, ...] = ()

    @property
    def folder_name(self) -> str:
        """Return the name of the assembled folder, unique per version and revision."""
        return f"{self.kind}-{self.distribution.version}-r{RECIPE_REVISION}"

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """Return every file to copy from Maven."""
        jars = (jar for module in self.modules for jar in module.jars)
        return (self.distribution, *self.plugins, *jars)


def _asm(name: str) -> Artifact:
    return Artifact("org.ow2.asm", name, "9.7")


_PAINLESS = Module(
    name="lang-painless",
    class_name="org.opensearch.painless.PainlessPlugin",
    jars=(
        Artifact("org.opensearch.plugin", "lang-painless", OPENSEARCH_VERSION),
        Artifact("org.opensearch.plugin", "opensearch-scripting-painless-spi", OPENSEARCH_VERSION),
        Artifact("org.antlr", "antlr4-runtime", "4.13.1"),
        *(_asm(name) for name in ("asm", "asm-analysis", "asm-commons", "asm-tree", "asm-util")),
    ),
    permissions=("createClassLoader", "getClassLoader"),
)

_ANALYSIS_COMMON = Module(
    name="analysis-common",
    class_name="org.opensearch.analysis.common.CommonAnalysisPlugin",
    jars=(Artifact("org.opensearch.plugin", "analysis-common", OPENSEARCH_VERSION),),
    extends="lang-painless",
)

_MAPPER_EXTRAS = Module(
    name="mapper-extras",
    class_name="org.opensearch.index.mapper.MapperExtrasPlugin",
    jars=(Artifact("org.opensearch.plugin", "mapper-extras-client", OPENSEARCH_VERSION),),
)

RECIPES: dict[EngineKind, EngineRecipe] = {
    "elasticsearch": EngineRecipe(
        kind="elasticsearch",
        variable_prefix="ES",
        distribution=Artifact(
            "org.elasticsearch.distribution.integ-test-zip", "elasticsearch", ELASTICSEARCH_VERSION, "zip"
        ),
    ),
    "opensearch": EngineRecipe(
        kind="opensearch",
        variable_prefix="OPENSEARCH",
        distribution=Artifact("org.opensearch.distribution.integ-test-zip", "opensearch", OPENSEARCH_VERSION, "zip"),
        modules=(_PAINLESS, _ANALYSIS_COMMON, _MAPPER_EXTRAS),
        plugins=(Artifact("org.opensearch.plugin", "opensearch-knn", f"{OPENSEARCH_VERSION}.0", "zip"),),
    ),
}
