// Parameters and a result: one parameter against it, how much of it each parameter explains, and all of them together.

import { Loader } from "../api.js";
import { h } from "../dom.js";
import { count, number, percent } from "../format.js";
import { bar, button, choice, empty, problem, section } from "../parts.js";
import { filtersOf, go, href, same } from "../route.js";
import { STATES, usual } from "../usual.js";
import { Parallel } from "./parallel.js";
import { scatter } from "./scatter.js";

const MOST_ROWS = 12;
// With fewer jobs, chance explains much.
const FEW_JOBS = 20;
// A weaker rank correlation shows no direction.
const WEAK = 0.2;
const NARROW_PX = 700;

export class Parameters {
  #asked = {};
  #drawn = null;

  constructor(page) {
    this.page = page;
    this.points = new Loader(() => page.draw());
    this.all = new Loader(() => page.draw());
    this.parallel = new Parallel(page);
  }

  show(query) {
    this.query = query;
    const { overview } = this.page.live;
    if (!overview) return;
    const { rows, value } = usual(overview);
    const y = query.get("y") ?? (value === STATES ? null : value);
    if (!y) return;
    this.#ask(this.points, "api/scatter", { x: query.get("x") ?? rows, y });
    this.#ask(this.all, "api/parameters", { y });
  }

  again() {
    this.#asked = {};
  }

  leave() {
    this.points.stop();
    this.all.stop();
  }

  #ask(loader, path, settings) {
    const params = filtersOf(this.query);
    for (const [name, value] of Object.entries(settings)) params.set(name, value);
    if (this.#asked[path] === params.toString()) return;
    this.#asked[path] = params.toString();
    loader.load(path, params);
  }

  draw() {
    return [
      section("scatter", "Parameters and a result", this.#axes(), this.#drawPoints()),
      this.all.data?.rows.length > 0 && section("parallel", "All parameters together", null, this.parallel.draw(this.all.data, this.query)),
    ];
  }

  #set(changes) {
    go(same(this.query, changes), { replace: true });
  }

  #axes() {
    const { data } = this.points;
    if (!data) return null;
    const metrics = this.page.live.overview?.metrics ?? [];
    return h(
      "div",
      { class: "choices" },
      choice("Parameter", "x", data.x ?? "", [...new Set([...this.page.live.keys, ...metrics])], (x) => this.#set({ x })),
      choice("Result", "y", data.y ?? "", metrics, (y) => this.#set({ y })),
    );
  }

  #drawPoints() {
    const { data, error } = this.points;
    if (error) return problem(error);
    if (!data) return empty(this.page.live.overview?.metrics?.length ? "…" : "No job has a result yet.");
    const chosen = new Set(this.query.get("jobs")?.split(",") ?? []);
    const among = (points) => (chosen.size ? points.filter((point) => chosen.has(point.job)) : points);
    const pending = data.results_pending > 0 && `The results of ${count(data.results_pending, "job")} are still being read.`;
    // Thousands of points are not described again when the pointer moves over the curves.
    const isNarrow = document.documentElement.clientWidth < NARROW_PX;
    const key = [data, this.query, isNarrow];
    const shown = { ...data, points: among(data.points), missing: among(data.missing) };
    if (!this.#drawn?.key.every((one, index) => one === key[index])) this.#drawn = { key, points: scatter(shown, (job) => href(this.query, { job }), isNarrow) };
    return h(
      "div",
      { class: "with-importance" },
      h("div", {}, this.#drawn.points, h("p", { class: "quiet" }, [data.cut, pending].filter(Boolean).join(" "))),
      h("div", {}, this.#importance()),
    );
  }

  #importance() {
    const { data, error } = this.all;
    if (error) return problem(error);
    if (!data) return empty("…");
    const { y, importance, constant, jobs, sampled } = data;
    if (!jobs) return empty(`No job has ${y} yet.`);
    const words = `What each parameter explains by itself of the order of ${count(sampled, "job")} by ${y}`;
    const few = sampled < FEW_JOBS && h("strong", { class: "warn" }, " Few jobs: much of it is chance.");
    if (!importance.length) return empty(`No parameter differs between the ${count(jobs, "job")} that ${jobs === 1 ? "has" : "have"} ${y}.`);
    const rows = importance.slice(0, MOST_ROWS).map((one) => this.#row(one, data.y));
    const head = [["Parameter"], ["Explains", "number"], [""], [`With it, ${y}`]].map(([word, name], n) => (word ? h("th", { key: n, scope: "col", class: name }, word) : h("td", { key: n })));
    const rest = [
      importance.length > MOST_ROWS && `${count(importance.length - MOST_ROWS, "other parameter")} explain less.`,
      constant.length > 0 && `The same in all jobs: ${constant.join(", ")}.`,
    ];
    return [
      h("table", { class: "importance" }, h("caption", {}, `${words}.`, few), h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)),
      h("p", { class: "quiet" }, rest.filter(Boolean).join(" ")),
    ];
  }

  #row({ key, share, trend, values }, y) {
    const isShown = key === this.points.data?.x;
    const direction = trend === null ? "" : Math.abs(trend) < WEAK ? "–" : trend > 0 ? "rises" : "falls";
    return h(
      "tr",
      { key },
      h("th", { scope: "row" }, button(key, () => this.#set({ x: key }), { class: "sort", "aria-pressed": String(isShown), title: `Show ${key} against ${y}` })),
      h("td", { class: "number" }, share === null ? "–" : percent(share, 1)),
      h("td", { class: "share" }, share === null ? h("span", { class: "quiet" }, "a value for each job") : bar([["s-running", share, ""], ["rest", 1 - share, ""]].filter(([, size]) => size > 0.005), `${percent(share, 1)} of the order`)),
      h("td", { title: trend === null ? `${number(values)} values` : `rank correlation ${number(trend, 2)}` }, direction),
    );
  }
}
