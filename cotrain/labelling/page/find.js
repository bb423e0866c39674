// Finding a class by a part of its name, with the keyboard alone: type, choose with the arrows, Enter.

const plain = text => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();

/* The classes whose name contains the text: those that begin with it first, then those with a word that does. */
export function matching(classes, text) {
  const wanted = plain(text.trim());
  if (!wanted) return classes;
  const rank = name => (name.startsWith(wanted) ? 0 : name.split(/[^\p{L}\p{N}]+/u).some(word => word.startsWith(wanted)) ? 1 : 2);
  return classes.map(one => ({ one, name: plain(one.name) })).filter(({ name }) => name.includes(wanted))
    .sort((a, b) => rank(a.name) - rank(b.name)).map(({ one }) => one);
}

/* A search box over classes. `draw` shows the matches with the picked one marked; `choose` gets the class that Enter
   takes, or null and the text if nothing matches. */
export function finder(input, all, { draw, choose, leave = () => undefined }) {
  let place = 0;
  const found = () => matching(all(), input.value);
  const picked = () => (input.value.trim() ? found()[place] ?? null : null);
  input.addEventListener("input", () => { place = 0; draw(); });
  input.addEventListener("keydown", event => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && input.value.trim()) {
      event.preventDefault();
      place = Math.min(Math.max(place + step, 0), Math.max(found().length - 1, 0));
      draw();
    } else if (event.key === "Enter" && !event.isComposing) {
      event.preventDefault();
      const one = picked(), text = input.value.trim();
      input.value = "";
      place = 0;
      choose(one, text);
    } else if (event.key === "Escape") {
      if (input.value) event.preventDefault(); // a dialog closes with the next one
      input.value = "";
      draw();
      leave();
    }
  });
  return { found, picked };
}
