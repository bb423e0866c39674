// The estimated error against the number of labels, drawn as SVG.

import { svg } from "./dom.js";

const NAMES = { "cross-validation": "calibrated probabilities", audit: "random check" };

function ticks(top) {
  const step = [1, 2, 5, 10, 20, 25, 50].find(one => top / one <= 5) ?? 50;
  return Array.from({ length: Math.floor(top / step) + 1 }, (_, index) => index * step);
}

export function curve(points, { width = 300, height = 150 } = {}) {
  const margin = { left: 38, right: 10, top: 10, bottom: 30 };
  const labels = points.map(point => point.labels);
  const first = Math.min(...labels), last = Math.max(...labels);
  const top = Math.min(100, Math.max(5, ...points.map(point => point.high)) * 1.08);
  const across = width - margin.left - margin.right, down = height - margin.top - margin.bottom;
  const x = value => margin.left + (last === first ? 0.5 : (value - first) / (last - first)) * across;
  const y = value => margin.top + (1 - Math.min(value, top) / top) * down;
  const parts = ticks(top).map(value => svg("g", { class: "tick" },
    svg("line", { x1: margin.left, x2: width - margin.right, y1: y(value), y2: y(value) }),
    svg("text", { x: margin.left - 6, y: y(value) + 4, "text-anchor": "end" }, `${value} %`)));
  for (const by of Object.keys(NAMES)) parts.push(...series(points.filter(point => point.by === by), by, x, y));
  const axis = last === first ? [first] : [first, last];
  parts.push(...axis.map((value, place) => svg("text", {
    class: "axis", x: x(value), y: height - 10, "text-anchor": axis.length === 1 ? "middle" : place ? "end" : "start",
  }, `${value.toLocaleString("en")} labels`)));
  return svg("svg", { class: "curve", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": inWords(points) }, parts);
}

function series(points, by, x, y) {
  if (!points.length) return [];
  const name = by === "audit" ? "audit" : "validated";
  const line = points.map(point => `${x(point.labels)},${y(point.error)}`).join(" ");
  const upper = points.map(point => `${x(point.labels)},${y(point.high)}`);
  const lower = points.map(point => `${x(point.labels)},${y(point.low)}`).reverse();
  const band = by === "audit" || points.length < 2
    ? points.map(point => svg("line", { class: `whisker ${name}`, x1: x(point.labels), x2: x(point.labels), y1: y(point.low), y2: y(point.high) }))
    : [svg("polygon", { class: `band ${name}`, points: [...upper, ...lower].join(" ") })];
  return [...band, svg("polyline", { class: `line ${name}`, points: line }),
    ...points.map(point => svg("circle", { class: `dot ${name}`, cx: x(point.labels), cy: y(point.error), r: 3 },
      svg("title", {}, describe(point))))];
}

export const describe = point =>
  `${point.labels} labels: ${point.error.toFixed(1)} % error (${point.low.toFixed(1)} to ${point.high.toFixed(1)} %), by ${NAMES[point.by]}`;

const inWords = points => `Estimated error against number of labels. ${describe(points.at(-1))}.`;
