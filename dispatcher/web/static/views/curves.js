// The curves of a job's metrics: one small chart each, with the range of values in every pixel.

import { jobPath, Loader } from "../api.js";
import { h } from "../dom.js";
import { bytes, count, named, number } from "../format.js";
import { forLog, lengthOf, smooth } from "../lines.js";
import { choice, empty, problem, section } from "../parts.js";
import { go, same } from "../route.js";
import { smoothingField, smoothingOf } from "./smoothing.js";

const WIDTH_PX = 800;
const SOON_MS = 1_000;

export class Curves {
  #charts = new Map();
  #asked = null;
  #attempt = null;
  #module = null;
  #again = null;

  constructor(page) {
    this.page = page;
    this.loader = new Loader(() => this.#loaded());
  }

  show(job, attempt, query) {
    this.query = query;
    const attemptKey = JSON.stringify([job, attempt]);
    const asked = JSON.stringify([job, attempt, query.get("along")]);
    if (asked !== this.#asked) {
      // Along another axis, what is drawn stays until the other is there.
      if (attemptKey !== this.#attempt) this.loader.data = this.loader.error = null;
      this.#attempt = attemptKey;
      this.#asked = asked;
      this.again();
    } else this.#fill();
  }

  again() {
    if (this.#asked === null) return;
    const [job, attempt, along] = JSON.parse(this.#asked);
    this.loader.load(jobPath(job, "/metrics"), { attempt, x: along, width: WIDTH_PX });
  }

  leave() {
    clearTimeout(this.#again);
    this.loader.stop();
    for (const chart of this.#charts.values()) chart.remove();
    this.#charts.clear();
  }

  get #isLog() {
    return this.query.get("log") === "1";
  }

  async #loaded() {
    const { data } = this.loader;
    if (Object.keys(data?.series ?? {}).length) this.#module ??= await import("../chart.js");
    // A large file is read in parts.
    if (data && data.read < data.bytes && !data.is_cut) this.#again = setTimeout(() => this.again(), SOON_MS);
    this.#fill();
    this.page.draw();
  }

  #fill() {
    const { data } = this.loader;
    if (!data || !this.#module) return;
    const { Chart } = this.#module;
    for (const [name, chart] of this.#charts)
      if (!(name in data.series)) {
        chart.remove();
        this.#charts.delete(name);
      }
    for (const [name, series] of Object.entries(data.series)) {
      if (!this.#charts.has(name)) this.#charts.set(name, new Chart(undefined, "job"));
      const line = smooth({ label: name, x: series.x, low: series.min, high: series.max, nan: series.nan ?? [] }, smoothingOf(this.query), lengthOf([series]));
      const shown = this.#isLog ? forLog(line) : { line, hidden: 0 };
      const chart = this.#charts.get(name);
      chart.hidden = shown.hidden;
      const isTime = data.x_name === "wall_s";
      chart.show({ lines: [shown.line], isLog: this.#isLog, isTime, xLabel: isTime ? "time of training" : data.x_name });
    }
  }

  draw() {
    const { data, error } = this.loader;
    const names = Object.keys(data?.series ?? {});
    if (!names.length) return error ? section("curves", "Curves", null, problem(error)) : null;
    const set = (changes) => go(same(this.query, changes), { replace: true });
    const toggle = () => set({ log: this.#isLog ? null : "1" });
    const along = data.has_times && choice("Along", "along", data.x_name, [["step", "step"], ["wall_s", "time"]], (x) => set({ along: x === "step" ? null : x }));
    const log = h("label", { class: "choice" }, h("input", { type: "checkbox", checked: this.#isLog, onchange: toggle }), "logarithmic");
    const figures = names.map((name) => this.#figure(name, data.series[name]));
    return section("curves", "Curves", h("div", { class: "choices" }, along, smoothingField(this.query, (smooth) => set({ smooth })), log), problem(error), h("div", { class: "curves" }, figures), data.read < data.bytes && empty(data.is_cut ? `only the first ${bytes(data.read)} of ${bytes(data.bytes)} are read` : `${bytes(data.read)} of ${bytes(data.bytes)} read …`), data.left_out.length > 0 && empty(data.left_out.join("; ")));
  }

  #figure(name, series) {
    const chart = this.#charts.get(name);
    const values = series.max.filter((value) => value !== null);
    const last = series.last ? number(series.last.y ?? null) : number(values.at(-1));
    const low = Math.min(...series.min.filter((value) => value !== null));
    const notes = [
      values.length > 0 && `min ${number(low)}, max ${number(Math.max(...values))}`,
      series.nan_count > 0 && h("strong", { class: "warn" }, `× NaN at ${count(series.nan_count, "step")}`),
      chart?.hidden > 0 && `${count(chart.hidden, "value")} ≤ 0 not shown`,
    ].filter(Boolean);
    const caption = h("figcaption", {}, h("b", {}, named(name)), h("span", { class: "value" }, last), h("span", { class: "quiet" }, notes.map((note, n) => [n > 0 && " · ", note])));
    return h("figure", { key: name }, caption, chart?.element);
  }
}
