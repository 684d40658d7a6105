// A line chart by uPlot: bands from minimum to maximum, marks where a value was no number, a logarithmic axis.

import uPlot from "./vendor/uPlot.esm.js";
import { number } from "./format.js";

const HEIGHT = 200;
const COLOURS = 8;
const charts = new Set();

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.rebuild()));

/** One colour of the scheme that the page is shown in. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "#888";
}

/**
 * A chart in an element of its own, `element`. `lines`: [{label, x, low, high, middle, nan, dash}], arrays of one
 * length each; `nan` are the x where a value was NaN. Without `middle`, the edges of the band are the line.
 */
export class Chart {
  #plot = null;
  #spec = null;

  constructor(height = HEIGHT) {
    this.height = height;
    this.element = document.createElement("div");
    this.element.className = "chart";
    this.resizing = new ResizeObserver(() => this.#resize());
    this.resizing.observe(this.element);
    charts.add(this);
  }

  show(spec) {
    const isSame = JSON.stringify(spec) === JSON.stringify(this.#spec);
    if (isSame && this.#plot) return;
    const isAlike = this.#plot && shape(spec) === shape(this.#spec);
    this.#spec = spec;
    if (isAlike) this.#plot.setData(table(spec.lines));
    else this.rebuild();
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
    this.#plot = new uPlot(this.#options(), table(this.#spec.lines), this.element);
  }

  #resize() {
    const width = this.element.clientWidth;
    if (this.#plot && width > 0 && width !== this.#plot.width) this.#plot.setSize({ width, height: this.height });
  }

  #options() {
    const { lines, isLog, xLabel } = this.#spec;
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--rule"), width: 1 }, ticks: { stroke: colour("--rule"), width: 1, size: 4 }, font: "11px Inter, system-ui, sans-serif" };
    return {
      width: this.element.clientWidth || 400,
      height: this.height,
      padding: [8, 22, 0, 0],
      legend: { show: false },
      cursor: { points: { show: false }, drag: { x: true, y: false } },
      scales: { x: { time: false }, y: { distr: isLog ? 3 : 1, range: isLog ? logRange : undefined } },
      axes: [
        { ...axis, label: xLabel, labelSize: 16, labelFont: axis.font, size: 30, values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick))) },
        { ...axis, size: 58, values: (plot, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick, 3))) },
      ],
      series: [{ label: xLabel }, ...lines.flatMap((line, index) => seriesOf(line, index))],
      bands: lines.map((line, index) => ({ series: [3 * index + 2, 3 * index + 1], fill: faint(lineColour(index)) })),
      hooks: { draw: [(plot) => this.#drawMarks(plot)], setCursor: [(plot) => this.#tell(plot)] },
    };
  }

  /** A cross at the lower edge for each NaN: it has no height of its own. */
  #drawMarks(plot) {
    const { ctx, bbox } = plot;
    const size = 3 * devicePixelRatio;
    ctx.save();
    ctx.lineWidth = 1.5 * devicePixelRatio;
    this.#spec.lines.forEach((line, index) => {
      ctx.strokeStyle = this.#spec.lines.length === 1 ? colour("--failed") : lineColour(index);
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
    const { onCursor } = this;
    if (!onCursor) return;
    const index = plot.cursor.idx;
    if (index === null || index === undefined) return onCursor(null);
    const values = this.#spec.lines.map((line, n) => plot.data.slice(3 * n + 1, 3 * n + 4).map((column) => column[index]));
    onCursor({ x: plot.data[0][index], values });
  }
}

function shape({ lines, isLog, xLabel }) {
  return JSON.stringify([lines.map((line) => line.label), isLog, xLabel]) + lines.map((line) => (line.nan ?? []).join()).join(";");
}

function seriesOf(line, index) {
  const stroke = lineColour(index);
  const edge = line.middle ? { stroke: "transparent", width: 0 } : { stroke, width: 1 };
  const points = { show: line.x.length === 1, size: 5, stroke, fill: stroke };
  return [
    { label: `${line.label} min`, ...edge, points: { show: false }, spanGaps: true },
    { label: `${line.label} max`, ...edge, points: line.middle ? { show: false } : points, spanGaps: true },
    { label: line.label, stroke: line.middle ? stroke : "transparent", width: line.middle ? 1.75 : 0, dash: line.dash, points: line.middle ? points : { show: false }, spanGaps: true },
  ];
}

function lineColour(index) {
  return colour(`--line-${(index % COLOURS) + 1}`);
}

function faint(hex) {
  return /^#[0-9a-f]{6}$/i.test(hex) ? `${hex}38` : hex;
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

/** Without what a logarithmic axis cannot show; and how many values that were. */
export function forLog(line) {
  const positive = (column) => column?.map((value) => (value > 0 ? value : null));
  const hidden = line.high.filter((value, index) => value !== null && !(line.low[index] > 0)).length;
  return { line: { ...line, low: positive(line.low), high: positive(line.high), middle: positive(line.middle) }, hidden };
}
