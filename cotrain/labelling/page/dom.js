// Small helpers to build elements. Text is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

export function h(tag, attributes = {}, ...children) {
  return build(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return build(document.createElementNS(SVG, tag), attributes, children);
}

export const byId = id => document.getElementById(id);

export function button(text, onclick, attributes = {}) {
  const click = event => {
    if (event.detail > 0) event.currentTarget.blur(); // a mouse: Enter should not press this button again
    onclick(event);
  };
  return h("button", { type: "button", ...attributes, onclick: click }, text);
}

export const key = text => h("kbd", { "aria-hidden": "true" }, text);

export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

export const percent = share => {
  const value = 100 * share;
  if (value > 99.5 && value < 100) return "> 99 %";
  return value > 0 && value < 1 ? "< 1 %" : `${Math.round(value)} %`;
};

export const imageUrl = (card, size) => `/image/${card.row}?size=${size}&v=${card.hash}`;

/* The picture of a card. One that cannot be shown says why. */
export function picture(card, size) {
  const image = h("img", {
    src: imageUrl(card, size), alt: `Image ${card.path}`, draggable: "false", decoding: "async",
    loading: size === "small" ? "lazy" : "eager",
  });
  image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 128));
  image.addEventListener("error", async () => {
    const note = h("p", { class: "broken" }, "This image cannot be shown.");
    image.replaceWith(note);
  }, { once: true });
  return image;
}

/* A colour of its own for each class; the style sheet makes it readable in light and dark. */
export function coloured(element, number) {
  element.style.setProperty("--hue", String((number * 137.508 + 205) % 360));
  element.classList.add("coloured");
  return element;
}
