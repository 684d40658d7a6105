// A parameter against a result, a point for each job; jobs that lack one of the two stand in the margin.

import { h } from "../dom.js";
import { count, number, text } from "../format.js";
import { empty } from "../parts.js";

const WIDTH = 900;
const HEIGHT = 340;
const LEFT = 64;
const BOTTOM = 56;
const TOP = 10;
const RIGHT = 14;
// Where those stand that have no x, and those that have no y.
const MARGIN = 22;
const TICKS = 5;
// Positive values that span more than this are placed by magnitude.
const LOG_FROM = 20;
// How far points of a category are spread, of its room.
const SPREAD = 0.28;

export function scatter({ x, y, points, missing }, hrefOf) {
  if (!points.length && !missing?.length) return empty("No job to show.");
  const all = [...points, ...(missing ?? [])];
  const across = scale(all.map((point) => point.x), LEFT + MARGIN, WIDTH - RIGHT);
  const up = scale(all.map((point) => point.y), HEIGHT - BOTTOM - MARGIN, TOP);
  const at = (point) => [across.place(point.x, point.job) ?? LEFT + MARGIN / 2, up.place(point.y) ?? HEIGHT - BOTTOM - MARGIN / 2];
  const marks = all.map((point) => {
    const [left, top] = at(point);
    const isWhole = across.place(point.x) !== null && up.place(point.y) !== null;
    const words = `${point.job}: ${x} ${text(point.x)}, ${y} ${number(point.y)}`;
    const mark = isWhole
      ? h("circle", { cx: left.toFixed(1), cy: top.toFixed(1), r: 4 })
      : h("path", { d: `M${left.toFixed(1)} ${(top - 4).toFixed(1)}l4 7h-8z`, class: "missing" });
    return h("a", { key: point.job, href: hrefOf(point.job), "aria-label": words }, h("title", {}, words), mark);
  });
  const words = missing?.length ? `${count(points.length, "job")}; ${count(missing.length, "job")} without ${x} or ${y} in the margin (triangles)` : count(points.length, "job");
  return [
    h(
      "svg",
      { class: "scatter", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "group", "aria-label": `${y} by ${x}: ${words}` },
      axes(x, y, across, up, missing?.length > 0),
      marks,
    ),
    h("p", { class: "quiet" }, words),
  ];
}

function axes(x, y, across, up, hasMissing) {
  const base = HEIGHT - BOTTOM;
  const lines = across.ticks.map(([place, name]) => [
    h("line", { key: `x ${name}`, class: "grid", x1: place, x2: place, y1: TOP, y2: base }),
    h("text", { key: `xt ${name}`, x: place, y: base + 16, "text-anchor": "middle" }, name),
  ]);
  const across2 = up.ticks.map(([place, name]) => [
    h("line", { key: `y ${name}`, class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: place, y2: place }),
    h("text", { key: `yt ${name}`, x: LEFT - 8, y: place + 4, "text-anchor": "end" }, name),
  ]);
  const margins = hasMissing && [
    h("rect", { key: "no x", class: "margin", x: LEFT, y: TOP, width: MARGIN, height: base - TOP }),
    h("rect", { key: "no y", class: "margin", x: LEFT, y: base - MARGIN, width: WIDTH - RIGHT - LEFT, height: MARGIN }),
  ];
  return h(
    "g",
    { class: "axes", "aria-hidden": "true" },
    margins,
    lines,
    across2,
    h("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 8, "text-anchor": "middle", class: "name" }, x),
    h("text", { x: 14, y: (TOP + base) / 2, "text-anchor": "middle", class: "name", transform: `rotate(-90 14 ${(TOP + base) / 2})` }, y),
  );
}

/** Places values between two ends: numbers by size (by magnitude where they span more than a decade), others by name. */
function scale(values, from, to) {
  const given = values.filter((value) => value !== null && value !== undefined);
  if (!given.every((value) => typeof value === "number")) return categories(given, from, to);
  const finite = given.filter(Number.isFinite);
  if (!finite.length) return { place: () => null, ticks: [] };
  const low = Math.min(...finite);
  const high = Math.max(...finite);
  const isLog = low > 0 && high / low >= LOG_FROM;
  const size = isLog ? Math.log10 : (value) => value;
  const [least, most] = padded(size(low), size(high));
  const place = (value) => (Number.isFinite(value) ? from + ((size(value) - least) / (most - least)) * (to - from) : null);
  const marks = isLog ? decades(low, high) : steps(least, most);
  return { place, ticks: marks.map((value) => [place(value).toFixed(1), number(value, 3)]) };
}

function categories(values, from, to) {
  const names = [...new Set(values.map(text))].sort();
  const places = new Map(names.map((name, index) => [name, from + ((index + 0.5) / names.length) * (to - from)]));
  const room = (SPREAD * Math.abs(to - from)) / names.length;
  const isKnown = (value) => value !== null && value !== undefined && places.has(text(value));
  const place = (value, job = "") => (isKnown(value) ? places.get(text(value)) + room * noise(job) : null);
  return { place, ticks: names.slice(0, 30).map((name) => [places.get(name).toFixed(1), name.length > 14 ? `${name.slice(0, 13)}…` : name]) };
}

/** Between -1 and 1, for one text always the same: points of one category lie beside each other. */
function noise(words) {
  let sum = 0;
  for (const letter of words) sum = (Math.imul(sum, 31) + letter.codePointAt(0)) | 0;
  return words === "" ? 0 : ((Math.imul(sum ^ (sum >>> 15), 0x2c1b3c6d) >>> 8) & 0xffff) / 0x8000 - 1;
}

function padded(low, high) {
  const room = high > low ? (high - low) * 0.05 : Math.abs(low) * 0.1 || 1;
  return [low - room, high + room];
}

function steps(low, high) {
  const rough = (high - low) / TICKS;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= rough);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high; n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}

function decades(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    const value = 10 ** power;
    if (value >= low / 1.5 && value <= high * 1.5) found.push(value);
  }
  return found;
}
