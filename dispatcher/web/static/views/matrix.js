// The matrix: rows x columns by any keys; a cell is the mean of a result over its jobs, or their states.

import { Loader } from "../api.js";
import { h } from "../dom.js";
import { count, decimalsFor, fixed, text } from "../format.js";
import { choice, empty, inOrder, problem, section, stateBar, stateIcon, statesText } from "../parts.js";
import { filtersOf, go, href, same } from "../route.js";
import { share } from "../scales.js";
import { keysOf, STATES, usual } from "../usual.js";

// A reload at most so often, however often jobs change.
const EVERY_MS = 4_000;
const NONE = "";

export class Matrix {
  #asked = null;
  #timer = null;
  #loadedAt = 0;

  constructor(page) {
    this.page = page;
    this.loader = new Loader(() => page.draw());
  }

  show(query) {
    this.query = query;
    const { overview } = this.page.live;
    // Until the keys are known, there is nothing to choose from.
    if (!overview && query.get("rows") === null) return;
    const params = filtersOf(query);
    for (const [name, chosen] of Object.entries(usual(overview ?? {}))) params.set(name, query.get(name) ?? chosen);
    if (params.get("value") === STATES) params.delete("value");
    const asked = params.toString();
    if (asked === this.#asked) return;
    this.#asked = asked;
    this.#load();
  }

  changed({ all, jobs, results }) {
    this.show(this.query);
    if (!all && !jobs?.length && !results) return;
    const wait = this.#loadedAt + EVERY_MS - Date.now();
    if (this.#timer === null) this.#timer = setTimeout(() => this.#load(), Math.max(0, wait));
  }

  leave() {
    clearTimeout(this.#timer);
    this.loader.stop();
  }

  #load() {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#loadedAt = Date.now();
    this.loader.load("api/matrix", new URLSearchParams(this.#asked));
  }

  draw() {
    const { data, error } = this.loader;
    const content = error ? problem(error) : data ? this.#table(data) : empty("…");
    return section("matrix", "Matrix", data && this.#choices(), content);
  }

  #choices() {
    const { keys, overview } = this.page.live;
    // What was asked for, not what is shown: the answer to the last choice may not be there yet.
    const asked = new URLSearchParams(this.#asked);
    const now = { rows: asked.get("rows") ?? "", columns: asked.get("columns") ?? "", value: asked.get("value") ?? STATES };
    const set = (name, value) => go(same(this.query, { ...now, [name]: value }), { replace: true });
    const pair = (label, name, chosen) => {
      const [first = NONE, second = NONE] = chosen;
      const give = (list) => set(name, list.filter((key) => key !== NONE).join(","));
      return [
        choice(label, name, first, options(keys, second), (key) => give([key, second])),
        choice("then", `${name}2`, second, options(keys, first), (key) => give([first, key])),
      ];
    };
    return h(
      "div",
      { class: "choices" },
      pair("Rows", "rows", keysOf(now.rows, keys)),
      pair("Columns", "columns", keysOf(now.columns, keys)),
      choice("Cells", "value", now.value, [[STATES, STATES], ...(overview?.metrics ?? [])], (value) => set("value", value)),
    );
  }

  #table(data) {
    if (!data.rows.length || !data.columns.length) return empty(this.page.live.isFiltered ? "No job matches." : "There is no job yet.");
    const isStates = !data.value;
    const means = data.cells.flat().map((cell) => cell?.mean).filter(Number.isFinite);
    const isReading = data.results_pending > 0;
    const scale = { low: Math.min(...means), high: Math.max(...means), decimals: decimalsFor(means), isReading };
    const head = data.columns.map((column) => h("th", { key: name(column), scope: "col" }, name(column)));
    const rows = data.rows.map((row, number) =>
      h(
        "tr",
        { key: name(row) },
        h("th", { scope: "row" }, name(row)),
        data.columns.map((column, index) => {
          const cell = data.cells[number][index];
          return h("td", { key: name(column) }, cell && this.#cell(cell, row, column, isStates, scale));
        }),
      ),
    );
    const caption = `${[data.row_keys, data.column_keys].map((keys) => keys.join(", ") || "all jobs").join(" by ")}: ${isStates ? "states of jobs" : `${data.value}, mean ± standard deviation (jobs with a result of all jobs)`}`;
    return [
      h(
        "div",
        { class: "scroll tall", tabindex: "0", role: "region", "aria-label": caption },
        h(
          "table",
          { class: "matrix" },
          h("caption", {}, caption),
          h("thead", {}, h("tr", {}, h("td", { class: "corner" }, data.row_keys.join(" · ")), head)),
          h("tbody", {}, rows),
        ),
      ),
      h("p", { class: "quiet" }, leftOff(data)),
    ];
  }

  #cell(cell, row, column, isStates, scale) {
    const where = [...row.where, ...column.where];
    const others = this.query.getAll("where").filter((one) => !where.includes(one));
    const address = href(this.query, { view: "jobs", where: [...others, ...where] });
    const isDone = Object.keys(cell.states).every((state) => state === "done");
    const label = `${name(row)}, ${name(column)}: ${isStates ? "" : `${valueWords(cell, scale)}, `}${statesText(cell.states)}`;
    const shade = isStates || !Number.isFinite(cell.mean) || scale.high === scale.low ? 0 : share(cell.mean, scale.low, scale.high);
    return h(
      "a",
      { class: "cell", href: address, "aria-label": label, title: label, vars: { "--shade": shade.toFixed(3) } },
      isStates ? stateNumbers(cell.states) : valueParts(cell, scale),
      (isStates || !isDone) && stateBar(cell.states),
    );
  }
}

function valueParts({ mean, std, n, of, states }, { decimals, isReading }) {
  if (!n) return h("span", { class: "quiet" }, isReading && states.done ? "being read …" : of ? `none of ${of}` : "–");
  return [
    h("span", { class: "mean" }, fixed(mean, decimals), std !== null && std !== undefined && n > 1 && h("span", { class: "std" }, ` ± ${fixed(std, decimals)}`)),
    h("span", { class: n === of ? "n" : "n partial" }, ` ${n} of ${of}`),
  ];
}

function valueWords({ mean, std, n, of }, { decimals }) {
  if (!n) return of ? `no result of ${count(of, "job")}` : "reported by none of these methods";
  return `${fixed(mean, decimals)}${n > 1 && std != null ? ` ± ${fixed(std, decimals)}` : ""} (${n} of ${of})`;
}

function stateNumbers(states) {
  const numbers = inOrder(states).map(([state, n]) => h("span", { key: state, class: "state" }, stateIcon(state), n.toLocaleString("en-US")));
  return h("span", { class: "numbers" }, numbers);
}

function leftOff({ rows, columns, total_rows: allRows, total_columns: allColumns, results_pending: pending }) {
  const notes = [
    allRows > rows.length && `The first ${rows.length} of ${count(allRows, "row")}: filters show others.`,
    allColumns > columns.length && `The first ${columns.length} of ${count(allColumns, "column")}.`,
    pending > 0 && `The results of ${count(pending, "job")} are still being read.`,
  ];
  return notes.filter(Boolean).join(" ");
}

function name({ values }) {
  return values.length ? values.map(text).join(" · ") : "all jobs";
}

function options(keys, without) {
  return [[NONE, "–"], ...keys.filter((key) => key !== without)];
}
