// The state of the session as the server told it last, and who wants to know when it changes.

import { get, post } from "./api.js";

const EVERY = 1000; // milliseconds between questions
const RESERVED = new Set("gnrsux");
const KEYS = [..."123456789", ..."abcdefghijklmnopqrstuvwxyz".split("").filter(letter => !RESERVED.has(letter))];

export let state = null;
const listeners = [];

export const onState = listener => listeners.push(listener);

export function take(next) {
  if (state && next.version < state.version) return; // an answer that was overtaken
  const before = state;
  state = next;
  for (const listener of listeners) listener(state, before);
}

export async function refresh() {
  const next = await get("state", { version: state?.version ?? 0 });
  if (next.classes) take(next);
}

/* Make a change and show the state that it leads to. */
export async function change(path, body = {}) {
  const next = await post(path, body);
  take(next);
  return next;
}

export function keepAsking() {
  const loop = async () => {
    await refresh().catch(() => undefined);
    setTimeout(loop, document.hidden ? 4 * EVERY : EVERY);
  };
  loop();
  document.addEventListener("visibilitychange", () => document.hidden || refresh().catch(() => undefined));
}

export const keyOf = place => KEYS[place] ?? null;

export const classForKey = pressed => state?.classes[KEYS.indexOf(pressed)] ?? null;

export function nameOf(number) {
  if (number === 0) return "does not belong";
  return state?.classes.find(one => one.class === number)?.name ?? "a class that is gone";
}
