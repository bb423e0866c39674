// Second looks: disputed labels, conflicts, strangers, galleries, the most and the least confident.

import { get } from "./api.js";
import { classes, draw as drawClasses, many } from "./classes.js";
import { button, byId, coloured, h, percent, picture, plural } from "./dom.js";
import { finder } from "./find.js";
import { failed, toast } from "./messages.js";
import { opinions } from "./person.js";
import { change, nameOf, state } from "./store.js";

const PART = 48;
const LOOKS = {
  disputed: ["Disputed", "Labels that the model disputes after training without them. Please look again: about half of them are mistakes."],
  conflicts: ["Conflicts", "Images that people labelled differently. Choose one class; until then they are not used for training."],
  gallery: ["By class", "The labelled images of one class. Choose the class in the list; click an image to change its label."],
  strangers: ["Strangers?", "Unlabelled images that resemble no class. X marks one that does not belong."],
  marked: ["Not belonging", "Images that were marked as belonging to no class."],
  unsure: ["Least confident", "Unlabelled images about which the model is least confident."],
  confident: ["Most confident", "Unlabelled images about which the model is most confident. A mistake here teaches it most."],
  skipped: ["Skipped", "Images that were skipped. They can be labelled here."],
};
const review = { look: "disputed", number: null, cards: [], total: 0, opened: null };

export const reviewView = {
  title: "Review",

  enter(look) {
    review.look = look in LOOKS ? look : firstLook();
    const choose = number => (review.opened ? relabel(review.opened, number) : openGallery(number));
    Object.assign(classes, { choose, accept: () => undefined, add: () => undefined });
    classes.isMarked = number => review.look === "gallery" && number === review.number;
    load();
  },

  leave() {
    classes.isMarked = () => false;
    review.opened = null;
  },

  update(before) {
    const same = before && ["labelled", "conflicts", "disputed", "strangers", "skipped"].every(name => before[name] === state[name])
      && before.model?.labels === state.model?.labels;
    if (!same && !review.opened) load();
  },

  keys: { x: () => review.opened && relabel(review.opened, 0) },
};

const firstLook = () => (state?.conflicts ? "conflicts" : state?.disputed ? "disputed" : "gallery");

function openGallery(number) {
  review.number = number;
  if (review.look === "gallery") load();
  else location.hash = "#review/gallery";
  drawClasses();
}

async function load(start = 0) {
  const wanted = review.look;
  if (wanted === "gallery") review.number ??= state?.classes[0]?.class ?? null;
  const query = { start, count: PART, ...(wanted === "gallery" && review.number ? { class: review.number } : {}) };
  try {
    const answer = await get(`look/${wanted}`, query);
    if (wanted !== review.look) return;
    review.cards = start ? [...review.cards, ...answer.cards] : answer.cards;
    review.total = answer.total;
    draw();
  } catch (error) {
    failed(error);
  }
}

function draw() {
  if (!location.hash.startsWith("#review")) return;
  const [title, about] = LOOKS[review.look];
  const counts = { disputed: state?.disputed, conflicts: state?.conflicts, marked: state?.strangers, skipped: state?.skipped };
  const tabs = Object.entries(LOOKS).map(([look, [name]]) => h("a", {
    href: `#review/${look}`, "aria-current": look === review.look ? "page" : null,
  }, name, counts[look] ? h("span", { class: "badge" }, counts[look].toLocaleString("en")) : null));
  const which = review.look === "gallery" && review.number ? coloured(h("mark", {}, nameOf(review.number)), review.number) : title;
  const more = review.total - review.cards.length;
  byId("stage").replaceChildren(h("div", { class: "review-view" },
    h("nav", { class: "tabs", "aria-label": "Second looks" }, tabs),
    h("div", { class: "view-head" }, h("div", {},
      h("h2", {}, which, h("span", { class: "soft" }, ` ${plural(review.total, "image")}`)), h("p", {}, about))),
    review.cards.length ? h("ul", { class: "tiles looks" }, review.cards.map(tile)) : h("p", { class: "empty" }, nothing()),
    more > 0 ? button(`Show ${Math.min(more, PART)} more`, () => load(review.cards.length), { class: "more-images" }) : null));
}

function nothing() {
  if (!state?.model && ["disputed", "strangers", "unsure", "confident"].includes(review.look)) {
    return "The model has not learnt yet. Label a few images of at least two classes first.";
  }
  return review.look === "disputed" ? "The model disputes no label." : "There is nothing here.";
}

function tile(card) {
  const open = h("button", { type: "button", class: "tile", "aria-label": `${card.path}: ${caption(card)}. Open.`, onclick: () => show(card) },
    picture(card, "small"), h("span", { class: "tag" }, caption(card)));
  return h("li", {}, open, choices(card));
}

function caption(card) {
  if (card.seen === -1) return opinions(card, nameOf).map(one => one.text).join(" / ");
  if (card.seen !== null) return nameOf(card.seen);
  const guess = card.guesses[0];
  return guess ? `${nameOf(guess.class)}? ${percent(guess.probability)}` : "unlabelled";
}

/* The answers that one click gives. */
function choices(card) {
  const to = (number, text) => coloured(button(text, () => relabel(card, number), { class: "small" }), number);
  let made = [];
  if (card.seen === -1) made = opinions(card, nameOf).map(({ number, text }) => to(number, text));
  else if (card.proposed !== undefined) made = [to(card.proposed, `Change to ${nameOf(card.proposed)}`), to(card.seen, `Keep ${nameOf(card.seen)}`)];
  else if (review.look === "strangers") made = [to(0, "Does not belong")];
  return made.length ? h("div", { class: "choices" }, made) : null;
}

async function relabel(card, number) {
  try {
    await change("label", { images: [{ row: card.row, seen: card.seen }], class: number, how: "review" });
    toast(`Labelled ${nameOf(number)}.`);
    await closeAndLoad();
  } catch (error) {
    failed(error);
  }
}

async function clear(card) {
  try {
    await change("clear", { images: [{ row: card.row, seen: card.seen }], how: "review" });
    toast("The label was removed.");
    await closeAndLoad();
  } catch (error) {
    failed(error);
  }
}

async function closeAndLoad() {
  byId("close-up")?.close();
  review.opened = null;
  await load();
}

/* A closer look: the large image, and every class as a button. */
function show(card) {
  review.opened = card;
  const dialog = h("dialog", { id: "close-up", class: "close-up", "aria-label": card.path },
    h("figure", { class: "photo" }, picture(card, "large"), h("figcaption", {}, `${card.path}: ${caption(card)}`)),
    finding(card),
    h("p", { class: "actions" },
      button("Does not belong", () => relabel(card, 0)),
      card.seen !== null ? button("Remove the label", () => clear(card)) : null,
      button("Close", () => dialog.close(), { class: "plain" })));
  dialog.addEventListener("close", () => { dialog.remove(); if (review.opened === card) review.opened = null; });
  document.body.append(dialog);
  dialog.showModal();
}

/* Every class as a button, and with many a box to find one. */
function finding(card) {
  const box = h("input", { type: "search", placeholder: "Find a class", "aria-label": "Find a class", autocomplete: "off", hidden: !many() });
  const list = h("div", { class: "all-classes" });
  const draw = () => list.replaceChildren(...find.found().map(one => coloured(button(one.name, () => relabel(card, one.class), {
    "aria-pressed": card.seen === one.class ? "true" : null, class: find.picked() === one ? "picked" : null,
  }), one.class)));
  const find = finder(box, () => state.classes, { draw, choose: one => (one ? relabel(card, one.class) : draw()) });
  draw();
  return [box, list];
}
