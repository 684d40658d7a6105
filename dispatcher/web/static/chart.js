// A line chart by uPlot: bands from minimum to maximum, marks where a value was no number, a logarithmic axis, and a
// crosshair with the values that the pointer, a finger or the arrow keys are at.

import uPlot from "./vendor/uPlot.esm.js";
import { h, render } from "./dom.js";
import { count, duration, number } from "./format.js";
import { STEPS, TIMES, WHOLE } from "./ticks.js";

const HEIGHT = 200;
const COLOURS = 8;
// Lines beyond the colours are told apart by these.
const DASHES = [undefined, [7, 4], [2, 3]];
// So many values beside the crosshair, those that are nearest to the pointer.
const MOST_TOLD = 10;
// A press of an arrow key moves the crosshair by this part of the axis.
const KEY_STEP = 1 / 50;
const FONT = "11px Inter, system-ui, sans-serif";
const charts = new Set();

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.rebuild()));

/** One colour of the scheme that the page is shown in. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";
}

/** A piece of a line as the chart draws it, for a legend. */
export function swatch(index) {
  const dash = dashOf(index)?.map((length) => length * 0.8).join(" ");
  return h("svg", { class: `swatch-line l-${(index % COLOURS) + 1}`, viewBox: "0 0 22 10", "aria-hidden": "true" }, h("line", { x1: 0, x2: 22, y1: 5, y2: 5, "stroke-dasharray": dash }));
}

/**
 * A chart in an element of its own, `element`. `lines`: [{label, x, low, high, middle, nan, isRaw}], arrays of one
 * length each; `nan` are the x where a value was NaN. Without `middle`, the edges of the band are the line; with
 * `isRaw`, they are shown behind it. `hidden` are labels. Charts of one `group` share their crosshair.
 */
export class Chart {
  #plot = null;
  #spec = null;
  #told = document.createElement("div");
  #voice = document.createElement("div");
  #room = document.createElement("div");

  constructor(height = HEIGHT, group = undefined) {
    this.height = height;
    this.group = group;
    this.element = document.createElement("div");
    this.element.className = "chart";
    this.element.tabIndex = 0;
    this.element.setAttribute("role", "group");
    this.#told.className = "told";
    this.#told.hidden = true;
    this.#voice.className = "unseen";
    this.#voice.setAttribute("aria-live", "polite");
    this.element.append(this.#room, this.#told, this.#voice);
    this.element.addEventListener("keydown", (event) => this.#press(event));
    this.element.addEventListener("blur", () => this.#leave());
    this.resizing = new ResizeObserver(() => this.#resize());
    this.resizing.observe(this.element);
    charts.add(this);
  }

  show(spec) {
    const isSame = JSON.stringify(spec) === JSON.stringify(this.#spec);
    if (isSame && this.#plot) return;
    const isAlike = this.#plot && shape(spec) === shape(this.#spec);
    this.#spec = spec;
    const words = `Chart of ${spec.name ?? spec.lines.map((line) => line.label).join(", ")} by ${spec.xLabel}`;
    this.element.setAttribute("aria-label", `${words}. Left and right arrows read its values`);
    if (!isAlike) return this.rebuild();
    // A chart that is zoomed in stays so while values come in.
    this.#plot.setData(table(spec.lines), !this.#isZoomed);
    this.#hide();
  }

  remove() {
    charts.delete(this);
    this.resizing.disconnect();
    this.#plot?.destroy();
    this.#plot = null;
  }

  rebuild() {
    if (!this.#spec) return;
    this.#plot?.destroy();
    this.#plot = new uPlot(this.#options(), table(this.#spec.lines), this.#room);
    const follow = (event) => {
      const box = this.#plot.over.getBoundingClientRect();
      this.#plot.setCursor({ left: event.touches[0].clientX - box.left, top: event.touches[0].clientY - box.top });
    };
    for (const type of ["touchstart", "touchmove"]) this.#plot.over.addEventListener(type, follow, { passive: true });
    this.#hide();
  }

  /** Lines that are hidden do not count for the axis. */
  #hide() {
    const hidden = new Set(this.#spec.hidden);
    this.#spec.lines.forEach((line, index) => {
      for (const series of [1, 2, 3].map((place) => 3 * index + place))
        if (this.#plot.series[series].show === hidden.has(line.label)) this.#plot.setSeries(series, { show: !hidden.has(line.label) });
    });
  }

  #resize() {
    const width = this.element.clientWidth;
    if (this.#plot && width > 0 && width !== this.#plot.width) this.#plot.setSize({ width, height: this.height });
  }

  get #isZoomed() {
    const { min, max } = this.#plot.scales.x;
    const all = this.#plot.data[0];
    return all.length > 1 && (min > all[0] || max < all.at(-1));
  }

  #options() {
    const { lines, isLog, isTime, xLabel } = this.#spec;
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { stroke: colour("--rule"), width: 1, size: 4 }, font: FONT };
    const name = isTime ? shortTime : number;
    const incrs = isTime ? TIMES : lines.every((line) => line.x.every(Number.isInteger)) ? WHOLE : undefined;
    return {
      width: this.element.clientWidth || 400,
      height: this.height,
      padding: [8, 22, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        drag: { x: true, y: false },
        dataIdx: nearestKnown,
        move: snapped,
        points: { show: (plot, series) => pointOf(series), size: 6 },
        sync: this.group ? { key: this.group, setSeries: false } : undefined,
      },
      scales: { x: { time: false }, y: { distr: isLog ? 3 : 1, range: isLog ? logRange : undefined } },
      axes: [
        { ...axis, label: xLabel, labelSize: 16, labelFont: FONT, size: 30, space: isTime ? 76 : 56, ...(incrs && { incrs }), values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : name(tick))) },
        { ...axis, size: 58, incrs: STEPS, values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick, 3))) },
      ],
      series: [{ label: xLabel }, ...lines.flatMap(seriesOf)],
      bands: lines.map((line, index) => ({ series: [3 * index + 2, 3 * index + 1], fill: faint(lineColour(index)) })),
      hooks: { draw: [(plot) => this.#drawMarks(plot)], setCursor: [(plot) => this.#tell(plot)] },
    };
  }

  /** A cross at the lower edge for each NaN: it has no height of its own. */
  #drawMarks(plot) {
    const { ctx, bbox } = plot;
    const size = 3 * devicePixelRatio;
    const { lines, hidden = [] } = this.#spec;
    ctx.save();
    ctx.lineWidth = 1.5 * devicePixelRatio;
    lines.forEach((line, index) => {
      if (hidden.includes(line.label)) return;
      ctx.strokeStyle = lines.length === 1 ? colour("--failed") : lineColour(index);
      ctx.beginPath();
      for (const x of line.nan ?? []) {
        const at = plot.valToPos(x, "x", true);
        if (at < bbox.left || at > bbox.left + bbox.width) continue;
        const y = bbox.top + bbox.height - 2 * size;
        ctx.moveTo(at - size, y - size);
        ctx.lineTo(at + size, y + size);
        ctx.moveTo(at - size, y + size);
        ctx.lineTo(at + size, y - size);
      }
      ctx.stroke();
    });
    ctx.restore();
  }

  #tell(plot) {
    const { left, top, idx } = plot.cursor;
    const isOff = idx === null || idx === undefined || !(left >= 0);
    this.#told.hidden = isOff;
    const x = isOff ? null : plot.data[0][idx];
    this.onCursor?.(x);
    if (isOff) return;
    const { lines, hidden = [], isTime, xLabel } = this.#spec;
    const all = lines.map((line, index) => ({ line, index, value: valueAt(line, x) })).filter(({ line, value }) => value !== null && !hidden.includes(line.label));
    const distance = ({ value }) => Math.abs(plot.valToPos(value.middle, "y") - top);
    const near = [...all].sort((one, other) => distance(one) - distance(other)).slice(0, MOST_TOLD);
    near.sort((one, other) => other.value.middle - one.value.middle);
    const rows = near.map(({ line, index, value }) => h("li", { key: index }, lines.length > 1 && swatch(index), h("span", {}, line.label), h("b", {}, number(value.middle)), h("small", {}, value.low === value.high ? "" : `${number(value.low, 3)} to ${number(value.high, 3)}`)));
    const at = isTime ? duration(x) : `${xLabel} ${number(x, 6)}`;
    render(this.#told, h("p", {}, at), h("ul", {}, rows), all.length > near.length && h("p", { class: "quiet" }, `${count(all.length - near.length, "other")} farther away`), !all.length && h("p", { class: "quiet" }, "no value"));
    const isRight = left > plot.over.clientWidth / 2;
    this.#told.style.setProperty("--at", `${plot.over.offsetLeft + left}px`);
    this.#told.classList.toggle("is-left", isRight);
    if (this.isReadAloud) this.#voice.textContent = `${at}: ${near.map(({ line, value }) => `${line.label} ${number(value.middle)}`).join(", ")}`;
  }

  #press(event) {
    const plot = this.#plot;
    const moves = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
    if (event.key === "Escape") return this.#leave();
    if (!plot || !(event.key in moves) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const { clientWidth: width, clientHeight: height } = plot.over;
    const from = plot.cursor.left >= 0 ? plot.cursor.left : width / 2;
    this.isReadAloud = true;
    const to = Math.min(width, Math.max(0, from + moves[event.key] * width * KEY_STEP));
    // By a value at least, where these are farther apart.
    const index = plot.posToIdx(to) === plot.posToIdx(from) ? plot.posToIdx(from) + Math.sign(moves[event.key]) : null;
    const next = index === null ? to : plot.valToPos(plot.data[0][Math.min(plot.data[0].length - 1, Math.max(0, index))], "x");
    plot.setCursor({ left: next, top: height / 2 });
    this.isReadAloud = false;
  }

  #leave() {
    this.#plot?.setCursor({ left: -10, top: -10 });
  }
}

function shape({ lines, isLog, isTime, xLabel }) {
  return JSON.stringify([lines.map((line) => [line.label, Boolean(line.middle), line.isRaw]), isLog, isTime, xLabel]) + lines.map((line) => (line.nan ?? []).join()).join(";");
}

function seriesOf(line, index) {
  const stroke = lineColour(index);
  const dash = dashOf(index);
  const edge = !line.middle ? { stroke, width: 1, dash } : line.isRaw ? { stroke: faint(stroke), width: 1 } : { stroke: "transparent", width: 0 };
  const points = { show: line.x.length === 1, size: 5, stroke, fill: stroke };
  return [
    { label: `${line.label} min`, ...edge, points: { show: false }, spanGaps: true },
    { label: `${line.label} max`, ...edge, points: line.middle ? { show: false } : points, spanGaps: true },
    { label: line.label, stroke: line.middle ? stroke : "transparent", width: line.middle ? 1.75 : 0, dash, points: line.middle ? points : { show: false }, spanGaps: true },
  ];
}

/** The crosshair moves to the nearest values. */
function snapped(plot, left, top) {
  const index = left >= 0 ? plot.posToIdx(left) : null;
  const x = index === null ? undefined : plot.data[0][index];
  return x === undefined ? [left, top] : [Math.min(plot.over.clientWidth, Math.max(0, plot.valToPos(x, "x"))), top];
}

/** The crosshair has a point on each line: on the nearest value that the line has. */
function nearestKnown(plot, series, index) {
  const values = plot.data[series];
  if (series === 0 || values[index] != null) return index;
  const x = plot.data[0];
  let [before, after] = [index, index];
  while (before >= 0 && values[before] == null) before--;
  while (after < values.length && values[after] == null) after++;
  if (before < 0 || after >= values.length) return null;
  return x[index] - x[before] <= x[after] - x[index] ? before : after;
}

function pointOf(series) {
  if (series % 3 !== 0) return undefined;
  const point = document.createElement("div");
  point.className = `u-cursor-pt l-${((series / 3 - 1) % COLOURS) + 1}`;
  return point;
}

function lineColour(index) {
  return colour(`--line-${(index % COLOURS) + 1}`);
}

function dashOf(index) {
  return DASHES[Math.floor(index / COLOURS) % DASHES.length];
}

function faint(hex) {
  return /^#[0-9a-f]{6}$/i.test(hex) ? `${hex}38` : hex;
}

/** The line at x, as it is drawn; null outside of it. */
export function valueAt({ x, low, high, middle }, at) {
  if (!x.length || at < x[0] || at > x.at(-1)) return null;
  let [from, to] = [0, x.length - 1];
  while (to - from > 1) {
    const half = (from + to) >> 1;
    if (x[half] <= at) from = half;
    else to = half;
  }
  if (x[to] <= at) from = to;
  const share = from === to || x[to] === x[from] ? 0 : (at - x[from]) / (x[to] - x[from]);
  const between = (column) => (column[from] == null || (share > 0 && column[to] == null) ? null : (1 - share) * column[from] + share * (column[to] ?? 0));
  const [least, most] = [between(low), between(high)];
  const value = middle ? between(middle) : least === null ? null : (least + most) / 2;
  return value === null ? null : { middle: value, low: least, high: most };
}

/** One table of all lines, by x; a line has null where it has no value. A NaN has its x, too: it may be beyond the last number. */
export function table(lines) {
  if (!lines.length) return [[]];
  const columns = lines.map((line) => [line.x, line.low, line.high, line.middle ?? line.x.map(() => null)]);
  const marked = lines.filter((line) => line.nan?.length).map((line) => [line.nan, line.nan.map(() => null)]);
  return uPlot.join([...columns, ...marked]).slice(0, 3 * lines.length + 1);
}

function logRange(plot, low, high) {
  return low > 0 && high > 0 && Number.isFinite(high) ? [low / 1.1, high * 1.1] : [0.1, 1];
}

function shortTime(seconds) {
  return seconds === 0 ? "0" : duration(seconds);
}
