// Parallel coordinates: an axis for each parameter and the result, a line for each job. Dragging along an axis keeps the
// lines that pass there.

import { h } from "../dom.js";
import { count, number, text } from "../format.js";
import { button, rove } from "../parts.js";
import { href } from "../route.js";
import { scale } from "../scales.js";

const TOP = 46;
const BASE = 300;
const SIDE = 70;
const STEP = 128;
// Where the lines pass that have no value.
const NONE = BASE + 26;
const CLICK_PX = 4;

export class Parallel {
  // By axis, the part of it that lines must pass: [upper, lower] in the picture.
  #brushes = new Map();
  #axes = null;
  #data = null;
  #query = null;
  #drawn = null;
  #from = null;

  constructor(page) {
    this.page = page;
  }

  /** Hundreds of lines are not described again when nothing about them has changed. */
  draw(data, query) {
    const isOther = this.#data !== data || this.#query !== query;
    if (isOther || !this.#drawn) this.#drawn = this.#lines(data, query, isOther);
    return this.#drawn;
  }

  #lines(data, query, isOther) {
    const jobs = new Set(query.get("jobs")?.split(",") ?? []);
    const hrefOf = (job) => href(query, { job });
    if (isOther) {
      this.#data = data;
      this.#query = query;
      this.rows = jobs.size ? data.rows.filter((row) => jobs.has(row.job)) : data.rows;
      this.#axes = axesOf(data, this.rows);
      for (const name of this.#brushes.keys()) if (!this.#axes.some((axis) => axis.name === name)) this.#brushes.delete(name);
    }
    const axes = this.#axes;
    const width = 2 * SIDE + STEP * (axes.length - 1);
    const kept = this.rows.filter((row) => this.#isKept(row));
    const keptJobs = new Set(kept.map((row) => row.job));
    // What is kept is drawn above what is not.
    const lines = [...this.rows].sort((one, other) => keptJobs.has(one.job) - keptJobs.has(other.job));
    const words = `${number(kept.length)} of ${count(this.rows.length, "line")}`;
    const sampled = data.jobs > data.rows.length ? `${number(data.rows.length)} of the ${count(data.jobs, "job")} with ${data.y} are drawn.` : "";
    return [
      h(
        "div",
        { class: "scroll", tabindex: "0", role: "region", "aria-label": "Lines of jobs" },
        h(
          "svg",
          {
            class: "parallel",
            viewBox: `0 0 ${width} ${this.#height}`,
            vars: { "--natural": `${width}px` },
            role: "group",
            "aria-label": `A line for each job through ${axes.map((axis) => axis.name).join(", ")}. Arrow keys go from job to job`,
            onkeydown: rove,
            onpointerdown: (event) => this.#press(event),
            onpointermove: (event) => this.#drag(event),
            onpointerup: (event) => this.#release(event),
          },
          lines.map((row) => line(row, axes, hrefOf, keptJobs.has(row.job), row === lines.at(-1))),
          axes.map((axis) => this.#axis(axis)),
        ),
      ),
      h(
        "p",
        { class: "quiet" },
        this.#brushes.size ? [words, " ", button("Show all", () => this.#clear())] : ["Drag along an axis to keep the lines that pass there. ", sampled],
      ),
    ];
  }

  get #height() {
    return this.#axes.some((axis) => axis.hasNone) ? NONE + 14 : BASE + 14;
  }

  #isKept(row) {
    return this.#axes.every((axis) => {
      const brush = this.#brushes.get(axis.name);
      const y = axis.of(row);
      return !brush || (y >= brush[0] && y <= brush[1]);
    });
  }

  #axis(axis) {
    const brush = this.#brushes.get(axis.name);
    return h(
      "g",
      { key: `axis ${axis.name}`, class: "axis", "data-axis": axis.name, "aria-hidden": "true" },
      h("line", { x1: axis.x, x2: axis.x, y1: TOP, y2: BASE }),
      axis.ticks.map(([y, name]) => h("text", { key: `${y} ${name}`, x: axis.x + 6, y: Number(y) + 4 }, name)),
      axis.hasNone && h("text", { key: "none", x: axis.x + 6, y: NONE + 4 }, "none"),
      h("text", { key: "name", class: "name", x: axis.x, y: 18, "text-anchor": "middle" }, h("title", {}, axis.name), axis.name.length > 16 ? `${axis.name.slice(0, 15)}…` : axis.name),
      h("rect", { key: "grip", class: "grip", x: axis.x - 16, y: TOP - 12, width: 32, height: this.#height - TOP + 12 }),
      brush && h("rect", { key: "brush", class: "brush", x: axis.x - 7, y: brush[0], width: 14, height: Math.max(2, brush[1] - brush[0]) }),
    );
  }

  #press(event) {
    const name = event.target.closest?.("[data-axis]")?.getAttribute("data-axis");
    if (!name || event.button !== 0) return;
    event.preventDefault();
    event.currentTarget.setPointerCapture(event.pointerId);
    this.#from = { name, y: this.#placeOf(event) };
  }

  #drag(event) {
    if (!this.#from) return;
    const y = this.#placeOf(event);
    if (Math.abs(y - this.#from.y) < CLICK_PX) return;
    this.#brushes.set(this.#from.name, [Math.min(y, this.#from.y), Math.max(y, this.#from.y)]);
    this.#again();
  }

  /** A click without a drag takes the part away. */
  #release(event) {
    if (!this.#from) return;
    if (Math.abs(this.#placeOf(event) - this.#from.y) < CLICK_PX) this.#brushes.delete(this.#from.name);
    this.#from = null;
    this.#again();
  }

  #placeOf(event) {
    const box = event.currentTarget.getBoundingClientRect();
    return ((event.clientY - box.top) / box.height) * this.#height;
  }

  #again() {
    this.#drawn = null;
    this.page.draw();
  }

  #clear() {
    this.#brushes.clear();
    this.#again();
  }
}

/** The parameters, the most important first, and the result at the end. */
function axesOf({ axes, y }, rows) {
  const columns = [...axes.map((name, index) => [name, (row) => row.values[index]]), [y, (row) => row.y]];
  return columns.map(([name, valueOf], index) => {
    const { place, ticks } = scale(rows.map(valueOf), BASE, TOP);
    const of = (row) => place(valueOf(row)) ?? NONE;
    return { name, x: SIDE + STEP * index, ticks, valueOf, of, hasNone: rows.some((row) => place(valueOf(row)) === null) };
  });
}

function line(row, axes, hrefOf, isKept, isLast) {
  const points = axes.map((axis) => `${axis.x} ${axis.of(row).toFixed(1)}`);
  const words = `${row.job}: ${axes.map((axis) => `${axis.name} ${text(axis.valueOf(row))}`).join(", ")}`;
  const result = axes.at(-1).of(row);
  const share = Math.min(1, Math.max(0, (BASE - result) / (BASE - TOP)));
  return h(
    "a",
    { key: row.job, href: hrefOf(row.job), "aria-label": words, tabindex: isLast ? 0 : -1, class: isKept ? "is-kept" : "is-out", vars: { "--share": share.toFixed(3) } },
    h("title", {}, words),
    h("path", { d: `M${points.join("L")}` }),
  );
}
