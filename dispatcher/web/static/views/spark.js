// A small curve of an hour, a value for each minute; what is not known is a gap.

import { h } from "../dom.js";
import { empty } from "../parts.js";

const WIDTH = 130;
const HEIGHT = 26;

/** `values` from an hour ago to now, between 0 and `most`; `written` makes a value a text, `name` says what it is. */
export function spark(values, most, written, name) {
  const known = (values ?? []).filter((one) => one !== null);
  if (!known.length || !(most > 0)) return empty(values ? "unknown" : "");
  const step = WIDTH / values.length;
  const top = (value) => (HEIGHT - 1 - (Math.min(value, most) / most) * (HEIGHT - 2)).toFixed(1);
  const paths = runsOf(values).map(([from, run]) => {
    const [left, right] = [from, from + run.length].map((place) => (place * step).toFixed(1));
    // A minute is a step, so that one that stands alone is seen, too.
    const line = run.map((value, index) => `${((from + index) * step).toFixed(1)} ${top(value)}H${((from + index + 1) * step).toFixed(1)}`).join("L");
    return [
      h("path", { key: `a${from}`, class: "area", d: `M${left} ${HEIGHT}L${line}L${right} ${HEIGHT}z` }),
      h("path", { key: `l${from}`, class: "line", d: `M${line}` }),
    ];
  });
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const mean = known.reduce((sum, one) => sum + one, 0) / known.length;
  const words = `${name}, last hour: mean ${written(Math.round(mean))}, ${written(low)} to ${written(high)}${known.length < values.length ? `, known for ${known.length} min` : ""}`;
  return h("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words }, h("title", {}, words), paths);
}

/** Where known values stand one after the other: [the place of the first, the values]. */
function runsOf(values) {
  const runs = [];
  values.forEach((value, place) => {
    if (value === null) return;
    const last = runs.at(-1);
    if (last && last[0] + last[1].length === place) last[1].push(value);
    else runs.push([place, [value]]);
  });
  return runs;
}
