// Shows the routes that the service's openapi.json describes: the fields of each request body, and an example request.

import { ask, element, make, onKey } from "/page/page.js";

// Resolves a reference, or a list of alternatives, to a schema.
function resolved(schema, api) {
  if (!schema) return {};
  if (schema.$ref) return schema.$ref.slice(2).split("/").reduce((inner, name) => inner[name], api);
  const other = (schema.anyOf || []).find((one) => one.type !== "null");
  return other ? { ...resolved(other, api), description: schema.description } : schema;
}

function kindOf(schema, api) {
  const found = resolved(schema, api);
  return found.type === "array" ? `list of ${kindOf(found.items, api)}` : found.type || (found.enum ? found.enum.join(" | ") : "any");
}

function example(schema, api, depth = 0) {
  const found = resolved(schema, api);
  if (found.enum) return found.enum[0];
  if (found.type === "array") return depth > 3 ? [] : [example(found.items, api, depth + 1)];
  if (found.type === "object" || found.properties) {
    const needed = Object.entries(found.properties || {}).filter(([name]) => (found.required || []).includes(name));
    return Object.fromEntries(needed.map(([name, inner]) => [name, example(inner, api, depth + 1)]));
  }
  return { string: "red shoes", integer: 1, number: 0.5, boolean: true }[found.type] ?? "red shoes";
}

function fields(schema, api) {
  const rows = Object.entries(resolved(schema, api).properties || {}).map(([name, field]) => make("tr", {},
    make("th", { scope: "row" }, make("code", {}, name), (resolved(schema, api).required || []).includes(name) ? " (required)" : ""),
    make("td", {}, kindOf(field, api)), make("td", {}, field.description || "")));
  const head = make("thead", {}, make("tr", {}, ...["field", "type", "description"].map((name) => make("th", { scope: "col" }, name))));
  return rows.length ? make("table", {}, head, make("tbody", {}, ...rows)) : make("p", {}, "No body.");
}

function route(path, method, about, api) {
  const sent = about.requestBody && about.requestBody.content["application/json"];
  const data = sent ? ` \\\n  -H 'Content-Type: application/json' -d '${JSON.stringify(example(sent.schema, api))}'` : "";
  const request = `curl -s -X ${method.toUpperCase()} ${location.origin}${path}${data}`;
  return make("section", {}, make("h2", {}, `${method.toUpperCase()} ${path}`), make("p", { class: "whole" }, about.description || about.summary || ""),
    ...(sent ? [fields(sent.schema, api)] : []), make("pre", { tabindex: "0" }, make("code", {}, request)));
}

async function show() {
  try {
    const api = await ask("/openapi.json");
    const routes = Object.entries(api.paths).flatMap(([path, methods]) => Object.entries(methods).map(([method, about]) => route(path, method, about, api)));
    element("routes").replaceChildren(...routes);
    element("key-label").hidden = true;
    element("status").textContent = `${routes.length} routes in openapi.json.`;
  } catch (error) {
    element("status").textContent = error.message;
  }
}

onKey(show);
show();
