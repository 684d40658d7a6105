// Curves over the selected jobs with their mean and spread, and a parameter against a result.

import { Loader } from "../api.js";
import { h } from "../dom.js";
import { count, number } from "../format.js";
import { button, choice, empty, jobLink, problem, section } from "../parts.js";
import { filtersOf, go, href, same } from "../route.js";
import { STATES, usual } from "../usual.js";
import { scatter } from "./scatter.js";

const WIDTH_PX = 1_000;
const EVERY_MS = 10_000;
const SOON_MS = 1_000;
// The key that every job has its own value of.
const JOB = "job_id";
const HEIGHT = 340;

export class Compare {
  title = "Compare";
  #asked = {};
  #chart = null;
  #module = null;
  #at = null;
  #timer = null;
  #drawn = null;

  constructor(page) {
    this.page = page;
    this.curves = new Loader(() => this.#loaded());
    this.points = new Loader(() => page.draw());
  }

  show(query) {
    this.query = query;
    const { overview } = this.page.live;
    if (!overview) return;
    const { rows, columns, value } = usual(overview);
    const jobs = query.get("jobs");
    // Without a metric, the answer tells which there are.
    const metric = query.get("metric") ?? this.curves.data?.names?.[0];
    this.#ask(this.curves, "api/compare", { jobs, metric, by: query.get("by") ?? (jobs ? JOB : columns || rows), width: WIDTH_PX });
    const y = query.get("y") ?? (value === STATES ? null : value);
    if (y) this.#ask(this.points, "api/scatter", { x: query.get("x") ?? rows, y });
    this.#fill();
  }

  #ask(loader, path, settings) {
    const params = filtersOf(this.query);
    for (const [name, value] of Object.entries(settings)) if (value) params.set(name, value);
    if (this.#asked[path] === params.toString()) return;
    this.#asked[path] = params.toString();
    loader.load(path, params);
  }

  changed({ all, jobs, results }) {
    if (!this.#asked["api/compare"]) this.show(this.query);
    else if (all || jobs?.length || results) this.#again(EVERY_MS);
  }

  #again(after) {
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.#asked = {};
      this.show(this.query);
    }, after);
  }

  leave() {
    clearTimeout(this.#timer);
    this.curves.stop();
    this.points.stop();
    this.#chart?.remove();
  }

  async #loaded() {
    const { data } = this.curves;
    if (data?.groups.length) this.#module ??= await import("../chart.js");
    if (data && !data.metric && data.names.length) this.show(this.query);
    // Files that are long, or many, are read in parts.
    if (data?.pending) this.#again(SOON_MS);
    this.#fill();
    this.page.draw();
  }

  #fill() {
    const groups = this.curves.data?.groups;
    if (!groups?.length || !this.#module) return;
    if (!this.#chart) {
      this.#chart = new this.#module.Chart(HEIGHT);
      this.#chart.onCursor = (at) => {
        this.#at = at;
        this.page.draw();
      };
    }
    const isLog = this.query.get("log") === "1";
    const lines = groups.map(({ label, x, mean, low, high, nan }) => {
      const line = { label, x, low, high, middle: mean, nan: nan ?? [] };
      return isLog ? this.#module.forLog(line).line : line;
    });
    this.#chart.show({ lines, isLog, xLabel: this.curves.data.x_name ?? "step" });
  }

  draw() {
    return [section("compared", "Curves", this.#choices(), this.#drawCurves()), section("scatter", "Parameter against result", this.#axes(), this.#drawPoints())];
  }

  #set(changes) {
    go(same(this.query, changes), { replace: true });
  }

  #choices() {
    const { data } = this.curves;
    if (!data) return null;
    const by = data.by ?? [];
    const isLog = this.query.get("log") === "1";
    const give = (list) => this.#set({ by: [...new Set(list)].filter(Boolean).join(",") });
    const keys = [["", "–"], [JOB, "each job"], ...this.page.live.keys];
    return h(
      "div",
      { class: "choices" },
      choice("Metric", "metric", data.metric ?? "", data.names, (metric) => this.#set({ metric })),
      choice("Group by", "by", by[0] ?? "", keys, (key) => give([key, by[1]])),
      choice("and", "by2", by[1] ?? "", keys, (key) => give([by[0], key])),
      h("label", { class: "choice" }, h("input", { type: "checkbox", checked: isLog, onchange: () => this.#set({ log: isLog ? null : "1" }) }), "logarithmic"),
    );
  }

  #drawCurves() {
    const { data, error } = this.curves;
    if (error) return [problem(error), this.query.get("metric") && button("Another metric", () => this.#set({ metric: null }))];
    if (!data) return empty("Reading the workspace …");
    if (!data.groups.length) return empty(data.pending ? "Being read …" : "None of these jobs has logged metrics (metrics.jsonl).");
    return [h("div", { class: "compared" }, this.#chart?.element), this.#legend(data), h("p", { class: "quiet" }, notes(data))];
  }

  #legend({ groups }) {
    const heading = this.#at ? `at ${number(this.#at.x)}` : "last";
    const rows = groups.map((group, index) => {
      const [low, high, mean] = this.#at?.values[index] ?? [group.low, group.high, group.mean].map((column) => column.findLast((value) => value !== null));
      const label = group.label || "all of them";
      // Of jobs of different lengths, fewer are in the mean at the end.
      const counted = group.counts[this.#at ? group.x.indexOf(this.#at.x) : group.x.length - 1] ?? 0;
      const jobs = counted === group.n ? count(group.n, "job") : `${counted} of ${count(group.n, "job")}`;
      const name = group.n === 1 ? jobLink(this.query, group.jobs[0], label) : label;
      return h(
        "tr",
        { key: label },
        h("th", { scope: "row" }, h("span", { class: `swatch l-${(index % 8) + 1}`, "aria-hidden": "true" }), name),
        h("td", { class: "number" }, number(mean ?? null)),
        h("td", { class: "number quiet" }, low == null || low === high ? "" : `${number(low)} to ${number(high)}`),
        h("td", { class: "number quiet" }, jobs, group.nan?.length > 0 && h("strong", { class: "warn" }, " × NaN")),
      );
    });
    const head = ["", heading, "spread", ""].map((word, n) => h("th", { key: n, class: "number" }, word));
    return h("div", { class: "scroll" }, h("table", { class: "groups" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
  }

  #axes() {
    const { data } = this.points;
    if (!data) return null;
    return h(
      "div",
      { class: "choices" },
      choice("Across", "x", data.x ?? "", [...this.page.live.keys, ...(this.page.live.overview?.metrics ?? [])], (x) => this.#set({ x })),
      choice("Up", "y", data.y ?? "", this.page.live.overview?.metrics ?? [], (y) => this.#set({ y })),
    );
  }

  #drawPoints() {
    const { data, error } = this.points;
    if (error) return problem(error);
    if (!data) return empty(this.page.live.overview?.metrics?.length ? "…" : "No job has a result yet.");
    const chosen = new Set(this.query.get("jobs")?.split(",") ?? []);
    const among = (points) => (chosen.size ? points.filter((point) => chosen.has(point.job)) : points);
    const shown = { ...data, points: among(data.points), missing: among(data.missing) };
    const pending = data.results_pending > 0 && `The results of ${count(data.results_pending, "job")} are still being read.`;
    // Thousands of points are not described again when the pointer moves over the curves.
    const key = [data, this.query];
    if (!this.#drawn?.key.every((one, index) => one === key[index])) this.#drawn = { key, points: scatter(shown, (job) => href(this.query, { job })) };
    return [this.#drawn.points, h("p", { class: "quiet" }, [data.cut, pending].filter(Boolean).join(" "))];
  }
}

function notes({ cut, without, not_run: waiting, pending }) {
  const words = [
    cut,
    without > 0 && `${count(without, "job")} without this metric`,
    waiting > 0 && `${count(waiting, "job")} that ${waiting === 1 ? "has" : "have"} not run`,
    pending > 0 && `${count(pending, "file")} not yet read to the end`,
  ];
  return words.filter(Boolean).join("; ");
}
