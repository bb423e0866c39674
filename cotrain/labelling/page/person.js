// The name of the person at this browser, who may stay without one.

import { ask, cancel, nameField } from "./dialogs.js";
import { byId, h } from "./dom.js";
import { failed, toast } from "./messages.js";
import { change, onState, state } from "./store.js";

export function showPerson() {
  byId("you").addEventListener("click", () => introduce().catch(failed));
  onState(now => {
    byId("your-name").textContent = now.you || "Your name";
    byId("you").setAttribute("aria-label", now.you ? `Your name: ${now.you}. Change it.` : "Say your name");
  });
}

async function introduce() {
  const { input, field } = nameField("person-name", state.you);
  const about = h("p", { class: "soft" }, "It is kept with your labels, and others see it where people disagree.");
  const save = h("button", { value: "save", class: "primary" }, "Save");
  if (await ask("Your name", [field, about], [save, cancel()]) !== "save") return;
  await change("name", { name: input.value });
  toast(state.you ? `Hello, ${state.you}.` : "Your labels carry no name now.");
}

/* What people say about an image, each class with the names of those who said it. */
export function opinions(card, nameOf) {
  const people = new Map();
  for (const one of card.said) people.set(one.class, [...(people.get(one.class) ?? []), one.person].filter(Boolean));
  return [...people].map(([number, names]) => ({ number, text: names.length ? `${nameOf(number)} (${names.join(", ")})` : nameOf(number) }));
}
