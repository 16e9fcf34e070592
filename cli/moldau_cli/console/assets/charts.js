// Line charts of rates. Axis texts are HTML, so that they keep their size on narrow screens.
import { h, s } from "./dom.js";

const WIDTH = 600, HEIGHT = 120;

function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value);
}

// points: [ms before the last, value], oldest first.
export function chart(label, points, format, kind = "") {
  const last = points.length ? points[points.length - 1][1] : null;
  const span = Math.max(60000, points.length ? points[0][0] : 0);
  const top = ceiling(Math.max(0, ...points.map(([, value]) => value)));
  const place = ([ago, value]) => `${(WIDTH * (1 - ago / span)).toFixed(1)},${(HEIGHT - 2 - (HEIGHT - 8) * value / top).toFixed(1)}`;
  const line = points.map(place).join(" ");
  const begin = points.length ? (WIDTH * (1 - points[0][0] / span)).toFixed(1) : 0;
  return h("figure", { class: `chart ${kind}` },
    h("figcaption", {}, h("span", {}, label), h("strong", {}, last === null ? "measuring" : format(last))),
    h("div", { class: "plot" },
      s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${last === null ? "not measured yet" : format(last)}` },
        [0.25, 0.5, 0.75].map((at) => s("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT * at, y2: HEIGHT * at })),
        s("polygon", { class: "area", points: points.length > 1 ? `${begin},${HEIGHT} ${line} ${WIDTH},${HEIGHT}` : "" }),
        s("polyline", { class: "line", points: points.length > 1 ? line : "" })),
      h("span", { class: "axis max" }, points.length ? format(top) : "\u00a0")),
    h("div", { class: "times" }, h("span", {}, `${Math.round(span / 60000)} min ago`), h("span", {}, "now")));
}

export const recordsChart = (rates, format) => chart("Records written", rates.map(([ago, records]) => [ago, records]), format, "records");
export const bytesChart = (rates, format) => chart("Bytes written", rates.map(([ago, , size]) => [ago, size]), format, "bytes");

// A bar that compares a part with a whole.
export function share(part, whole, text) {
  const width = whole > 0 ? Math.max(0, Math.min(100, 100 * part / whole)) : 0;
  return h("span", { class: "share" },
    s("svg", { viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
      s("rect", { class: "rest", width: 100, height: 6, rx: 3 }), s("rect", { class: "part", width, height: 6, rx: 3 })),
    h("span", {}, text));
}
