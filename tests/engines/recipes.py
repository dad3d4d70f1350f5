"""What each test engine is made of: Maven coordinates, added modules and plugins, the Java it runs on."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Literal

EngineKind = Literal["elasticsearch", "opensearch"]

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
    java: tuple[int, int]
    """Oldest and newest Java that it was started with."""
    modules: tuple[Module, ...] = ()
    plugins: tuple[Artifact, ...] = ()
    removed: str = ""
    """Pattern, below the engine's home, of large files of plugins that no test needs; empty: none."""
    added: str = ""
    """Name of what was added to the plain engine; empty: nothing."""

    @property
    def folder_name(self) -> str:
        """Return the name of the assembled folder, unique per version, revision and what was added."""
        added = f"-{self.added}" if self.added else ""
        return f"{self.kind}-{self.distribution.version}-r{RECIPE_REVISION}{added}"

    def with_rerank(self) -> EngineRecipe:
        """Return the recipe with the plugins of OpenSearch's own reranking, and with its security plugin.

        Raises
        ------
        ValueError
            For Elasticsearch, and for versions of OpenSearch whose plugins are in no public Maven repository.
        """
        version = self.distribution.version
        if (self.kind, version) != ("opensearch", "2.19.1"):
            raise ValueError(
                f"{self.kind} {version} has no plugins for reranking in Maven: only OpenSearch 2.19.1 does"
            )
        # Each needs the ones before it.
        names = ("opensearch-job-scheduler", "opensearch-ml-plugin", "neural-search", "opensearch-security")
        plugins = tuple(Artifact("org.opensearch.plugin", name, f"{version}.0", "zip") for name in names)
        # Models on a GPU: 300 MB, and remote models need none of it.
        removed = "plugins/opensearch-ml/onnxruntime_gpu-*.jar"
        return replace(self, plugins=(*self.plugins, *plugins), removed=removed, added="rerank")

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        """Return every file to copy from Maven."""
        jars = (jar for module in self.modules for jar in module.jars)
        return (self.distribution, *self.plugins, *jars)


def _elasticsearch(version: str, java: tuple[int, int]) -> EngineRecipe:
    distribution = Artifact("org.elasticsearch.distribution.integ-test-zip", "elasticsearch", version, "zip")
    return EngineRecipe("elasticsearch", "ES", distribution, java)


def _opensearch(version: str, java: tuple[int, int], class_ending: str) -> EngineRecipe:
    painless = Module(
        name="lang-painless",
        class_name=f"org.opensearch.painless.Painless{class_ending}",
        jars=(
            Artifact("org.opensearch.plugin", "lang-painless", version),
            Artifact("org.opensearch.plugin", "opensearch-scripting-painless-spi", version),
            Artifact("org.antlr", "antlr4-runtime", "4.13.1"),
            *(
                Artifact("org.ow2.asm", name, "9.7")
                for name in ("asm", "asm-analysis", "asm-commons", "asm-tree", "asm-util")
            ),
        ),
        permissions=("createClassLoader", "getClassLoader"),
    )
    analysis_common = Module(
        name="analysis-common",
        class_name=f"org.opensearch.analysis.common.CommonAnalysis{class_ending}",
        jars=(Artifact("org.opensearch.plugin", "analysis-common", version),),
        extends="lang-painless",
    )
    mapper_extras = Module(
        name="mapper-extras",
        class_name=f"org.opensearch.index.mapper.MapperExtras{class_ending}",
        jars=(Artifact("org.opensearch.plugin", "mapper-extras-client", version),),
    )
    return EngineRecipe(
        kind="opensearch",
        variable_prefix="OPENSEARCH",
        distribution=Artifact("org.opensearch.distribution.integ-test-zip", "opensearch", version, "zip"),
        java=java,
        modules=(painless, analysis_common, mapper_extras),
        plugins=(Artifact("org.opensearch.plugin", "opensearch-knn", f"{version}.0", "zip"),),
    )


RECIPES: dict[EngineKind, tuple[EngineRecipe, ...]] = {
    "elasticsearch": (
        _elasticsearch("8.19.21", (17, 25)),
        _elasticsearch("9.2.0", (21, 25)),
        _elasticsearch("9.5.3", (21, 25)),
    ),
    # 2.19 needs the security manager, which Java 24 took away.
    "opensearch": (_opensearch("2.19.1", (17, 23), "Plugin"), _opensearch("3.3.0", (21, 25), "ModulePlugin")),
}
"""The versions of each engine that the tests run on; the first unless another is chosen."""


def recipe_of(kind: EngineKind, *, rerank: bool = False) -> EngineRecipe:
    """Return the recipe of the version that SSI_TEST_ELASTICSEARCH_VERSION or SSI_TEST_OPENSEARCH_VERSION names.

    With ``rerank``, it is the recipe `EngineRecipe.with_rerank`.

    Raises
    ------
    ValueError
        If no recipe is of that version, or if that version cannot have the plugins.
    """
    variable = f"SSI_TEST_{kind.upper()}_VERSION"
    recipes = {recipe.distribution.version: recipe for recipe in RECIPES[kind]}
    version = os.environ.get(variable) or next(iter(recipes))
    if version not in recipes:
        raise ValueError(f"{variable} is {version!r}; there are recipes for {', '.join(recipes)}")
    return recipes[version].with_rerank() if rerank else recipes[version]
