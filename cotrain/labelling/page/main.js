// Puts the parts together: views by the address, keys, undo.

import { classes, draw as drawClasses, findClass, newClass, showClasses } from "./classes.js";
import { byId, button, h, plural } from "./dom.js";
import { gridView } from "./grid.js";
import { comeBack, draw as drawLabel, labelView, startNewClass } from "./label.js";
import { failed, speak, toast, watchConnection } from "./messages.js";
import { showPerson } from "./person.js";
import { progressView, showSummary } from "./progress.js";
import { reviewView } from "./review.js";
import { change, classForKey, keepAsking, onState, state } from "./store.js";

const VIEWS = { label: labelView, grid: gridView, review: reviewView, progress: progressView };
let view = null;

function route() {
  const [name, part] = location.hash.slice(1).split("/");
  const next = VIEWS[name] ?? labelView;
  if (view && view !== next) view.leave?.();
  view = next;
  for (const link of document.querySelectorAll(".modes a")) {
    const current = VIEWS[link.dataset.view] === view;
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.body.dataset.view = name in VIEWS ? name : "label";
  view.enter(part);
  drawClasses();
}

async function undo(how) {
  try {
    const answer = await change("undo", { how });
    comeBack(answer.cards);
    toast(answer.undone === "label" ? "The last label was undone." : `Undone: ${WHAT[answer.undone] ?? answer.undone}.`);
    speak("Undone.");
  } catch (error) {
    failed(error);
  }
}

const WHAT = { class: "new class", rename: "renaming", merge: "merging", skip: "skipping", clear: "removing the label" };

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  const dialog = document.querySelector("dialog[open]");
  if (dialog && dialog.id !== "close-up") return;
  if (event.target.closest("input, select, textarea")) return;
  const letter = event.key.toLowerCase();
  const inButton = event.target.closest("button, a, summary");
  if (letter === "enter" && inButton) return; // the button's own
  const run = view.keys[letter] ?? (dialog ? null : GLOBAL[letter]);
  const chosen = classForKey(letter);
  if (!run && !chosen) return;
  event.preventDefault();
  if (event.repeat) return;
  if (run) run("key");
  else classes.choose(chosen.class, "key");
}

const go = hash => () => { location.hash = location.hash === hash ? "#label" : hash; };
const GLOBAL = {
  u: () => undo("key"),
  n: () => (view === labelView ? startNewClass() : newClass().catch(failed)),
  g: go("#grid"),
  r: go("#review"),
  "/": findClass,
  "?": help,
};

const HELP = [
  ["1-9, letters", "give the image this class; in the grid and the galleries, show this class"],
  ["Enter", "accept the guess; in the grid, accept all images that are not marked"],
  ["U", "undo"], ["S", "skip"], ["X", "does not belong to any class"], ["N", "new class"],
  ["G", "grid, and back"], ["R", "review, and back"], ["/", "find a class by a part of its name; arrows choose, Enter takes it"], ["arrows, space", "move and mark in the grid"],
];

function help() {
  const rows = HELP.map(([keys, what]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, keys)), h("td", {}, what)));
  const dialog = h("dialog", { "aria-label": "Keys" }, h("h2", {}, "Keys"), h("table", { class: "keys" }, h("tbody", {}, rows)),
    h("p", { class: "soft" }, "Every label is on disk before the page shows it. You can close the page or stop the server at any time."),
    h("p", { class: "actions" }, button("Close", () => dialog.close(), { class: "primary", autofocus: true })));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

function learning() {
  if (state.preparing) return state.preparing.startsWith("reading") ? "Getting ready…" : `Getting ready: ${state.preparing}`;
  if (state.training) return "Learning…";
  return state.model ? `Learnt from ${plural(state.model.labels, "label")}` : "";
}

function start() {
  showClasses();
  showPerson();
  showSummary();
  watchConnection();
  onState((now, before) => {
    byId("folder").textContent = now.name;
    document.title = `${now.labelled} labels · ${now.name}`;
    byId("learning").textContent = learning();
    document.body.classList.toggle("busy", now.training || now.estimating || Boolean(now.preparing));
    const open = now.conflicts + now.disputed;
    byId("to-review").hidden = open === 0;
    byId("to-review").textContent = open ? String(open) : "";
    if (view) view.update(before);
    else route();
  });
  addEventListener("hashchange", route);
  document.addEventListener("keydown", pressed);
  document.addEventListener("undo", () => undo("click"));
  byId("help").addEventListener("click", help);
  keepAsking();
  drawLabel();
}

start();
