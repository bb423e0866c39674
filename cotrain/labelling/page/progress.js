// The view of the progress: the curve, the random check, and the button that finishes.

import { curve, describe } from "./curve.js";
import { button, byId, h, plural } from "./dom.js";
import { failed } from "./messages.js";
import { startAudit } from "./queue.js";
import { change, onState, state } from "./store.js";
import { classes } from "./classes.js";

export const progressView = {
  title: "Progress",
  enter() {
    Object.assign(classes, { choose: () => undefined, accept: () => undefined, add: () => undefined });
    draw();
  },
  update: draw,
  keys: {},
};

/* The small panel that every view shows. */
export function showSummary() {
  let drawn = "";
  onState(() => {
    const shows = JSON.stringify([state.total, state.labelled, state.strangers, state.skipped, state.conflicts, state.curve, state.advice]);
    if (shows === drawn) return;
    drawn = shows;
    byId("bar").replaceChildren(bar());
    byId("advice").textContent = state.advice;
    byId("small-curve").replaceChildren(...(state.curve.length ? [curve(state.curve)] : []));
  });
}

function bar() {
  const done = state.labelled + state.strangers;
  const share = h("span", { class: "done" });
  share.style.width = `${state.total ? (100 * done) / state.total : 0}%`;
  const rest = [
    state.strangers ? `${state.strangers.toLocaleString("en")} not belonging` : "",
    state.skipped ? `${state.skipped.toLocaleString("en")} skipped` : "",
    state.conflicts ? plural(state.conflicts, "conflict") : "",
  ].filter(Boolean).join(", ");
  return h("div", {},
    h("p", { class: "numbers" }, h("strong", { id: "labelled" }, state.labelled.toLocaleString("en")),
      ` of ${state.total.toLocaleString("en")} images labelled`),
    h("div", { class: "bar", "aria-hidden": "true" }, share), rest ? h("p", { class: "soft" }, rest) : null);
}

function draw() {
  if (location.hash !== "#progress" || !state) return;
  const focused = document.activeElement?.id;
  byId("stage").replaceChildren(h("div", { class: "progress-view" }, errorPanel(), auditPanel(), finishPanel()));
  if (focused) byId(focused)?.focus();
}

function errorPanel() {
  if (!state.curve.length) {
    return h("section", { class: "panel" }, h("h2", {}, "Estimated error"),
      h("p", {}, "The curve begins with the first estimate, once a few images of at least two classes are labelled."));
  }
  const rows = [...state.curve].reverse().map(point => h("li", {}, describe(point)));
  return h("section", { class: "panel" }, h("h2", {}, "Estimated error"), h("p", { class: "advice" }, state.advice),
    curve(state.curve, { width: 640, height: 220 }),
    h("p", { class: "legend" }, h("span", { class: "validated" }, "by calibrated probabilities"), h("span", { class: "audit" }, "random check")),
    h("p", { class: "soft" }, "The error to expect on the unlabelled images. The line adds up the model's own doubts, which cross-validation over the labels calibrates. Its band shows only how uncertain that calibration is, and with many labels it is usually too high. A random check measures the error directly; its bars are 95 % confidence intervals."),
    h("details", {}, h("summary", {}, "All numbers"), h("ul", {}, rows)));
}

function auditPanel() {
  const start = button("Start a random check", () => { startAudit(); location.hash = "#label"; }, {
    id: "audit", disabled: !state.model || !state.unasked,
  });
  const done = state.audited ? ` So far ${plural(state.audited, "image has", "images have")} been checked.` : "";
  return h("section", { class: "panel" }, h("h2", {}, "Random check"),
    h("p", {}, `Answer 20 images that are drawn at random, without seeing the guess. This measures the error on your images as they are. The answers count as labels too.${done}`), start);
}

function finishPanel() {
  const { stage, line } = state.finish;
  const go = button(stage === "done" ? "Finish again" : "Finish", () => change("finish").catch(failed), {
    id: "finish", class: "primary", disabled: stage === "running" || state.classes.filter(one => one.count).length < 2,
  });
  const words = {
    idle: "", running: line, stopped: `${line} is not complete. Finish continues it if labels and images are still the same.`, failed: `It did not work: ${line}`,
    done: "The run folder is complete. Open report.html in it, or classify other images with cotrain predict.",
  }[stage];
  return h("section", { class: "panel" }, h("h2", {}, "Finish"),
    h("p", {}, "Train the final model on all labels and write a run folder: the model, predictions.csv for all images, report.html and label_next.csv. You can continue labelling meanwhile, but the guesses pause."),
    go, stage === "running" ? h("progress", { "aria-label": "Writing the run folder" }) : null,
    h("p", { class: stage === "failed" ? "bad" : "", role: "status" }, words),
    stage === "done" ? h("p", {}, h("code", {}, line)) : null,
    h("p", { class: "soft" }, "Your labels are in ", h("code", {}, state.table), "."));
}
