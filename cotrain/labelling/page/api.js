// Requests to the server, and whether it can be reached.

export class Problem extends Error {}

export const PAGE = [...crypto.getRandomValues(new Uint8Array(8))].map(byte => byte.toString(16).padStart(2, "0")).join("");

const listeners = [];
let reached = "yes"; // "yes", "no", or "forbidden" when another server runs there now

export const onConnection = listener => listeners.push(listener);

function setReached(value) {
  if (value === reached) return;
  reached = value;
  for (const listener of listeners) listener(value);
}

async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    setReached("no");
    throw new Problem("The connection is lost.");
  }
  if (answer.status === 403) {
    setReached("forbidden");
    throw new Problem("The server no longer knows this page.");
  }
  setReached("yes");
  const value = await answer.json().catch(() => ({ problem: "The server gave no answer." }));
  if (!answer.ok) throw new Problem(sentence(value.problem ?? "The server gave no answer."));
  return value;
}

const sentence = text => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

export const get = (path, query = {}) => {
  const pairs = Object.entries(query).flatMap(([name, value]) => [value].flat().map(one => [name, String(one)]));
  return ask(`/api/${path}?${new URLSearchParams(pairs)}`, {});
};

/* Changes are sent one after the other, in the order in which they were made. */
let last = Promise.resolve();
export function post(path, body) {
  const send = () => ask(`/api/${path}`, {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
  });
  const sent = last.then(send, send);
  last = sent.catch(() => undefined);
  return sent;
}
