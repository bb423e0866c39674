// The grid: images that the model takes for one class. Mark the exceptions, accept the rest at once.

import { get } from "./api.js";
import { classes, draw as drawClasses } from "./classes.js";
import { button, byId, coloured, h, key, percent, picture, plural } from "./dom.js";
import { failed, speak, toast } from "./messages.js";
import { putFirst } from "./queue.js";
import { change, nameOf, state } from "./store.js";

const COUNT = 24;
const grid = { number: null, cards: [], marked: new Set(), loading: false };

export const gridView = {
  title: "Grid",

  enter() {
    Object.assign(classes, { choose: number => load(number), accept, add: () => undefined });
    classes.isMarked = number => number === grid.number;
    load(grid.number ?? mostGuessed());
  },

  leave() {
    classes.isMarked = () => false;
  },

  update(before) {
    const renamed = before && JSON.stringify(before.classes.map(one => one.name)) !== JSON.stringify(state.classes.map(one => one.name));
    const learnt = state.model?.labels !== before?.model?.labels;
    if (grid.cards.length === 0 && learnt) load(grid.number ?? mostGuessed());
    else if (renamed) draw();
  },

  keys: { enter: accept },
};

const mostGuessed = () => [...(state?.classes ?? [])].sort((a, b) => b.guessed - a.guessed)[0]?.class ?? null;

async function load(number) {
  grid.number = number;
  grid.marked.clear();
  grid.loading = true;
  try {
    grid.cards = number === null ? [] : await get("grid", { class: number, count: COUNT });
  } catch (error) {
    failed(error);
  }
  grid.loading = false;
  draw();
  drawClasses();
}

async function accept() {
  const taken = grid.cards.filter(card => !grid.marked.has(card.row));
  const left = grid.cards.filter(card => grid.marked.has(card.row));
  if (!grid.cards.length || grid.loading) return;
  grid.loading = true;
  try {
    if (taken.length) {
      const images = taken.map(card => ({ row: card.row, seen: card.seen }));
      await change("label", { images, class: grid.number, how: "grid" });
    }
    putFirst(left);
    const rest = left.length ? ` ${plural(left.length, "exception")} will be asked next in the view One image.` : "";
    toast(`${plural(taken.length, "image")} labelled ${nameOf(grid.number)}.${rest}`);
    speak(`${plural(taken.length, "image")} labelled ${nameOf(grid.number)}.`);
    await load(grid.number);
  } catch (error) {
    grid.loading = false;
    failed(error);
  }
}

function draw() {
  if (location.hash !== "#grid") return;
  const number = grid.number;
  if (!grid.cards.length) {
    byId("stage").replaceChildren(h("div", { class: "empty" }, h("h2", {}, "Grid"), h("p", {}, why())));
    return;
  }
  const left = grid.cards.length - grid.marked.size;
  const yes = button("", accept, { class: "primary accept", "aria-keyshortcuts": "Enter" });
  yes.append(h("span", {}, left ? `Accept ${plural(left, "image")} as ${nameOf(number)}` : "Accept none"), key("Enter"));
  byId("stage").replaceChildren(h("div", { class: "grid-view" },
    h("div", { class: "view-head" },
      h("div", {}, h("h2", {}, "Is each of these ", coloured(h("mark", {}, nameOf(number)), number), "?"),
        h("p", {}, "Mark the images that are something else, then accept the rest. Choose another class in the list.")),
      coloured(yes, number)),
    h("ul", { class: "tiles" }, grid.cards.map(tile))));
}

function why() {
  if (grid.loading) return "Loading images…";
  if (!state?.model) return "The model has no guesses yet. Label a few images of at least two classes first.";
  return `The model takes no other image for ${nameOf(grid.number)}. Choose another class.`;
}

function tile(card, place) {
  const marked = grid.marked.has(card.row);
  const guess = card.guesses.find(one => one.class === grid.number);
  const toggle = h("button", {
    type: "button", class: "tile", "aria-pressed": String(marked), "data-place": place,
    "aria-label": `${card.path}${guess ? `, ${percent(guess.probability)}` : ""}: ${marked ? "exception" : "accepted"}`,
    onclick: () => mark(card, place), onkeydown: event => move(event, place),
  }, picture(card, "small"), h("span", { class: "tag" }, marked ? "Not this" : guess ? percent(guess.probability) : ""));
  return h("li", {}, toggle);
}

function mark(card, place) {
  if (!grid.marked.delete(card.row)) grid.marked.add(card.row);
  draw();
  focusTile(place);
}

function focusTile(place) {
  byId("stage").querySelector(`[data-place="${place}"]`)?.focus();
}

function move(event, place) {
  const columns = getComputedStyle(event.currentTarget.closest("ul")).gridTemplateColumns.split(" ").length;
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
  if (event.key === "Enter") {
    event.preventDefault();
    event.stopPropagation();
    accept();
  } else if (event.key in steps) {
    event.preventDefault();
    focusTile(place + steps[event.key]);
  }
}
