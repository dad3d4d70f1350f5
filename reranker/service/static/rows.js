// Renders one hit as an element. Text from documents and users becomes text nodes, never markup.

import { make } from "/page/page.js";

const SNIPPET = 280;
const TITLES = ["title", "name", "heading"];
const TEXTS = ["text", "body", "description", "content"];
const ADDRESSES = ["url", "link"];

// The value at a path such as maker.name as text, or "" if there is none.
function valueAt(source, path) {
  const value = path.split(".").reduce((inner, name) => (inner === null || inner === undefined ? inner : inner[name]), source);
  return ["string", "number", "boolean"].includes(typeof value) ? String(value) : "";
}

function firstText(source, names, last = true) {
  for (const name of names) {
    const value = valueAt(source, name);
    if (value) return value;
  }
  const texts = Object.entries(source).filter(([name, value]) => !name.startsWith("ssi_") && typeof value === "string");
  return last && texts.length ? texts[0][1] : "";
}

const stemsOf = (words) => [...words].map((word) => word.toLowerCase()).filter((word) => word.length > 1);
const beginsLike = (part, stems) => stems.some((stem) => part === stem || (stem.length > 3 && part.startsWith(stem)));

// Splits a text into nodes; words that begin like one of the stems are marked.
function marked(text, words) {
  const stems = stemsOf(words);
  const parts = text.split(/([\p{L}\p{N}_]+)/u);
  return parts.filter(Boolean).map((part) => (beginsLike(part.toLowerCase(), stems) ? make("mark", {}, part) : document.createTextNode(part)));
}

// An excerpt of whole words that starts shortly before the first marked word.
function snippet(text, words) {
  if (text.length <= SNIPPET) return text;
  const stems = stemsOf(words);
  const found = [...text.matchAll(/[\p{L}\p{N}_]+/gu)].find((match) => beginsLike(match[0].toLowerCase(), stems));
  let start = found ? Math.max(found.index - 60, 0) : 0;
  let end = Math.min(start + SNIPPET, text.length);
  if (start > 0) start += Math.max(text.slice(start, start + 60).search(/\s/), 0);
  if (end < text.length) end = Math.max(text.lastIndexOf(" ", end), start + 1);
  return (start ? "… " : "") + text.slice(start, end).trim() + (end < text.length ? " …" : "");
}

function moved(hit) {
  const by = hit.first_stage_rank - hit.rank;
  if (hit.unscored) return make("span", { class: "move" }, "not scored");
  if (by === 0) return make("span", { class: "move" }, "same rank");
  const words = `${by > 0 ? "up" : "down"} ${Math.abs(by)}`;
  const arrow = make("span", { "aria-hidden": "true" }, by > 0 ? "▲ " : "▼ ");
  return make("span", { class: by > 0 ? "move up" : "move down" }, arrow, `${words}, was ${hit.first_stage_rank}`);
}

function reasons(hit) {
  const rows = (hit.explanation || []).filter((one) => Math.abs(one.value) >= 0.0005);
  if (!rows.length) return null;
  const largest = Math.max(...rows.map((one) => Math.abs(one.value)));
  const names = { identity: "the same word", memory: "asked for before", learned: "learned", preference: "preferred by users for this query", others: "all others", signal: "document signal", impact: "stored impact", engine: "the engine's score" };
  const body = make("tbody");
  for (const one of rows) {
    const pair = one.query_word ? `${one.query_word} → ${one.document_word}` : one.document_word || names[one.kind];
    const bar = make("meter", { min: "0", max: String(largest), value: String(Math.abs(one.value)), "aria-hidden": "true" });
    body.append(make("tr", { class: one.kind },
      make("th", { scope: "row" }, pair),
      make("td", {}, one.document_word ? names[one.kind] : ""),
      make("td", { class: "number" }, `${one.value < 0 ? "−" : "+"}${Math.abs(one.value).toFixed(3)}`),
      make("td", {}, bar)));
  }
  const head = make("thead", {}, make("tr", {}, ...["words", "kind", "contribution", "share"].map((name) => make("th", { scope: "col" }, name))));
  return make("details", {}, make("summary", {}, "Why here"), make("table", {}, head, body));
}

const LEAST_ALIKE = 5;

// A sentence for each fact that has the same value in all hits of a page, while `others` (of the same candidates) have more
// values: the reranked order leaves no choice there.
export function sameFacts(hits, others, config) {
  const valuesOf = (list, name) => new Set(list.map((hit) => valueAt(hit.source || {}, name)));
  return (config.facts || []).flatMap((name) => {
    const [mine, theirs] = [valuesOf(hits, name), valuesOf(others, name)];
    const value = [...mine][0];
    if (hits.length < LEAST_ALIKE || mine.size > 1 || !value || theirs.size < 2) return [];
    return [`All ${hits.length} reranked hits of this page have ${name} “${value}”; those in the engine's order have ${theirs.size} values.`];
  });
}

// Returns the list item of a hit; `config` names the fields to show; `onOpen` is called when the title is clicked.
export function row(hit, query, config, withReasons, onOpen) {
  const source = hit.source || {};
  const title = firstText(source, config.title ? [config.title] : TITLES) || hit.id;
  const text = firstText(source, config.text ? [config.text] : TEXTS, !config.text);
  const address = firstText(source, config.url ? [config.url] : ADDRESSES, false);
  // Mark the words that the explanation names; hits in the engine's order have none, so mark the query's words.
  const reasoned = (hit.explanation || []).filter((one) => one.query_word && one.value > 0).map((one) => one.document_word);
  const words = new Set(hit.explanation ? reasoned : query.toLowerCase().split(/\s+/).filter(Boolean));
  const item = make("li", { "data-id": hit.id, value: String(hit.rank) });
  const outside = /^https?:\/\//.test(address);
  const link = make("a", { href: outside ? address : `#${encodeURIComponent(hit.id)}` }, ...marked(title, words));
  const whole = make("p", { class: "whole", hidden: "" }, text);
  if (!outside) link.setAttribute("aria-expanded", "false");
  link.addEventListener("click", (event) => {
    if (!outside) {
      event.preventDefault();
      whole.hidden = !whole.hidden;
      link.setAttribute("aria-expanded", String(!whole.hidden));
    }
    onOpen(hit);
  });
  const facts = (config.facts || []).map((name) => valueAt(source, name)).filter(Boolean);
  const said = [...(withReasons ? [moved(hit), hit.id, hit.score.toFixed(3)] : []), ...facts];
  const note = make("p", { class: "note" }, ...said.flatMap((one, place) => (place ? [" · ", one] : [one])));
  const image = config.image ? valueAt(source, config.image) : "";
  if (/^https:\/\//.test(image)) item.append(make("img", { src: image, alt: "", loading: "lazy" }));
  item.append(make("h3", {}, link), note, make("p", {}, ...marked(snippet(text, words), words)), whole);
  const why = withReasons ? reasons(hit) : null;
  if (why) item.append(why);
  return item;
}
