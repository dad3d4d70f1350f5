#!/usr/bin/env bash
# Brings the stack up for real and asks of it what its files promise: Elasticsearch, OpenSearch, Elasticsearch again on
# what it kept, and the secured variant over that. Prints what held, and ends with status 1 at the first thing that does
# not, with the end of the log.
#
#   docker/try.sh
#
# Needs Docker, its Compose, curl and jq, and the ports of the stack; takes about a quarter of an hour on two processors. Its
# containers and volumes are of a project of their own (ssi-try), and are removed at the end. Images that cannot be
# pulled are stood in for (standins.sh); KEEP=1 keeps those for another run.
set -euo pipefail
cd "$(dirname "$0")/.."
export ENGINE=elasticsearch
files=(-f docker/compose.yaml)
login=() # of the engine, for curl
key=()   # of the service
work=$(mktemp -d)
program=(docker compose)
"${program[@]}" version >/dev/null 2>&1 || program=(docker-compose)

compose() { "${program[@]}" -p ssi-try "${files[@]}" "$@"; }
service() { curl -fsS -m 20 "${key[@]}" "http://127.0.0.1:8080$1" "${@:2}"; }
engine() { curl -fsS -m 20 "${login[@]}" "http://127.0.0.1:9200/$1" "${@:2}"; }
prometheus() { curl -fsS -m 20 -G http://127.0.0.1:9090/api/v1/query --data-urlencode "query=$1" | jq -e '.data.result[0]'; }
status() { test "$1" = "$(curl -s -m 20 -o "$work/answer" -w '%{http_code}' "${@:2}")"; }

fail() {
    compose logs --tail 15 >&2 || true
    echo "FAILED  ${files[*]#-f} $ENGINE: $*" >&2
    exit 1
}

within() { # SECONDS WHAT COMMAND...: WHAT holds once COMMAND does
    local began=$SECONDS what=$2 limit=$1
    until "${@:3}" >/dev/null 2>"$work/error"; do
        ((SECONDS - began < limit)) || fail "$what: not within $limit s. $(cat "$work/error")"
        sleep 1
    done
    echo "ok      $what ($((SECONDS - began)) s)"
}

clean_up() {
    compose down -v --remove-orphans >/dev/null 2>&1 || true
    [ -n "${KEEP:-}" ] || docker rmi -f $(docker images -q --filter label=ssi-standin) ssi-standin-debian >/dev/null 2>&1 || true
    rm -rf "$work"
}
trap clean_up EXIT
trap 'echo "FAILED  $BASH_COMMAND (line $LINENO)" >&2' ERR

# -- what is asked

search() { service /search -H 'Content-Type: application/json' -d '{"query": "ordered dictionary"}'; }
reranked() { search | jq -e '.reranked and (.hits | length == 10)'; }
page() { service / | grep '<form id="form" role="search">' >/dev/null && service /page/search.js | grep /search >/dev/null; }
click() { # QUERY_ID
    local event='{"events": [{"action_name": "click", "query_id": "%s", "event_attributes": {"object": {"object_id": "1"}}}]}'
    service /events -H 'Content-Type: application/json' -d "$(printf "$event" "$1")"
}
kept() { # INDEX: the query ids of its rows, sorted
    engine "$1/_refresh" -X POST >&2
    engine "$1/_search?size=10000&_source=query_id" | jq -r '.hits.hits[]._source.query_id' | sort
}
kept_all() { # INDEX FILE
    kept "$1" >"$work/kept"
    sort -u "$2" | comm -23 - "$work/kept" >"$work/lost"
    test ! -s "$work/lost" || { echo "$(wc -l <"$work/lost") of $(wc -l <"$2") are lost" >&2; false; }
}
answered() { # what must stay the same while nothing new is learned: the model, and what it answers
    service /ready | jq -r '.model_id, .encoder_id, .degraded'
    search | jq -c '[.hits[].id]'
    engine demo/_count | jq .count
}
same() { answered | diff "$1" -; }
drawn() { # every expression of the dashboard has a result
    local expression
    while read -r expression; do
        prometheus "${expression//\$__rate_interval/1m}" || { echo "no result: $expression" >&2; return 1; }
    done < <(jq -r '.panels[].targets[].expr' docker/grafana/dashboards/ssi.json)
}

up() {
    local began=$SECONDS
    compose up -d >"$work/up" 2>&1 || { cat "$work/up" >&2; fail "up"; }
    within 300 "ready" service /ready
    echo "        $((SECONDS - began)) s from up to ready"
}

healthy() { # PART BEFORE: running, more often started than before
    docker inspect "$(compose ps -q "$1")" |
        jq -e ".[0] | .RestartCount > $2 and .State.Running and ((.State.Health.Status // \"healthy\") == \"healthy\")"
}

crash() { # PART: every process in it is killed, and Docker starts it again
    local container before
    container=$(compose ps -q "$1")
    before=$(docker inspect -f '{{.RestartCount}}' "$container")
    docker exec "$container" sh -c 'kill -9 -1' || true
    within 180 "$1 comes back after a crash" healthy "$1" "$before"
    within 60 "and searches are answered" reranked
}

visitors() { # search and click until they are refused; what was answered with success is noted
    local id
    while id=$(search 2>/dev/null | jq -er .query_id); do
        echo "$id" >>"$work/searched"
        if click "$id" >/dev/null 2>&1; then echo "$id" >>"$work/clicked"; fi
    done
}

try_stack() { # STOPS: how often it is stopped under load
    up
    within 60 "Prometheus reads the metrics" prometheus 'sum_over_time(up{job="ssi"}[1m]) > 3'
    within 0 "every figure of the dashboard is drawn before the first search" drawn
    within 0 "the page" page
    within 0 "a search, reranked" reranked
    search | jq -r .query_id >"$work/asked"
    within 0 "a click is taken" click "$(cat "$work/asked")"
    within 20 "the impression is in the engine" kept_all ubi_queries "$work/asked"
    within 20 "the click is in the engine" kept_all ubi_events "$work/asked"
    within 30 "Prometheus counts the searches" prometheus 'sum(ssi_searches_total) > 1'
    within 60 "Grafana is healthy" curl -fsS http://127.0.0.1:3000/api/health
    answered >"$work/answers.$ENGINE"
    for part in service engine prometheus grafana; do crash "$part"; done
    rm -f "$work/searched" "$work/clicked"
    for _ in $(seq "$1"); do
        for _ in 1 2 3 4; do visitors & done
        sleep 3
        compose stop >/dev/null 2>&1
        wait
        up
    done
    echo "        $1 stops under load, $(wc -l <"$work/searched") impressions, $(wc -l <"$work/clicked") clicks"
    within 0 "no impression is lost" kept_all ubi_queries "$work/searched"
    within 0 "no click is lost" kept_all ubi_events "$work/clicked"
    within 60 "every figure of the dashboard is drawn after them" drawn
    compose down >/dev/null 2>&1
    up
    within 0 "down and up keep model, documents and answers" same "$work/answers.$ENGINE"
    within 0 "and the impressions" kept_all ubi_queries "$work/searched"
    compose down >/dev/null 2>&1
}

# -- the images, then the stacks

docker info >/dev/null
for image in $(sed -nE 's/^ *(image:|FROM) ([a-z/]+:v?[0-9][^ ]*).*/\2/p' docker/*.yaml docker/Dockerfile | sort -u); do
    docker image inspect "$image" >/dev/null 2>&1 || docker pull -q "$image" 2>/dev/null || docker/standins.sh "$image"
done

build() { compose build >"$work/built" 2>&1 || { tail -20 "$work/built" >&2; false; }; }
within 0 "the image is built" build
docker images --format '        {{.Repository}}: {{.Size}}' ssi-reranker:0.2.0

echo "== Elasticsearch"
try_stack 6
echo "== OpenSearch"
ENGINE=opensearch try_stack 1
echo "== Elasticsearch after OpenSearch"
up
within 0 "its own model answers" same "$work/answers.elasticsearch"
compose down >/dev/null 2>&1

echo "== secured, over the same data"
mkdir -m 700 "$work/keys"
ssi() { docker run --rm ssi-reranker:0.2.0 "$@"; }
website=$(ssi serve --new-key website 2>>"$work/keys/hashes.txt")
ssi serve --new-key prometheus >"$work/keys/prometheus.txt" 2>>"$work/keys/hashes.txt"
export ELASTIC_PASSWORD SSI_ENGINE_PASSWORD API_KEYS="$work/keys/hashes.txt" METRICS_KEY="$work/keys/prometheus.txt"
ELASTIC_PASSWORD=$(head -c 12 /dev/urandom | base64)
SSI_ENGINE_PASSWORD="quote\" backslash\\ $(head -c 12 /dev/urandom | base64)"
files+=(-f docker/compose.secure.yaml)
login=(-u "elastic:$ELASTIC_PASSWORD") key=(-H "Authorization: Bearer $website")
up
within 0 "the page needs no key" status 200 http://127.0.0.1:8080/
within 0 "a search without a key is refused" status 401 http://127.0.0.1:8080/search -d '{"query": "x"}'
within 0 "metrics without a key are refused" status 401 http://127.0.0.1:8080/metrics
within 0 "the engine without a password refuses" status 401 http://127.0.0.1:9200/demo/_count
within 0 "the service's user may not touch other indexes" \
    status 403 -u "ssi:$SSI_ENGINE_PASSWORD" -X PUT http://127.0.0.1:9200/other
within 0 "with a key: the same model, documents and answers" same "$work/answers.elasticsearch"
search | jq -r .query_id >"$work/asked"
within 0 "a click is taken" click "$(cat "$work/asked")"
within 20 "the click is in the engine" kept_all ubi_events "$work/asked"
within 60 "Prometheus reads the metrics by its key" prometheus 'up{job="ssi"} == 1'
compose down >/dev/null 2>&1
without_keys() { ! API_KEYS="$work/nowhere.txt" compose up --no-start --no-deps service && test ! -e "$work/nowhere.txt"; }
within 0 "a file of keys that is not there stops it, and is not made a folder" without_keys
echo "all held, in $((SECONDS / 60)) minutes"
