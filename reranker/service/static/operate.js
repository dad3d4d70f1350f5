// Shows the parts of /admin/status.

import { ask, draw, element, make, onKey } from "/page/page.js";

const PAUSE_MS = 60000;
const drawn = {};
let timer = 0;
let asked = 0;

const short = (id) => (id ? id.slice(0, 12) : "none");
const moment = (text) => (text ? `${text.slice(0, 16).replace("T", " ")} UTC` : "");
const number = (value, digits = 0) => value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const percent = (share) => `${number(100 * share, 1)} %`;

// A table that can be scrolled with the keyboard, and is stacked where its columns do not fit (data-label, style.css). A
// header that starts with # right-aligns its column of numbers.
function table(heads, rows) {
  const isNumber = heads.map((head) => head.startsWith("#"));
  const names = heads.map((text) => text.replace("#", ""));
  const head = make("tr", {}, ...names.map((name, i) => make("th", { scope: "col", class: isNumber[i] ? "n" : "" }, name)));
  const look = (i) => ({ class: isNumber[i] ? "n" : "", "data-label": names[i] });
  const cells = (row) => row.map((cell, i) => (i ? make("td", look(i), cell) : make("th", { scope: "row", ...look(i) }, cell)));
  const body = rows.map((row) => make("tr", {}, ...cells(row)));
  return make("div", { class: "scroll", tabindex: "0" }, make("table", { class: heads.length > 2 ? "stack" : "" }, make("thead", {}, head), make("tbody", {}, ...body)));
}

const text = (...words) => make("p", {}, ...words);
const soft = (...words) => make("p", { class: "soft" }, ...words);

const DAY = { width: 384, height: 72, quarters: 96 };

// A plot of the last 24 hours, one bar for each quarter hour with a value. The largest value fills the height.
function plot(title, day, valueOf, shown) {
  const values = day.map((one) => [one.ago, valueOf(one)]).filter(([, value]) => value !== null);
  if (!values.length) return make("div", {}, make("h3", {}, title), soft("Nothing yet."));
  const most = Math.max(...values.map(([, value]) => value));
  const step = DAY.width / DAY.quarters;
  const bars = values.map(([ago, value]) => {
    const height = most ? (DAY.height * value) / most : 0;
    return draw("rect", { x: DAY.width - (ago + 1) * step, y: DAY.height - height, width: step - 1, height, class: "bar" });
  });
  const base = draw("line", { x1: 0, x2: DAY.width, y1: DAY.height, y2: DAY.height, class: "base" });
  const latest = shown(values[values.length - 1][1]);
  const label = `${title}, last 24 hours: highest ${shown(most)}, latest ${latest}`;
  return make("figure", {}, make("h3", {}, title),
    draw("svg", { viewBox: `0 0 ${DAY.width} ${DAY.height + 1}`, role: "img", "aria-label": label, class: "day" }, base, ...bars),
    make("figcaption", {}, `24 hours ago to now, by quarter hour; highest ${shown(most)}, latest ${latest}`));
}

const parts = {
  versions(part, all) {
    const rows = part.versions.map((one) => {
      const figures = Object.entries(one.figures).map(([name, value]) => `${name} ${number(value, 4)}`).join(", ");
      const here = part.one_folder || one.is_here || !one.model_id ? "" : "its model folder is missing here";
      const marks = [one.live ? "live" : "", one.model_id === all.served.model_id ? "served here" : "", one.model_id ? "" : "not registered", here].filter(Boolean);
      return [short(one.model_id || one.encoder_id), marks.join(", "), moment(one.created), figures, `${number(one.with_vector)} of ${number(one.documents)}`, one.calibrated ? "yes" : "no"];
    });
    const said = all.served.problem ? [text(make("b", { class: "down" }, "This service: "), all.served.problem)] : [];
    const commands = part.one_folder ? "This service serves one model folder." : `ssi promote and ssi rollback change the live version (previous: ${short(part.previous)}).`;
    return [...said, rows.length ? table(["version", "state", "registered", "validation", "#documents with vector", "calibrated"], rows) : soft("None: create one with ssi index or ssi revectorize."), soft(commands)];
  },

  searches(part) {
    const ms = (value, n) => (n ? (value === null ? "> 10,000" : number(value, 1)) : "–");
    const stages = part.latency.map((one) => [one.stage, number(one.n), ms(one.p50_ms, one.n), ms(one.p95_ms, one.n), ms(one.p99_ms, one.n)]);
    const own = part.searches - part.forwarded;
    const clicked = part.day.some((one) => one.clicks);
    const share = own ? percent(Object.values(part.fallbacks).reduce((sum, n) => sum + n, 0) / own) : "–";
    const causes = Object.entries(part.fallbacks).map(([cause, n]) => [cause, number(n), percent(n / Math.max(own, 1))]);
    return [make("div", { class: "tiles" },
      make("div", {}, make("b", {}, number(part.searches)), make("span", {}, "searches")),
      make("div", {}, make("b", {}, share), make("span", {}, "not reranked (fallbacks)")),
      ...(part.forwarded ? [make("div", {}, make("b", {}, number(part.forwarded)), make("span", {}, "forwarded by the proxy"))] : [])),
    make("div", { class: "two" },
      plot("Latency p95", part.day, (one) => one.p95_ms, (value) => `${number(value, 1)} ms`),
      plot("Clicks per search", part.day, (one) => (one.searches && clicked ? one.clicks / one.searches : null), (value) => number(value, 2)),
      plot("Fallbacks", part.day, (one) => (one.searches ? one.fallbacks / one.searches : null), percent)),
    make("div", { class: "two" },
      make("div", {}, make("h3", {}, "Latency, milliseconds"), table(["stage", "#times", "#p50", "#p95", "#p99"], stages)),
      make("div", {}, make("h3", {}, "Fallbacks by cause"), causes.length ? table(["cause", "#searches", "#share"], causes) : soft("None.")))];
  },

  shapes(part) {
    const names = { default: "none", given: "given (--alpha)" };
    const origins = (one) => Object.entries(one.origins).map(([origin, n]) => `${names[origin] || origin}${n < one.searches ? ` ${number(n)}` : ""}`).join(", ");
    const named = (one) => make("span", {}, `${one.clauses.replaceAll(":", ": ") || "no field named"} `, make("small", { class: "soft" }, one.shape));
    const rows = part.shapes.map((one) => [named(one), number(one.searches), origins(one)]);
    if (part.others) rows.push(["all other bodies", number(part.others), "–"]);
    if (!rows.length) return [soft("No search has been reranked yet.")];
    const needsFit = part.shapes.some((one) => one.origins.nearest || one.origins.default);
    const remedy = soft(`nearest: the calibration of a similar body or of another window is used. none: both scores have the same weight. Run ssi calibrate --body FILE --window ${part.window} for these bodies.`);
    return [table(["clauses", "#searches", "calibration"], rows), ...(needsFit ? [remedy] : [])];
  },
};

// Redraws the parts that have changed; a part that has the keyboard focus keeps it.
function show(all) {
  for (const [name, drawer] of Object.entries(parts)) {
    const part = all[name];
    const state = JSON.stringify(name === "versions" ? [part, all.served] : part);
    if (drawn[name] === state) continue;
    drawn[name] = state;
    const section = element(name);
    const inside = section.contains(document.activeElement);
    const missing = part.unknown ? [text("Unknown: ", part.unknown, ".")] : [];
    section.querySelector("div").replaceChildren(...missing, ...(part.unknown ? [] : drawer(part, all)));
    if (inside) section.focus();
  }
}

function sentence(all) {
  const live = all.versions.versions ? all.versions.versions.find((one) => one.live) : null;
  if (live && !all.versions.one_folder && live.model_id !== all.served.model_id) return `Version ${short(live.model_id)} is live; this service has not loaded it yet.`;
  const which = all.served.processes > 1 ? ` Reported by process ${all.served.process}, one of ${all.served.processes}; searches are counted over all processes.` : "";
  return `Version ${short(all.served.model_id)} has been served since ${moment(all.served.since)}.${which}`;
}

// Loads the status and draws it. If two requests overlap, only the later one is drawn, because the other's answer is older.
async function poll() {
  clearTimeout(timer);
  const mine = ++asked;
  try {
    const all = await ask("/admin/status");
    if (mine !== asked) return;
    element("key-label").hidden = true;
    element("parts").hidden = false;
    element("index").textContent = all.index;
    const said = sentence(all);
    if (element("status").textContent !== said) element("status").textContent = said;
    show(all);
  } catch (error) {
    if (mine !== asked) return;
    element("parts").hidden = true;
    element("status").textContent = error.message;
  }
  timer = setTimeout(poll, PAUSE_MS);
}

onKey(poll);
poll();
