// What all pages share: elements, and requests that show the API key typed into this tab.

export const element = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// The service's answer to a GET, or a POST of a body; the field for the key appears where one is asked for.
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

// Calls a function whenever another key was typed.
export function onKey(again) {
  element("key").addEventListener("change", () => {
    sessionStorage.setItem("ssi.key", element("key").value);
    again();
  });
}
