// Sends each query to /search twice, for the engine's order and the model's, shows both, and reports clicks to /events.
// The address holds the state of the page (q, from, and f.NAME for a filter), so that Back and copied links work.

import { ask, element, make, onKey } from "/page/page.js";
import { row, sameFacts } from "/page/rows.js";

const SIZE = 10;
const session = stored("ssi.session", () => crypto.randomUUID());
let config = { variables: [] };
let first = 0;
let filters = {};
let running = 0;

function stored(name, fresh) {
  let value = sessionStorage.getItem(name);
  if (!value) {
    value = fresh();
    sessionStorage.setItem(name, value);
  }
  return value;
}

function report(answer, query) {
  return (hit) => {
    const event = {
      action_name: "click", query_id: answer.query_id, session_id: session, user_query: query,
      event_attributes: {
        object: { object_id: hit.id, object_id_field: "_id" }, position: { ordinal: hit.rank },
      },
    };
    // keepalive: the click is reported even if it leads to another page. A lost event must not disturb the user; the
    // service counts the events that it drops.
    ask("/events", { events: [event] }, { keepalive: true }).catch((error) => console.warn("click not recorded:", error.message));
  };
}

function show(column, answer, query, withReasons) {
  const section = element(column);
  const list = section.querySelector("ol");
  list.replaceChildren(...answer.hits.map((hit) => row(hit, query, config, withReasons, report(answer, query))));
  list.setAttribute("start", String(first + 1));
  if (!answer.hits.length) list.append(make("li", { class: "none" }, "No document has a word of this query."));
  section.hidden = false;
}

// Terms aggregations named like a variable of the service's body are shown as filters with one selected value each.
function showFilters(answer) {
  const groups = [];
  for (const [name, found] of Object.entries(answer.aggregations || {})) {
    if (!config.variables.includes(name) || !(found.buckets || []).length) continue;
    const buttons = found.buckets.map((bucket) => {
      const value = bucket.key_as_string || bucket.key;
      const chosen = filters[name] === String(value);
      const button = make("button", { type: "button", "aria-pressed": String(chosen) }, `${value} (${bucket.doc_count})`);
      button.addEventListener("click", () => {
        if (chosen) delete filters[name];
        else filters[name] = String(value);
        go(0);
      });
      return button;
    });
    groups.push(make("div", { role: "group", "aria-label": name }, make("span", {}, name), ...buttons));
  }
  element("filters").replaceChildren(...groups);
  element("filters").hidden = !groups.length;
}

function note(answer) {
  if (!answer.reranked) return `in the engine's order: ${answer.reason}`;
  const parts = [`version ${answer.model_id.slice(0, 8)}`, `${answer.n_candidates} candidates`];
  if (answer.versions) parts.push(`interleaved with ${answer.versions[1].slice(0, 8)}`);
  return parts.join(", ");
}

function showNotices(notices) {
  element("notices").hidden = !notices.length;
  element("notices").querySelector("ul").replaceChildren(...notices.map((text) => make("li", {}, text)));
}

async function search() {
  const query = element("query").value.trim();
  if (!query) return;
  const mine = ++running;
  const view = document.querySelector("input[name=view]:checked").value;
  const chosen = element("version").value;
  const wanted = { query, size: SIZE, from: first, session };
  if (Object.keys(filters).length) wanted.variables = filters;
  document.title = `${query} – Search`;
  element("status").textContent = "Searching …";
  try {
    const reranked = ask("/search", { ...wanted, explain: true, ...(chosen ? { version: chosen } : {}) });
    const plain = view === "one" ? Promise.resolve(null) : ask("/search", { ...wanted, rerank: false });
    const [model, engine] = await Promise.all([reranked, plain]);
    if (mine !== running) return;
    show("model", model, query, view !== "one");
    element("model-note").textContent = view === "one" ? "" : note(model);
    element("engine").hidden = !engine;
    if (engine) show("engine", engine, query, false);
    element("columns").className = engine ? `two ${view}` : "";
    showFilters(model);
    // Notices are for operators, who compare two lists; users of the single list do not see them.
    showNotices(engine ? [...model.notices, ...sameFacts(model.hits, engine.hits, config)] : []);
    const about = model.total_is_exact ? "" : "more than ";
    const match = model.total === 1 && model.total_is_exact ? "document matches" : "documents match";
    element("status").textContent = `${about}${model.total.toLocaleString("en")} ${match}.`;
    element("pages").hidden = first === 0 && model.total <= SIZE;
    element("previous").disabled = first === 0;
    element("next").disabled = first + SIZE >= model.total;
  } catch (error) {
    if (mine === running) element("status").textContent = `No answer: ${error.message}`;
  }
}

// Adds an entry to the browser's history and searches.
function go(from) {
  first = from;
  const address = new URLSearchParams({ q: element("query").value.trim() });
  if (first) address.set("from", String(first));
  for (const [name, value] of Object.entries(filters)) address.set(`f.${name}`, value);
  if (`?${address}` !== location.search) history.pushState(null, "", `?${address}`);
  return search();
}

function fromAddress() {
  const address = new URLSearchParams(location.search);
  element("query").value = address.get("q") || "";
  first = Math.max(Number(address.get("from")) || 0, 0);
  filters = {};
  for (const [name, value] of address) if (name.startsWith("f.")) filters[name.slice(2)] = value;
  return search();
}

async function versions() {
  const list = element("version");
  list.replaceChildren(make("option", { value: "" }, "live"));
  try {
    for (const one of (await ask("/versions")).versions) {
      list.append(make("option", { value: one.model_id }, `${one.model_id.slice(0, 8)}${one.live ? " (live)" : ""}`));
    }
  } catch (error) {
    element("status").textContent = `Cannot list the versions: ${error.message}`;
  }
}

function turn(by) {
  go(Math.max(first + by, 0)).then(() => element("results").focus());
}

element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  filters = {};
  go(0);
});
addEventListener("popstate", fromAddress);
element("version").addEventListener("change", search);
element("previous").addEventListener("click", () => turn(-SIZE));
element("next").addEventListener("click", () => turn(SIZE));
for (const radio of document.querySelectorAll("input[name=view]")) radio.addEventListener("change", search);
onKey(() => versions().then(search));

config = await (await fetch("/page/config.json")).json();
element("body-name").textContent = config.own_body ? "Your query" : "BM25";
await versions();
if (new URLSearchParams(location.search).get("q")) fromAddress();
