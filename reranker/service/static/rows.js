// One hit as an element. Everything from outside becomes text nodes, never markup.

const SNIPPET = 280;

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function firstText(source, names) {
  for (const name of names) {
    const value = source[name];
    if (typeof value === "string" && value) return value;
  }
  const texts = Object.entries(source).filter(([name, value]) => !name.startsWith("ssi_") && typeof value === "string");
  return texts.length ? texts[0][1] : "";
}

// Splits a text at words that begin like one of the stems, and marks these.
function marked(text, words) {
  const stems = [...words].map((word) => word.toLowerCase()).filter((word) => word.length > 1);
  const parts = text.split(/([\p{L}\p{N}_]+)/u);
  return parts.filter(Boolean).map((part) => {
    const small = part.toLowerCase();
    const hit = stems.some((stem) => small === stem || (stem.length > 3 && small.startsWith(stem)));
    return hit ? make("mark", {}, part) : document.createTextNode(part);
  });
}

function snippet(text, words) {
  if (text.length <= SNIPPET) return text;
  const small = text.toLowerCase();
  const places = [...words].map((word) => small.indexOf(word.toLowerCase())).filter((place) => place >= 0);
  const start = places.length ? Math.max(Math.min(...places) - 60, 0) : 0;
  return (start ? "… " : "") + text.slice(start, start + SNIPPET).trim() + " …";
}

function moved(hit) {
  const by = hit.first_stage_rank - hit.rank;
  if (hit.unscored) return make("span", { class: "move" }, "not scored");
  if (by === 0) return make("span", { class: "move" }, "same place");
  const words = `${by > 0 ? "up" : "down"} ${Math.abs(by)}`;
  const arrow = make("span", { "aria-hidden": "true" }, by > 0 ? "▲ " : "▼ ");
  return make("span", { class: by > 0 ? "move up" : "move down" }, arrow, `${words}, was ${hit.first_stage_rank}`);
}

function reasons(hit) {
  const rows = (hit.explanation || []).filter((one) => Math.abs(one.value) >= 0.0005);
  if (!rows.length) return null;
  const largest = Math.max(...rows.map((one) => Math.abs(one.value)));
  const names = { identity: "the same word", memory: "asked for before", learned: "learned", others: "all other pairs", engine: "the engine's score" };
  const body = make("tbody");
  for (const one of rows) {
    const pair = one.query_word ? `${one.query_word} → ${one.document_word}` : names[one.kind];
    const bar = make("meter", { min: "0", max: String(largest), value: String(Math.abs(one.value)), "aria-hidden": "true" });
    body.append(make("tr", { class: one.kind },
      make("th", { scope: "row" }, pair),
      make("td", {}, one.query_word ? names[one.kind] : ""),
      make("td", { class: "number" }, `${one.value < 0 ? "−" : "+"}${Math.abs(one.value).toFixed(3)}`),
      make("td", {}, bar)));
  }
  const head = make("thead", {}, make("tr", {}, ...["words", "kind", "adds", ""].map((name) => make("th", { scope: "col" }, name))));
  return make("details", {}, make("summary", {}, "Why here"), make("table", {}, head, body));
}

// Returns the list item of a hit; `onOpen` is called when its title is chosen.
export function row(hit, query, withReasons, onOpen) {
  const source = hit.source || {};
  const title = firstText(source, ["title", "name", "heading"]) || hit.id;
  const text = firstText(source, ["text", "body", "description", "content"]);
  const words = new Set(query.toLowerCase().split(/\s+/).filter(Boolean));
  for (const one of hit.explanation || []) if (one.document_word && one.value > 0) words.add(one.document_word);
  const item = make("li", { "data-id": hit.id, value: String(hit.rank) });
  const link = make("a", { href: source.url && /^https?:/.test(source.url) ? source.url : `#${encodeURIComponent(hit.id)}` }, ...marked(title, words));
  const whole = make("p", { class: "whole", hidden: "" }, text);
  link.addEventListener("click", (event) => {
    if (link.getAttribute("href").startsWith("#")) {
      event.preventDefault();
      whole.hidden = !whole.hidden;
      link.setAttribute("aria-expanded", String(!whole.hidden));
    }
    onOpen(hit);
  });
  const note = make("p", { class: "note" }, `${hit.id} · ${hit.score.toFixed(3)}`);
  if (withReasons) note.prepend(moved(hit), " · ");
  item.append(make("h3", {}, link), note, make("p", {}, ...marked(snippet(text, words), words)), whole);
  const why = withReasons ? reasons(hit) : null;
  if (why) item.append(why);
  return item;
}
