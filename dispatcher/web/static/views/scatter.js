// A parameter against a result, a point for each job; jobs that lack one of the two are in the margin.

import { h } from "../dom.js";
import { count, number, text } from "../format.js";
import { empty, rove } from "../parts.js";
import { scale } from "../scales.js";

const WIDTH = 900;
// On a phone, so that words can be read.
const NARROW = 420;
const HEIGHT = 340;
const LEFT = 64;
const BOTTOM = 56;
const TOP = 10;
const RIGHT = 14;
// Where those stand that have no x, and those that have no y.
const MARGIN = 22;
// The room of a number below the axis.
const NAME_PX = 44;

export function scatter({ x, y, points, missing }, hrefOf, isNarrow = false) {
  if (!points.length && !missing?.length) return empty("No job to show.");
  const all = [...points, ...(missing ?? [])];
  const width = isNarrow ? NARROW : WIDTH;
  const across = scale(all.map((point) => point.x), LEFT + MARGIN, width - RIGHT, NAME_PX);
  const up = scale(all.map((point) => point.y), HEIGHT - BOTTOM - MARGIN, TOP);
  const at = (point) => [across.place(point.x, point.job) ?? LEFT + MARGIN / 2, up.place(point.y) ?? HEIGHT - BOTTOM - MARGIN / 2];
  const marks = all.map((point, index) => {
    const [left, top] = at(point);
    const isWhole = across.place(point.x) !== null && up.place(point.y) !== null;
    const words = `${point.job}: ${x} ${text(point.x)}, ${y} ${number(point.y)}`;
    const mark = isWhole
      ? h("circle", { cx: left.toFixed(1), cy: top.toFixed(1), r: 4 })
      : h("path", { d: `M${left.toFixed(1)} ${(top - 4).toFixed(1)}l4 7h-8z`, class: "missing" });
    return h("a", { key: point.job, href: hrefOf(point.job), "aria-label": words, tabindex: index === 0 ? 0 : -1 }, h("title", {}, words), mark);
  });
  const words = missing?.length ? `${count(points.length, "job")}; ${count(missing.length, "job")} without ${x} or ${y} in the margin (triangles)` : count(points.length, "job");
  return [
    h(
      "svg",
      { class: "scatter", viewBox: `0 0 ${width} ${HEIGHT}`, role: "group", "aria-label": `${y} by ${x}: ${words}. Arrow keys go from job to job`, onkeydown: rove },
      axes(x, y, across, up, width, missing?.length > 0),
      marks,
    ),
    h("p", { class: "quiet" }, words),
  ];
}

function axes(x, y, across, up, width, hasMissing) {
  const base = HEIGHT - BOTTOM;
  const lines = across.ticks.map(([place, name]) => [
    h("line", { key: `x ${name}`, class: "grid", x1: place, x2: place, y1: TOP, y2: base }),
    h("text", { key: `xt ${name}`, x: place, y: base + 16, "text-anchor": "middle" }, name),
  ]);
  const across2 = up.ticks.map(([place, name]) => [
    h("line", { key: `y ${name}`, class: "grid", x1: LEFT, x2: width - RIGHT, y1: place, y2: place }),
    h("text", { key: `yt ${name}`, x: LEFT - 8, y: place + 4, "text-anchor": "end" }, name),
  ]);
  const margins = hasMissing && [
    h("rect", { key: "no x", class: "margin", x: LEFT, y: TOP, width: MARGIN, height: base - TOP }),
    h("rect", { key: "no y", class: "margin", x: LEFT, y: base - MARGIN, width: width - RIGHT - LEFT, height: MARGIN }),
  ];
  return h(
    "g",
    { class: "axes", "aria-hidden": "true" },
    margins,
    lines,
    across2,
    h("text", { x: (LEFT + width) / 2, y: HEIGHT - 8, "text-anchor": "middle", class: "name" }, x),
    h("text", { x: 14, y: (TOP + base) / 2, "text-anchor": "middle", class: "name", transform: `rotate(-90 14 ${(TOP + base) / 2})` }, y),
  );
}
