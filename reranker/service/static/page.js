// Functions shared by all pages: creating elements, and sending requests with the API key entered in this tab.

export const element = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// The same for an element of an SVG.
export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Sends a GET, or a POST if there is a body, and returns the answer; shows the field for the API key if one is needed.
export async function ask(path, body, options = {}) {
  const headers = { "Content-Type": "application/json" };
  const key = sessionStorage.getItem("ssi.key");
  if (key) headers.Authorization = `Bearer ${key}`;
  const sent = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  const response = await fetch(path, { ...options, ...sent, headers });
  if (response.status === 401 || response.status === 403) element("key-label").hidden = false;
  const isJson = (response.headers.get("Content-Type") || "").startsWith("application/json");
  const answer = isJson ? await response.json() : await response.blob();
  if (!response.ok) throw new Error(answer.error ? answer.error.message : `status ${response.status}`);
  return answer;
}

// Calls a function whenever the API key changes.
export function onKey(again) {
  element("key").addEventListener("change", () => {
    sessionStorage.setItem("ssi.key", element("key").value);
    again();
  });
}
