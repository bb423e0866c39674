// The list of classes, and the dialogs that name, rename and merge them.

import { ask, cancel, nameField } from "./dialogs.js";
import { byId, button, coloured, h, key, plural } from "./dom.js";
import { finder } from "./find.js";
import { failed, speak, toast } from "./messages.js";
import { change, keyOf, onState, state } from "./store.js";

const MANY = 12; // classes, from which on a box to find one is shown

// Set by the view that is shown.
export const classes = { choose: () => undefined, accept: () => undefined, isMarked: () => false, add: () => undefined };

let find = null;

export function showClasses() {
  byId("new-class").addEventListener("click", () => newClass().catch(failed));
  find = finder(byId("filter"), () => state.classes, { draw: drawFound, choose: chooseFound, leave: () => byId("filter").blur() });
  onState(draw);
}

export function findClass() {
  if (!byId("filter").hidden) byId("filter").focus();
}

export const many = () => state.classes.length >= MANY;

/* Enter in the box. It keeps the focus if some classes have no key: the next name can be typed at once. */
function chooseFound(one, text) {
  if (keyOf(state.classes.length - 1)) byId("filter").blur();
  draw();
  if (one) classes.choose(one.class, "key");
  else if (text) classes.add(text);
  else classes.accept();
}

function drawFound() {
  draw();
  const one = find.picked();
  byId("classes").querySelector(".picked")?.scrollIntoView({ block: "nearest" });
  if (byId("filter").value.trim()) speak(one ? `${one.name}, ${plural(find.found().length, "match", "matches")}` : "No class matches.");
}

export function draw() {
  if (!state) return;
  byId("filter").hidden = !many();
  const focused = document.activeElement?.closest?.("#classes [data-class]")?.dataset.class;
  const place = new Map(state.classes.map((one, index) => [one.class, index])), scrolled = byId("classes").scrollTop;
  byId("classes").replaceChildren(...find.found().map(one => item(one, keyOf(place.get(one.class)))));
  byId("classes").scrollTop = scrolled;
  if (focused) byId("classes").querySelector(`[data-class="${focused}"] .choose`)?.focus();
  if (state.classes.length === 0) {
    byId("classes").append(h("li", { class: "hint" }, "No classes yet. Press N to name the first one."));
  } else if (find.found().length === 0) {
    byId("classes").append(h("li", { class: "hint" }, "No class matches. Enter makes a new one."));
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
  const picked = find.picked()?.class === one.class ? "picked" : null;
  return coloured(h("li", { "data-class": one.class, class: picked }, choose, more), one.class);
}

const counts = one => `${plural(one.count, "label")}, the model takes ${plural(one.guessed, "more image")} for it`;

/* Ask for a name and make the class; resolves to its number, or null. */
export async function newClass(proposed = "") {
  const { input, field } = nameField("class-name", proposed);
  const make = h("button", { value: "make", class: "primary" }, "Add class");
  if (await ask("New class", field, [make, cancel()]) !== "make" || !input.value.trim()) return null;
  const made = (await change("class", { name: input.value })).made;
  toast(`New class ${input.value.trim()}.`);
  return made;
}

async function editClass(one) {
  const { input: name, field } = nameField("class-name", one.name);
  const others = state.classes.filter(other => other.class !== one.class);
  const into = h("select", { id: "merge-into" }, others.map(other => h("option", { value: other.class }, other.name)));
  const merging = h("fieldset", { hidden: others.length === 0 },
    h("legend", {}, "Merge"),
    h("label", { for: "merge-into" }, `All images of ${one.name} get the class`, into),
    h("button", { value: "merge", class: "danger" }, "Merge"));
  const renaming = h("fieldset", {}, h("legend", {}, "Rename"), field,
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
