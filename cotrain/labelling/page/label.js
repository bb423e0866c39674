// The view of one image: look, press a key, and the next one is there.

import { get } from "./api.js";
import { classes, newClass } from "./classes.js";
import { button, byId, coloured, h, imageUrl, key, percent, picture } from "./dom.js";
import { failed, speak, toast } from "./messages.js";
import { opinions } from "./person.js";
import { answered, current, endAudit, fill, putFirst, queue, reorder } from "./queue.js";
import { change, nameOf, state } from "./store.js";

const RECENT = 8;
const recent = []; // {card, number}, the newest first
let drawn = null; // what the stage shows

export const labelView = {
  title: "One image",

  enter() {
    Object.assign(classes, { choose, accept, add: startNewClass });
    drawn = null;
    draw();
    fill().then(draw, failed);
  },

  update(before) {
    if (before && state.model?.labels !== before.model?.labels) {
      reorder();
      refreshCurrent();
      fill().then(draw, failed);
    } else if (before && state.labelled !== before.labelled) {
      refreshCurrent();
    } else if (queue.ended && before && state.unasked > before.unasked) {
      fill().then(draw, failed);
    }
    draw();
  },

  keys: {
    enter: accept,
    s: () => skip("key"),
    x: () => choose(0, "key"),
  },
};

/* Another browser may have labelled the image that is shown, and the model may have another guess. */
async function refreshCurrent() {
  const shown = current();
  if (!shown) return;
  const now = await get(`card/${shown.row}`).catch(() => null);
  if (!now || current()?.row !== shown.row) return;
  queue.cards[0] = now;
  draw();
}

function accept() {
  const guess = queue.audit ? null : current()?.guesses[0];
  if (guess) choose(guess.class, "key");
}

async function choose(number, how) {
  const card = current();
  if (!card) return;
  const audit = queue.audit > 0;
  const body = { images: [{ row: card.row, seen: card.seen }], class: number, how: audit ? "audit" : how };
  const done = answered(card, () => change("label", body));
  if (audit) countDown();
  await shown(done, () => {
    remember(card, number);
    speak(`Labelled ${nameOf(number)}.`);
  });
}

async function skip(how) {
  const card = current();
  if (!card) return;
  await shown(answered(card, () => change("skip", { images: [{ row: card.row }], how })), () => speak("Skipped."));
}

/* Show the next image at once, and what was done when it is on disk. */
async function shown(done, then) {
  next();
  try {
    await done;
    then();
  } catch (error) {
    failed(error);
  }
  draw();
}

function countDown() {
  queue.audit -= 1;
  if (queue.audit > 0) return;
  endAudit();
  toast("The random check is complete. Thank you.");
}

function next() {
  draw();
  fill().then(draw, failed);
}

function remember(card, number) {
  const before = recent.findIndex(one => one.card.row === card.row);
  if (before >= 0) recent.splice(before, 1);
  recent.unshift({ card: { ...card, seen: number }, number });
  recent.length = Math.min(recent.length, RECENT);
}

/* After an undo, its image is asked again. */
export function comeBack(cards) {
  for (const card of cards) {
    const place = recent.findIndex(one => one.card.row === card.row);
    if (place >= 0) recent.splice(place, 1);
  }
  if (cards.length) putFirst(cards.filter(card => card.seen === null));
  draw();
}

async function nameAndChoose(proposed) {
  const number = await newClass(proposed);
  if (number !== null) choose(number, "click");
}

export const startNewClass = (proposed = "") => nameAndChoose(proposed).catch(failed);

export function draw() {
  if (location.hash && location.hash !== "#label") return;
  const card = current();
  const shows = JSON.stringify([card, queue.ended, queue.audit, recent.map(one => [one.card.row, one.number]), state?.classes]);
  if (shows === drawn) return;
  drawn = shows;
  const parts = card ? [audited(), photo(card), question(card), actions(), strip()] : [nothing(), strip()];
  byId("stage").replaceChildren(h("div", { class: "one" }, parts));
}

/* Keep the picture while only the words around it change. */
let photograph = null;
function photo(card) {
  if (photograph?.dataset.row !== String(card.row)) {
    photograph = h("figure", { class: "photo", "data-row": card.row },
      picture(card, "large"), h("figcaption", { title: card.path }, card.path));
  }
  return photograph;
}

function question(card) {
  if (queue.audit) return h("div", { class: "guess" }, h("p", {}, "Which class is this?"));
  const others = card.said.length ? said(card) : null;
  const [first, ...rest] = card.guesses;
  if (!first) {
    const words = state?.classes.length ? "Choose a class with its key or button." : "What is this? Press N and name its class.";
    return h("div", { class: "guess" }, others, h("p", {}, words));
  }
  const yes = button("", () => choose(first.class, "click"), {
    class: "primary accept", "aria-keyshortcuts": "Enter",
    "aria-label": `Accept the guess ${nameOf(first.class)}, probability ${percent(first.probability)}`,
  });
  yes.append(h("span", { class: "name" }, nameOf(first.class)), h("span", { class: "share" }, percent(first.probability)), key("Enter"));
  const alternatives = rest.filter(guess => guess.probability >= 0.01).map(guess => {
    const other = button("", () => choose(guess.class, "click"), { class: "other" });
    other.append(h("span", { class: "name" }, nameOf(guess.class)), h("span", { class: "share" }, percent(guess.probability)));
    return coloured(other, guess.class);
  });
  return h("div", { class: "guess" }, others, h("div", { class: "guesses" },
    h("span", { class: "lead" }, "Guess"), coloured(yes, first.class), alternatives));
}

function said(card) {
  const values = opinions(card, nameOf).map(one => one.text);
  const text = values.length > 1 ? `People disagree: ${values.join(" or ")}.` : `Already labelled ${values[0]}.`;
  return h("p", { class: "already" }, text);
}

function actions() {
  const one = (text, letter, run, extra = {}) => {
    const made = button(text, run, { "aria-keyshortcuts": letter, ...extra });
    made.append(key(letter.toUpperCase()));
    return made;
  };
  return h("div", { class: "actions" },
    one("Undo", "u", () => document.dispatchEvent(new Event("undo")), { disabled: !state?.undo, id: "undo" }),
    one("Skip", "s", () => skip("click")),
    one("Does not belong", "x", () => choose(0, "click")),
    one("New class", "n", () => startNewClass()));
}

function audited() {
  if (!queue.audit) return null;
  return h("div", { class: "audited" },
    h("p", {}, h("strong", {}, `Random check, ${queue.asked - queue.audit + 1} of ${queue.asked}. `),
      "These images were drawn at random, and the guess is hidden. The answers measure the model's error."),
    button("Stop", () => { endAudit(); next(); }, { class: "small" }));
}

function strip() {
  if (!recent.length) return null;
  return h("div", { class: "recent" }, h("h2", {}, "Just labelled"), h("ul", {}, recent.map(({ card, number }) => {
    const again = button("", () => { putFirst([card]); recent.splice(recent.findIndex(one => one.card === card), 1); draw(); }, {
      "aria-label": `${card.path}, labelled ${nameOf(number)}. Label it again.`, title: `${card.path}: label it again`,
    });
    again.append(h("img", { src: imageUrl(card, "small"), alt: "", draggable: "false" }), h("span", {}, nameOf(number)));
    return h("li", {}, coloured(again, number));
  })));
}

function nothing() {
  if (!queue.ended) return h("p", { class: "empty" }, "Loading images…");
  const again = state?.skipped ? h("p", {}, `${state.skipped} skipped images are left. `, h("a", { href: "#review/skipped" }, "Look at them")) : null;
  return h("div", { class: "empty" }, h("h2", {}, "You have seen all images."), again,
    h("p", {}, h("a", { href: "#progress" }, "See the progress and finish")));
}
