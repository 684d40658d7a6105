// Places values on an axis: numbers by size, or by magnitude where they span more than a decade; others by name. Pure.

import { number, text } from "./format.js";

const TICKS = 5;
// Positive values that span more than this are placed by magnitude.
const LOG_FROM = 20;
// How far points of a category are spread, of its room.
const SPREAD = 0.28;
const MOST_NAMES = 30;
// Of so few numbers each has a tick.
const MOST_VALUES = 8;

/** `place(value, job)` is between two ends, null where there is no value; `ticks` are [place, name], `gap` apart at least. */
export function scale(values, from, to, gap = 14) {
  const given = values.filter((value) => value !== null && value !== undefined);
  if (!given.every((value) => typeof value === "number")) return categories(given, from, to);
  const finite = given.filter(Number.isFinite);
  if (!finite.length) return { place: () => null, ticks: [] };
  const low = Math.min(...finite);
  const high = Math.max(...finite);
  const isLog = low > 0 && high / low >= LOG_FROM;
  const size = isLog ? Math.log10 : (value) => value;
  const [least, most] = padded(size(low), size(high));
  const place = (value) => (Number.isFinite(value) ? from + share(size(value), least, most) * (to - from) : null);
  const different = [...new Set(finite)].sort((one, other) => one - other);
  const marks = different.length <= MOST_VALUES ? apart(different, place, gap) : isLog ? decades(low, high) : steps(least, most);
  return { place, ticks: marks.map((value) => [place(value).toFixed(1), number(value, 3)]) };
}

/** Where a value is between two others, 0 to 1. In halves: the difference of large numbers is beyond all numbers. */
export function share(value, low, high) {
  return (value / 2 - low / 2) / (high / 2 - low / 2);
}

/** Of these values those that have room for their names. */
function apart(values, place, gap) {
  const kept = [];
  for (const value of values) if (!kept.length || Math.abs(place(value) - place(kept.at(-1))) >= gap) kept.push(value);
  return kept;
}

function categories(values, from, to) {
  const names = [...new Set(values.map(text))].sort();
  const places = new Map(names.map((name, index) => [name, from + ((index + 0.5) / names.length) * (to - from)]));
  const room = (SPREAD * Math.abs(to - from)) / names.length;
  const isKnown = (value) => value !== null && value !== undefined && places.has(text(value));
  const place = (value, job = "") => (isKnown(value) ? places.get(text(value)) + room * noise(job) : null);
  return { place, ticks: names.slice(0, MOST_NAMES).map((name) => [places.get(name).toFixed(1), name.length > 14 ? `${name.slice(0, 13)}…` : name]) };
}

/** Between -1 and 1, for one text always the same: points of one category lie beside each other. */
function noise(words) {
  let sum = 0;
  for (const letter of words) sum = (Math.imul(sum, 31) + letter.codePointAt(0)) | 0;
  return words === "" ? 0 : ((Math.imul(sum ^ (sum >>> 15), 0x2c1b3c6d) >>> 8) & 0xffff) / 0x8000 - 1;
}

function padded(low, high) {
  const room = high > low ? high * 0.05 - low * 0.05 : Math.abs(low) * 0.1 || 1;
  return [Math.max(-Number.MAX_VALUE, low - room), Math.min(Number.MAX_VALUE, high + room)];
}

function steps(low, high) {
  const rough = high / TICKS - low / TICKS;
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
