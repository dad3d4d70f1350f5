#!/usr/bin/env bash
# Makes images that stand in for official ones, under their names, where no registry can be reached: from packages of
# Debian, and from the engines that the tests assemble. Called by try.sh, which removes them again; their label is
# ssi-standin. They have the official images' users, folders and variables, as far as the stack uses them; of Grafana
# there is only the answer to its health check.
#
#   docker/standins.sh IMAGE...         needs root, debootstrap, Maven, Java 17, and an environment for the tests (PYTHON)
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

image() { # NAME [FOLDER]: builds an image of the Dockerfile on standard input, from that folder or an empty one
    docker build -q --label ssi-standin -t "$1" -f - "${2:-$(mktemp -d -p "$work")}" >/dev/null
}

tools() { # the common ground: Debian, Java, Python and BusyBox, with this machine's certificates and pip's settings
    if docker image inspect ssi-standin-tools >/dev/null 2>&1; then return; fi
    debootstrap --variant=minbase --include=ca-certificates bookworm "$work/root" \
        "$(apt-get indextargets --format '$(REPO_URI)' | head -1)" >&2
    tar -C "$work/root" -c . | docker import - ssi-standin-debian >/dev/null
    mkdir "$work/settings"
    cp /etc/ssl/certs/ca-certificates.crt "$work/settings"
    cp /etc/pip.conf "$work/settings" 2>/dev/null || touch "$work/settings/pip.conf"
    image ssi-standin-tools "$work/settings" <<'D'
FROM ssi-standin-debian
RUN apt-get update -qq \
 && apt-get install -qqy --no-install-recommends openjdk-17-jdk-headless curl busybox prometheus python3.11-venv >/dev/null \
 && busybox --install -s /usr/local/bin \
 && ln -s /usr/bin/python3.11 /usr/local/bin/python && ln -s /usr/lib/jvm/java-17-openjdk-* /jdk \
 && rm -rf /var/lib/apt/lists/*
COPY ca-certificates.crt /etc/ssl/certs/
COPY pip.conf /etc/
D
}

elasticsearch() { # NAME; its distribution for tests lacks what the index of users is analysed by
    "$python" -m tests.engines.launcher elasticsearch --assemble-only >"$work/folder"
    cp -a "$(cat "$work/folder")" "$work/engine"
    cat >"$work/engine/Standin.java" <<'J'
import java.util.Map;
import java.util.regex.Pattern;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.email.UAX29URLEmailTokenizer;
import org.apache.lucene.analysis.miscellaneous.RemoveDuplicatesTokenFilter;
import org.apache.lucene.analysis.pattern.PatternCaptureGroupTokenFilter;
import org.elasticsearch.common.settings.Settings;
import org.elasticsearch.index.analysis.TokenFilterFactory;
import org.elasticsearch.index.analysis.TokenizerFactory;
import org.elasticsearch.indices.analysis.AnalysisModule.AnalysisProvider;

public class Standin extends org.elasticsearch.plugins.Plugin implements org.elasticsearch.plugins.AnalysisPlugin {
    public Map<String, AnalysisProvider<TokenizerFactory>> getTokenizers() {
        return Map.of("uax_url_email", (i, e, name, s) -> TokenizerFactory.newFactory(name, UAX29URLEmailTokenizer::new));
    }

    public Map<String, AnalysisProvider<TokenFilterFactory>> getTokenFilters() {
        return Map.of(
            "unique", (i, e, name, s) -> filter(name, RemoveDuplicatesTokenFilter::new),
            "pattern_capture", (i, e, name, s) -> capture(name, s));
    }

    static TokenFilterFactory capture(String name, Settings settings) {
        var patterns = settings.getAsList("patterns").stream().map(Pattern::compile).toArray(Pattern[]::new);
        boolean whole = settings.getAsBoolean("preserve_original", true);
        return filter(name, tokens -> new PatternCaptureGroupTokenFilter(tokens, whole, patterns));
    }

    static TokenFilterFactory filter(String name, java.util.function.UnaryOperator<TokenStream> made) {
        return new TokenFilterFactory() {
            public String name() { return name; }
            public TokenStream create(TokenStream tokens) { return made.apply(tokens); }
        };
    }
}
J
    image "$1" "$work/engine" <<'D'
FROM ssi-standin-tools
COPY . /usr/share/elasticsearch
WORKDIR /usr/share/elasticsearch
RUN mkdir -p data logs plugins/standin && /jdk/bin/javac -cp 'lib/*' -d plugins/standin Standin.java \
 && (cd plugins/standin && /jdk/bin/jar cf standin.jar *.class && rm *.class) \
 && sed -e '/^#/d; /^modulename=/d; s/^name=.*/name=standin/; s/^classname=.*/classname=Standin/' \
      modules/transport-netty4/plugin-descriptor.properties >plugins/standin/plugin-descriptor.properties \
 && sed -i 's/TYPE=zip/TYPE=docker/' bin/elasticsearch-env && rm Standin.java \
 && echo 'network.host: 0.0.0.0' >config/elasticsearch.yml && chmod -R g+w config data logs
ENV ES_JAVA_HOME=/jdk
USER 1000:0
ENTRYPOINT ["bash", "-c", "[ -z \"$ELASTIC_PASSWORD\" ] || { bin/elasticsearch-keystore create -s; bin/elasticsearch-keystore add -x bootstrap.password <<<\"$ELASTIC_PASSWORD\"; }; exec bin/elasticsearch"]
D
}

opensearch() { # NAME
    "$python" -m tests.engines.launcher opensearch --assemble-only >"$work/folder"
    image "$1" "$(cat "$work/folder")" <<'D'
FROM ssi-standin-tools
COPY . /usr/share/opensearch
WORKDIR /usr/share/opensearch
RUN mkdir -p data && echo 'network.host: 0.0.0.0' >config/opensearch.yml && chown -R 1000:1000 .
ENV OPENSEARCH_JAVA_HOME=/jdk
USER 1000:1000
ENTRYPOINT ["bash", "-c", "exec bin/opensearch $(env | sed -nE 's/^([a-z]+\\.[a-z.]+=.*)/-E\\1/p')"]
D
}

for name; do
    tools
    case $name in
    python:*) image "$name" <<<'FROM ssi-standin-tools' ;;
    elasticsearch:*) elasticsearch "$name" ;;
    opensearchproject/opensearch:*) opensearch "$name" ;;
    prom/prometheus:*)
        image "$name" <<<$'FROM ssi-standin-tools\nRUN mkdir /prometheus && chown 65534 /prometheus\nENTRYPOINT ["prometheus"]'
        ;;
    grafana/grafana:*)
        image "$name" <<<$'FROM ssi-standin-tools\nRUN mkdir -p /www/api && echo "{}" >/www/api/health
ENTRYPOINT ["busybox", "httpd", "-f", "-p", "3000", "-h", "/www"]'
        ;;
    *) echo "there is no stand-in for $name" >&2 && exit 1 ;;
    esac
    echo "$name is stood in for"
done
