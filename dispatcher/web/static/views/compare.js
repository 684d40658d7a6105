// Curves over the selected jobs with their mean and spread, and a parameter against a result.

import { Loader } from "../api.js";
import { h } from "../dom.js";
import { count, number } from "../format.js";
import { choice, empty, jobLink, problem, section } from "../parts.js";
import { filtersOf, go, href, same } from "../route.js";
import { scatter } from "./scatter.js";

const WIDTH_PX = 1_000;
const EVERY_MS = 10_000;
const HEIGHT = 340;

export class Compare {
  title = "Compare";
  #asked = {};
  #chart = null;
  #module = null;
  #at = null;
  #timer = null;

  constructor(page) {
    this.page = page;
    this.curves = new Loader(() => this.#loaded());
    this.points = new Loader(() => page.draw());
  }

  show(query) {
    this.query = query;
    this.#ask(this.curves, "api/compare", ["metric", "by"], { width: WIDTH_PX });
    this.#ask(this.points, "api/scatter", ["x", "y"]);
    this.#fill();
  }

  #ask(loader, path, names, more = {}) {
    const params = filtersOf(this.query);
    for (const name of ["jobs", ...names]) if (this.query.get(name) !== null) params.set(name, this.query.get(name));
    for (const [name, value] of Object.entries(more)) params.set(name, value);
    if (this.#asked[path] === params.toString()) return;
    this.#asked[path] = params.toString();
    loader.load(path, params);
  }

  changed({ all, jobs, results }) {
    if (!all && !jobs?.length && !results) return;
    this.#timer ??= setTimeout(() => {
      this.#timer = null;
      this.#asked = {};
      this.show(this.query);
    }, EVERY_MS);
  }

  leave() {
    clearTimeout(this.#timer);
    this.curves.stop();
    this.points.stop();
    this.#chart?.remove();
  }

  async #loaded() {
    if (this.curves.data?.groups?.length) this.#module ??= await import("../chart.js");
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
    const metrics = data.metrics ?? this.page.live.overview?.metrics ?? [];
    const give = (list) => this.#set({ by: [...new Set(list)].filter(Boolean).join(",") || "job" });
    return h(
      "div",
      { class: "choices" },
      choice("Metric", "metric", data.metric ?? "", metrics, (metric) => this.#set({ metric })),
      choice("Group by", "by", by[0] ?? "", [["", "–"], ...this.page.live.keys], (key) => give([key, by[1]])),
      choice("and", "by2", by[1] ?? "", [["", "–"], ...this.page.live.keys], (key) => give([by[0], key])),
      h("label", { class: "choice" }, h("input", { type: "checkbox", checked: isLog, onchange: () => this.#set({ log: isLog ? null : "1" }) }), "logarithmic"),
    );
  }

  #drawCurves() {
    const { data, error } = this.curves;
    if (error) return problem(error);
    if (!data) return empty("…");
    if (!data.groups?.length) return empty("None of these jobs has reported this metric.");
    return [h("div", { class: "compared" }, this.#chart?.element), this.#legend(data), data.cut && h("p", { class: "quiet" }, data.cut)];
  }

  #legend({ groups }) {
    const heading = this.#at ? `at ${number(this.#at.x)}` : "last";
    const rows = groups.map((group, index) => {
      const [low, high, mean] = this.#at?.values[index] ?? [group.low, group.high, group.mean].map((column) => column.findLast((value) => value !== null));
      const address = group.where?.length ? href(this.query, { view: "jobs", where: [...this.query.getAll("where"), ...group.where] }) : null;
      const isJob = group.jobs?.length === 1;
      const name = isJob ? jobLink(this.query, group.jobs[0], group.label) : address ? h("a", { href: address }, group.label) : group.label;
      return h(
        "tr",
        { key: group.label },
        h("th", { scope: "row" }, h("span", { class: `swatch l-${(index % 8) + 1}`, "aria-hidden": "true" }), name),
        h("td", { class: "number" }, number(mean ?? null)),
        h("td", { class: "number quiet" }, low == null || low === high ? "" : `${number(low)} to ${number(high)}`),
        h("td", { class: "number quiet" }, count(group.n, "job"), group.nan?.length > 0 && h("strong", { class: "warn" }, " × NaN")),
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
      choice("Across", "x", data.x ?? "", this.page.live.keys, (x) => this.#set({ x })),
      choice("Up", "y", data.y ?? "", this.page.live.overview?.metrics ?? [], (y) => this.#set({ y })),
    );
  }

  #drawPoints() {
    const { data, error } = this.points;
    if (error) return problem(error);
    if (!data) return empty("…");
    return [scatter(data, (job) => href(this.query, { job })), data.cut && h("p", { class: "quiet" }, data.cut)];
  }
}
