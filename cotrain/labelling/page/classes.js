// The list of classes, and the dialogs that name, rename and merge them.

import { byId, button, coloured, h, key, plural } from "./dom.js";
import { failed, toast } from "./messages.js";
import { change, keyOf, onState, state } from "./store.js";

const MANY = 12; // classes, from which on a box to find one is shown

export const classes = { choose: () => undefined, isMarked: () => false }; // set by the view that is shown

export function showClasses() {
  byId("new-class").addEventListener("click", () => newClass().catch(failed));
  byId("filter").addEventListener("input", draw);
  byId("filter").addEventListener("keydown", event => {
    if (event.key === "Enter") chooseFirst();
    if (event.key === "Enter" || event.key === "Escape") clearFilter();
  });
  onState(draw);
}

export function findClass() {
  if (!byId("filter").hidden) byId("filter").focus();
}

function chooseFirst() {
  const first = shown()[0];
  if (first && byId("filter").value) classes.choose(first.class, "key");
}

function clearFilter() {
  byId("filter").value = "";
  byId("filter").blur();
  draw();
}

function shown() {
  const wanted = byId("filter").value.trim().toLowerCase();
  return state.classes.filter(one => one.name.toLowerCase().includes(wanted));
}

export function draw() {
  if (!state) return;
  byId("filter").hidden = state.classes.length < MANY;
  const focused = document.activeElement?.closest?.("#classes [data-class]")?.dataset.class;
  const place = new Map(state.classes.map((one, index) => [one.class, index]));
  byId("classes").replaceChildren(...shown().map(one => item(one, keyOf(place.get(one.class)))));
  if (focused) byId("classes").querySelector(`[data-class="${focused}"] .choose`)?.focus();
  if (state.classes.length === 0) {
    byId("classes").append(h("li", { class: "hint" }, "No classes yet. Press N to name the first one."));
  }
}

function item(one, letter) {
  const choose = button("", () => classes.choose(one.class, "click"), {
    class: "choose", "aria-keyshortcuts": letter, "aria-pressed": classes.isMarked(one.class) ? "true" : null,
    title: one.name,
  });
  const count = h("span", { class: "count", title: counts(one), "aria-label": counts(one) }, one.count.toLocaleString("en"));
  choose.append(letter ? key(letter.toUpperCase()) : h("span", { class: "nokey" }), h("span", { class: "name" }, one.name), count);
  const more = button("⋯", () => editClass(one), { class: "icon more", "aria-label": `Rename or merge ${one.name}` });
  return coloured(h("li", { "data-class": one.class }, choose, more), one.class);
}

const counts = one => `${plural(one.count, "label")}, the model takes ${plural(one.guessed, "more image")} for it`;

/* A dialog with a form; resolves to the pressed button's value, or null. */
function ask(title, contents, actions) {
  return new Promise(resolve => {
    const form = h("form", { method: "dialog" }, h("h2", {}, title), contents, h("p", { class: "actions" }, actions));
    const dialog = h("dialog", { "aria-label": title }, form);
    dialog.addEventListener("close", () => { dialog.remove(); resolve(dialog.returnValue || null); });
    form.addEventListener("submit", event => {
      event.preventDefault();
      dialog.close(event.submitter?.value ?? "");
    });
    document.body.append(dialog);
    dialog.showModal();
    dialog.querySelector("[data-first]")?.focus();
  });
}

const cancel = () => h("button", { value: "", class: "plain", formnovalidate: true }, "Cancel");

/* Ask for a name and make the class; resolves to its number, or null. */
export async function newClass() {
  const name = h("input", { id: "class-name", maxlength: 100, required: true, autocomplete: "off", "data-first": true });
  const field = h("label", { for: "class-name" }, "Name", name);
  const make = h("button", { value: "make", class: "primary" }, "Add class");
  // The button that Enter presses is the first of the form.
  if (await ask("New class", field, [make, cancel()]) !== "make" || !name.value.trim()) return null;
  const made = (await change("class", { name: name.value })).made;
  toast(`New class ${name.value.trim()}.`);
  return made;
}

async function editClass(one) {
  const name = h("input", { id: "class-name", maxlength: 100, autocomplete: "off", "data-first": true });
  name.value = one.name;
  const others = state.classes.filter(other => other.class !== one.class);
  const into = h("select", { id: "merge-into" }, others.map(other => h("option", { value: other.class }, other.name)));
  const merging = h("fieldset", { hidden: others.length === 0 },
    h("legend", {}, "Merge"),
    h("label", { for: "merge-into" }, `All images of ${one.name} get the class`, into),
    h("button", { value: "merge", class: "danger" }, "Merge"));
  const renaming = h("fieldset", {}, h("legend", {}, "Rename"), h("label", { for: "class-name" }, "Name", name),
    h("button", { value: "rename", class: "primary" }, "Rename"));
  const answer = await ask(one.name, [renaming, merging], [cancel()]);
  try {
    if (answer === "rename" && name.value.trim() && name.value !== one.name) {
      await change("rename", { class: one.class, name: name.value });
      toast(`${one.name} is now ${name.value.trim()}.`);
    } else if (answer === "merge") {
      await change("merge", { class: one.class, into: Number(into.value) });
      toast(`${one.name} was merged. U undoes it.`);
    }
  } catch (error) {
    failed(error);
  }
}
