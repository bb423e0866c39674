// A dialog with a form.

import { h } from "./dom.js";

/* Resolves to the value of the pressed button, or to null. Enter presses the first button of the form. */
export function ask(title, contents, actions) {
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

export const cancel = () => h("button", { value: "", class: "plain", formnovalidate: true }, "Cancel");

/* A text field for a name, which has the focus at first. */
export function nameField(id, value = "") {
  const input = h("input", { id, maxlength: 100, autocomplete: "off", "data-first": true });
  input.value = value;
  return { input, field: h("label", { for: id }, "Name", input) };
}
