// Curves over the selected jobs with their mean and spread, by group; below them, parameters and a result.

import { Loader } from "../api.js";
import { h } from "../dom.js";
import { count, number } from "../format.js";
import { forLog, lengthOf, smooth } from "../lines.js";
import { button, choice, empty, jobLink, problem, section } from "../parts.js";
import { filtersOf, go, same } from "../route.js";
import { usual } from "../usual.js";
import { Parameters } from "./parameters.js";
import { smoothingField, smoothingOf } from "./smoothing.js";

const WIDTH_PX = 1_000;
const EVERY_MS = 10_000;
const SOON_MS = 1_000;
// The key that every job has its own value of.
const JOB = "job_id";
const HEIGHT = 340;
const TIME = "wall_s";
// As many as the server gives at once.
const MOST_GROUPS = 24;

export class Compare {
  title = "Compare";
  #asked = null;
  #chart = null;
  #module = null;
  #at = null;
  #timer = null;

  constructor(page) {
    this.page = page;
    this.curves = new Loader(() => this.#loaded());
    this.parameters = new Parameters(page);
  }

  show(query) {
    this.query = query;
    const { overview } = this.page.live;
    if (!overview) return;
    const { rows, columns } = usual(overview);
    const jobs = query.get("jobs");
    const params = filtersOf(query);
    // Without a metric, the answer tells which there are.
    const metric = query.get("metric") ?? this.curves.data?.names?.[0];
    const settings = { jobs, metric, by: query.get("by") ?? (jobs ? JOB : columns || rows), x: query.get("along"), from: query.get("from"), width: WIDTH_PX };
    for (const [name, value] of Object.entries(settings)) if (value) params.set(name, value);
    if (this.#asked !== params.toString()) {
      this.#asked = params.toString();
      this.curves.load("api/compare", params);
    }
    this.parameters.show(query);
    this.#fill();
  }

  changed({ all, jobs, results }) {
    if (!this.#asked) this.show(this.query);
    else if (all || jobs?.length || results) this.#again(EVERY_MS);
  }

  #again(after) {
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.#asked = null;
      this.parameters.again();
      this.show(this.query);
    }, after);
  }

  leave() {
    clearTimeout(this.#timer);
    this.curves.stop();
    this.parameters.leave();
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
    const { data } = this.curves;
    if (!data?.groups.length || !this.#module) return;
    if (!this.#chart) {
      this.#chart = new this.#module.Chart(HEIGHT);
      this.#chart.onCursor = (at) => {
        this.#at = at;
        this.page.draw();
      };
    }
    const isLog = this.query.get("log") === "1";
    const [length, smoothing] = [lengthOf(data.groups), smoothingOf(this.query)];
    const lines = data.groups.map(({ label, x, mean, low, high, nan }) => {
      const line = smooth({ label: label || "all of them", x, low, high, middle: mean, nan: nan ?? [] }, smoothing, length);
      return isLog ? forLog(line).line : line;
    });
    const isTime = data.x_name === TIME;
    this.#chart.show({ lines, isLog, isTime, xLabel: isTime ? "time of training" : data.x_name, name: data.metric, hidden: this.query.getAll("hide") });
  }

  draw() {
    return [section("compared", "Curves", this.#choices(), this.#drawCurves()), this.parameters.draw()];
  }

  #set(changes) {
    go(same(this.query, changes), { replace: true });
  }

  #choices() {
    const { data } = this.curves;
    if (!data) return null;
    const by = data.by ?? [];
    const isLog = this.query.get("log") === "1";
    const give = (list) => this.#set({ by: [...new Set(list)].filter(Boolean).join(","), from: null, hide: null });
    const keys = [["", "–"], [JOB, "each job"], ...this.page.live.keys];
    return h(
      "div",
      { class: "choices" },
      choice("Metric", "metric", data.metric ?? "", data.names, (metric) => this.#set({ metric })),
      choice("Group by", "by", by[0] ?? "", keys, (key) => give([key, by[1]])),
      choice("and", "by2", by[1] ?? "", keys, (key) => give([by[0], key])),
      choice("Along", "along", data.x_name, [["step", "step"], [TIME, "time"]], (along) => this.#set({ along: along === TIME ? along : null })),
      smoothingField(this.query, (smooth) => this.#set({ smooth })),
      h("label", { class: "choice" }, h("input", { type: "checkbox", checked: isLog, onchange: () => this.#set({ log: isLog ? null : "1" }) }), "logarithmic"),
    );
  }

  #drawCurves() {
    const { data, error } = this.curves;
    if (error) return [problem(error), this.query.get("metric") && button("Another metric", () => this.#set({ metric: null }))];
    if (!data) return empty("Reading the workspace …");
    if (!data.groups.length) return [empty(data.pending ? "Being read …" : data.x_name === TIME && data.cut ? "None of these jobs has logged times (wall_s)." : "None of these jobs has logged metrics (metrics.jsonl)."), h("p", { class: "quiet" }, notes(data))];
    return [
      h("div", { class: "with-legend" }, h("div", { class: "compared" }, this.#chart?.element), h("div", {}, this.#legend(data), this.#pages(data))),
      h("p", { class: "quiet" }, notes(data)),
    ];
  }

  #legend({ groups, x_name: along }) {
    const hidden = this.query.getAll("hide");
    const heading = this.#at === null ? "last" : along === TIME ? "at the crosshair" : `at ${number(this.#at, 6)}`;
    const rows = groups.map((group, index) => this.#row(group, index, hidden, groups));
    const head = ["", heading, "spread", "jobs", ""].map((word, n) => (word ? h("th", { key: n, scope: "col", class: "number" }, word) : h("td", { key: n })));
    const all = hidden.length > 0 && button("Show all lines", () => this.#set({ hide: null }), { class: "more" });
    return [h("div", { class: "scroll tall", tabindex: "0", role: "region", "aria-label": "Lines" }, h("table", { class: "groups" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows))), all];
  }

  #row(group, index, hidden, groups) {
    const label = group.label || "all of them";
    const isHidden = hidden.includes(label);
    const line = { x: group.x, low: group.low, high: group.high, middle: group.mean };
    const at = this.#at ?? group.x.at(-1);
    const value = this.#module?.valueAt(line, at) ?? null;
    // Of jobs of different lengths, fewer are in the mean at the end.
    const counted = value === null ? 0 : (group.counts[Math.max(0, group.x.findLastIndex((one) => one <= at))] ?? 0);
    const jobs = counted === group.of ? number(group.of) : `${number(counted)} of ${number(group.of)}`;
    const others = groups.map((one) => one.label || "all of them").filter((one) => one !== label);
    const toggle = () => this.#set({ hide: isHidden ? hidden.filter((one) => one !== label) : [...hidden, label] });
    return h(
      "tr",
      { key: label, class: isHidden && "is-hidden" },
      h("th", { scope: "row" }, h("button", { type: "button", class: "shows", "aria-pressed": String(!isHidden), title: isHidden ? "Show this line" : "Hide this line", onclick: toggle }, this.#module?.swatch(index), label)),
      h("td", { class: "number" }, number(value?.middle ?? null)),
      h("td", { class: "number quiet" }, value === null || value.low === value.high ? "" : `${number(value.low)} to ${number(value.high)}`),
      h("td", { class: "number quiet" }, jobs, group.nan?.length > 0 && h("strong", { class: "warn" }, " × NaN")),
      h("td", {}, groups.length > 1 && button("only", () => this.#set({ hide: others }), { class: "only", "aria-label": `Only ${label}` }), group.n === 1 && jobLink(this.query, group.jobs[0], "open")),
    );
  }

  /** Groups come so many at a time as can be told apart. */
  #pages({ first, at_once: shown, total_groups: total }) {
    if (shown >= total) return null;
    const from = (place) => this.#set({ from: place > 0 ? String(place) : null, hide: null });
    return h(
      "div",
      { class: "buttons pages" },
      h("span", { class: "quiet" }, `Groups ${number(first + 1)} to ${number(first + shown)} of ${number(total)}`),
      first > 0 && button("Previous", () => from(Math.max(0, first - MOST_GROUPS))),
      first + shown < total && button("Next", () => from(first + shown)),
    );
  }
}

function notes({ cut, absent, without, not_run: waiting, pending }) {
  const words = [
    cut,
    absent.length > 0 && `no job of ${absent.slice(0, 5).join("; ")}${absent.length > 5 ? ` and ${absent.length - 5} other groups` : ""} has this metric`,
    without > 0 && `${count(without, "job")} without this metric`,
    waiting > 0 && `${count(waiting, "job")} that ${waiting === 1 ? "has" : "have"} not run`,
    pending > 0 && `${count(pending, "file")} not yet read to the end`,
  ];
  return words.filter(Boolean).join("; ");
}
