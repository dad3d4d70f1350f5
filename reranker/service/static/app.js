// Asks /search twice, for the engine's order and the model's, shows both, and reports what was clicked to /events.

import { make, row } from "/page/rows.js";

const SIZE = 10;
const element = (id) => document.getElementById(id);
const session = stored("ssi.session", () => crypto.randomUUID());
let first = 0;
let running = 0;

function stored(name, fresh) {
  let value = sessionStorage.getItem(name);
  if (!value) {
    value = fresh();
    sessionStorage.setItem(name, value);
  }
  return value;
}

async function ask(path, body) {
  const headers = { "Content-Type": "application/json" };
  const key = sessionStorage.getItem("ssi.key");
  if (key) headers.Authorization = `Bearer ${key}`;
  const options = body ? { method: "POST", headers, body: JSON.stringify(body) } : { headers };
  const response = await fetch(path, options);
  if (response.status === 401 || response.status === 403) element("key-label").hidden = false;
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error ? answer.error.message : `status ${response.status}`);
  return answer;
}

function report(answer, query) {
  return (hit) => {
    const event = {
      action_name: "click", query_id: answer.query_id, session_id: session, user_query: query,
      event_attributes: {
        object: { object_id: hit.id, object_id_field: "_id" }, position: { ordinal: hit.rank },
      },
    };
    // A lost click must not disturb whoever clicked; the service counts what it drops.
    ask("/events", { events: [event] }).catch((error) => console.warn("click not recorded:", error.message));
  };
}

function show(column, answer, query, withReasons) {
  const section = element(column);
  const list = section.querySelector("ol");
  list.replaceChildren(...answer.hits.map((hit) => row(hit, query, withReasons, report(answer, query))));
  list.setAttribute("start", String(first + 1));
  if (!answer.hits.length) list.append(make("li", { class: "none" }, "No document has a word of this query."));
  section.hidden = false;
}

function note(answer) {
  if (!answer.reranked) return `in the engine's order: ${answer.reason}`;
  const parts = [`version ${answer.model_id.slice(0, 8)}`, `${answer.n_candidates} candidates`];
  if (answer.versions) parts.push(`interleaved with ${answer.versions[1].slice(0, 8)}`);
  return parts.join(", ");
}

async function search() {
  const query = element("query").value.trim();
  if (!query) return;
  const mine = ++running;
  const both = document.querySelector("input[name=view]:checked").value === "both";
  const chosen = element("version").value;
  const wanted = { query, size: SIZE, from: first, session };
  const address = new URLSearchParams({ q: query });
  if (first) address.set("from", String(first));
  history.replaceState(null, "", `?${address}`);
  document.title = `${query} – Search`;
  element("status").textContent = "Searching …";
  try {
    const reranked = ask("/search", { ...wanted, explain: true, ...(chosen ? { version: chosen } : {}) });
    const plain = both ? ask("/search", { ...wanted, rerank: false }) : Promise.resolve(null);
    const [model, engine] = await Promise.all([reranked, plain]);
    if (mine !== running) return;
    show("model", model, query, true);
    element("model-note").textContent = note(model);
    element("engine").hidden = !engine;
    if (engine) show("engine", engine, query, false);
    element("columns").className = engine ? "two" : "";
    const about = model.total_is_exact ? "" : "more than ";
    element("status").textContent = [`${about}${model.total.toLocaleString("en")} documents match.`, ...model.notices].join(" ");
    element("pages").hidden = false;
    element("previous").disabled = first === 0;
    element("next").disabled = first + SIZE >= model.total;
  } catch (error) {
    if (mine === running) element("status").textContent = `No answer: ${error.message}`;
  }
}

async function versions() {
  const list = element("version");
  list.replaceChildren(make("option", { value: "" }, "live"));
  try {
    for (const one of (await ask("/versions")).versions) {
      list.append(make("option", { value: one.model_id }, `${one.model_id.slice(0, 8)}${one.live ? " (live)" : ""}`));
    }
  } catch (error) {
    element("status").textContent = `The versions cannot be listed: ${error.message}`;
  }
}

function turn(by) {
  first = Math.max(first + by, 0);
  search().then(() => element("results").focus());
}

element("form").addEventListener("submit", (event) => {
  event.preventDefault();
  first = 0;
  search();
});
element("version").addEventListener("change", search);
element("previous").addEventListener("click", () => turn(-SIZE));
element("next").addEventListener("click", () => turn(SIZE));
for (const radio of document.querySelectorAll("input[name=view]")) radio.addEventListener("change", search);
element("key").addEventListener("change", () => {
  sessionStorage.setItem("ssi.key", element("key").value);
  versions().then(search);
});

const address = new URLSearchParams(location.search);
await versions();
if (address.get("q")) {
  element("query").value = address.get("q");
  first = Math.max(Number(address.get("from")) || 0, 0);
  search();
}
