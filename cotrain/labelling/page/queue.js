// The images to ask next. A few are kept ready, so that the next one appears at once.

import { get, PAGE } from "./api.js";
import { imageUrl } from "./dom.js";

const READY = 6;
const AUDIT = 20; // images of a random check

export const queue = { cards: [], audit: 0, asked: 0, ended: false };

const sending = new Set(); // rows whose answer is on its way: the server does not know yet that they are answered
let filling = null;
let wanted = 0; // counts up when what was asked for is no longer wanted

export const current = () => queue.cards[0] ?? null;

export function fill() {
  filling ??= fetchMore().finally(() => { filling = null; });
  return filling;
}

async function fetchMore() {
  const room = queue.audit ? Math.min(READY, queue.audit) : READY;
  if (queue.cards.length >= room) return;
  const asked = wanted;
  const have = [...queue.cards.map(card => card.row), ...sending];
  const more = await get("next", { page: PAGE, count: room - queue.cards.length, have, audit: queue.audit > 0 });
  if (asked !== wanted) return fetchMore();
  const rows = new Set([...queue.cards.map(card => card.row), ...sending]);
  queue.cards.push(...more.filter(card => !rows.has(card.row)));
  queue.ended = queue.cards.length === 0;
  for (const card of queue.cards.slice(1, 4)) new Image().src = imageUrl(card, "large");
}

/* The card is answered: the next one comes first while `answer` is on its way. It comes back if that fails. */
export async function answered(card, answer) {
  queue.cards = queue.cards.filter(one => one.row !== card.row);
  sending.add(card.row);
  try {
    await answer();
  } catch (error) {
    putFirst([card]);
    throw error;
  } finally {
    sending.delete(card.row);
  }
}

export function putFirst(cards) {
  const rows = new Set(cards.map(card => card.row));
  queue.cards = [...cards, ...queue.cards.filter(card => !rows.has(card.row))];
  queue.ended = false;
}

/* The model learnt: ask again what comes after the image that is shown. */
export function reorder() {
  if (queue.audit) return;
  wanted += 1;
  queue.cards = queue.cards.slice(0, 1);
}

export function startAudit() {
  wanted += 1;
  queue.cards = [];
  queue.audit = AUDIT;
  queue.asked = AUDIT;
}

export function endAudit() {
  wanted += 1;
  queue.audit = 0;
  queue.cards = [];
}
