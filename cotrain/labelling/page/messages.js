// Short messages: toasts for the eye, a live region for the ear, a banner when the server is away.

import { onConnection } from "./api.js";
import { byId, button, h } from "./dom.js";
import { onState } from "./store.js";

const SHOWN = 5000; // milliseconds

export function toast(text, { action = null, kind = "" } = {}) {
  const one = h("div", { class: `toast ${kind}` }, h("span", {}, text));
  if (action) one.append(button(action.text, () => { one.remove(); action.run(); }, { class: "small" }));
  byId("toasts").append(one);
  while (byId("toasts").children.length > 3) byId("toasts").firstChild.remove();
  setTimeout(() => one.remove(), SHOWN);
}

export const failed = error => toast(error.message, { kind: "bad" });

export const speak = text => { byId("spoken").textContent = text; };

const AWAY = {
  no: "Connection lost. Every label that the page has shown is on disk. Trying again…",
  forbidden: "cotrain label was restarted. Open the new address that it printed in the terminal.",
};

export function watchConnection() {
  onConnection(reached => {
    const banner = byId("banner");
    banner.hidden = reached === "yes";
    banner.textContent = AWAY[reached] ?? "";
    document.body.classList.toggle("away", reached !== "yes");
    if (reached === "yes") toast("Connected again.");
  });
  let shown = "";
  onState(state => {
    if (state.notices.join("\n") === shown) return;
    shown = state.notices.join("\n");
    byId("notices").hidden = state.notices.length === 0;
    byId("notices").replaceChildren(...state.notices.map(text => h("li", {}, text)));
  });
}
