// A table of jobs by the filters of the address: sorted, some chosen to compare them or to change them.

import { get, isAborted } from "../api.js";
import { h } from "../dom.js";
import { change } from "../dialogs.js";
import { count, DASH, decimalsFor, duration, fixed, moment, text } from "../format.js";
import { button, doneAgain, empty, jobLink, menu, problem, section, stateWord, table } from "../parts.js";
import { filtersOf, go, href, same } from "../route.js";

const AT_ONCE = 200;
const EVERY_MS = 5_000;
// More columns of parameters and results make a table too wide to read, unless they are chosen.
const MOST_COLUMNS = 6;
// How the address calls the column of a result: parameters have their own names.
const RESULT = "result:";
// What can be done to jobs, and to those in which states.
const ACTIONS = [
  ["requeue", "Requeue"],
  ["hold", "Hold"],
  ["cancel", "Cancel"],
];

export class Jobs {
  title = "Jobs";
  #asked = null;
  #filters = null;
  #pages = [];
  #fields = [];
  #next = null;
  #total = 0;
  #error = null;
  #controller = null;
  #chosen = new Set();
  #timer = null;

  constructor(page) {
    this.page = page;
  }

  show(query) {
    this.query = query;
    const params = filtersOf(query);
    const filters = params.toString();
    if (query.get("sort")) params.set("sort", query.get("sort"));
    params.set("limit", AT_ONCE);
    for (const key of query.getAll("show")) params.append("show", key);
    if (params.toString() === this.#asked) return;
    this.#asked = params.toString();
    if (filters !== this.#filters) {
      this.#filters = filters;
      this.#chosen.clear();
      this.#pages = [];
    }
    this.#load();
  }

  changed({ all, jobs, results }) {
    if (!all && !jobs?.length && !results) return;
    // What was loaded besides the first page stays as it was read, until it is asked for again.
    this.#timer ??= setTimeout(() => this.#load(), EVERY_MS);
  }

  leave() {
    clearTimeout(this.#timer);
    this.#controller?.abort();
  }

  async #load(after = null) {
    clearTimeout(this.#timer);
    this.#timer = null;
    this.#controller?.abort();
    const controller = (this.#controller = new AbortController());
    const params = new URLSearchParams(this.#asked);
    if (after !== null) params.set("after", after);
    try {
      const answer = await get("api/jobs", params, controller.signal);
      this.#fields = ofJobs(answer.columns);
      this.#total = answer.total;
      if (after === null) {
        if (this.#pages.length <= 1) this.#next = answer.next ?? null;
        this.#pages[0] = answer.jobs;
      } else {
        this.#pages.push(answer.jobs);
        this.#next = answer.next ?? null;
      }
      this.#error = null;
    } catch (error) {
      if (isAborted(error)) return;
      this.#error = error;
    }
    this.page.draw();
  }

  draw() {
    const rows = distinct(this.#pages.flat());
    if (!this.#pages.length) return this.#error ? problem(this.#error) : empty("Reading the workspace …");
    const more = this.#next !== null && button("Load more", () => this.#load(this.#next), { class: "more" });
    const total = this.#next === null ? count(rows.length, "job") : `${rows.length} of ${count(this.#total, "job")}`;
    return section(
      "jobs",
      "Jobs",
      [h("span", { class: "tally" }, total), this.#actions(rows), rows.length > 0 && this.#choice(rows)],
      problem(this.#error),
      rows.length ? this.#table(rows) : empty(this.#filters ? "No job matches these filters." : "There is no job yet."),
      more,
    );
  }

  #actions(rows) {
    const chosen = rows.filter((row) => this.#chosen.has(row.job)).map((row) => row.job);
    const compared = chosen.length ? { jobs: chosen.join(",") } : {};
    const compare = h("a", { class: "button", href: href(this.query, { view: "compare", ...compared }) }, chosen.length ? `Compare ${chosen.length}` : "Compare all of these");
    const changes = !this.page.allowsChanges || !chosen.length ? [] : ACTIONS.map(([action, words]) => button(`${words} ${chosen.length}`, () => this.#change(action, words, rows, chosen), { key: action, class: action === "cancel" && "danger-word" }));
    return h("div", { class: "buttons" }, compare, changes);
  }

  async #change(action, words, rows, jobs) {
    const question = `${words} ${jobs.length === 1 ? jobs[0] : count(jobs.length, "job")}?`;
    const running = rows.filter((row) => jobs.includes(row.job) && ["running", "submitted"].includes(row.state)).length;
    if (await change(this.page, action, { jobs }, { question, number: jobs.length, running })) {
      this.#chosen.clear();
      this.#load();
    }
  }

  /** All columns; those with `isUsual` are shown until others are chosen. */
  #columns(rows) {
    const { metrics = [], keys = [] } = this.page.live.overview ?? {};
    const fields = this.#fields;
    const first = FIRST.map((name) => fields.find((one) => one.key === name));
    const [params, results] = [usualValues(rows, "params"), usualValues(rows, "result", metrics)];
    const all = [...new Set([...keys.map((one) => one.key), ...rows.flatMap((row) => Object.keys(row.params ?? {}))])].filter((key) => !fields.some((one) => one.name === key));
    const names = [...new Set([...metrics, ...rows.flatMap((row) => Object.keys(row.result ?? {}))])];
    return [
      ...first,
      ...all.map((key) => ({ name: key, title: key, label: key, sort: key, group: "Parameters", cell: (row) => text(row.params?.[key]), isUsual: params.includes(key) })),
      ...names.map((name) => ({ ...resultColumn(name, rows), isUsual: results.includes(name) })),
      ...fields.filter((one) => !first.includes(one)),
    ].map((column) => ({ ...column, isUsual: column.isUsual ?? (!column.isRare && (!column.has || rows.some((row) => column.has(row, rows)))) }));
  }

  #isShown(column) {
    const shown = this.query.getAll("show");
    return column.isFixed || (shown.length ? shown.includes(column.name) : column.isUsual);
  }

  #choice(rows) {
    const columns = this.#columns(rows);
    const shown = columns.filter((column) => this.#isShown(column)).map((column) => column.name);
    const set = (show) => go(same(this.query, { show }), { replace: true });
    // Without any, the usual ones would come back.
    const toggle = (name) => set(shown.includes(name) ? shown.filter((one) => one !== name) : [...shown, name]);
    const groups = ["Job", "Parameters", "Results"].map((group) => [group, columns.filter((column) => column.group === group && !column.isFixed)]);
    return menu(
      "Columns",
      groups.filter(([, some]) => some.length).map(([group, some]) =>
        h(
          "fieldset",
          { key: group },
          h("legend", {}, group),
          some.map(({ name, title }) => h("label", { key: name, class: "choice" }, h("input", { type: "checkbox", name: "column", value: name, checked: shown.includes(name), onchange: () => toggle(name) }), h("span", {}, title))),
        ),
      ),
      this.query.has("show") && button("The usual columns", () => set(null)),
    );
  }

  #table(rows) {
    const choose = {
      name: "choose",
      className: "choose",
      title: h("input", { type: "checkbox", "aria-label": "Choose all", checked: rows.every((row) => this.#chosen.has(row.job)), onchange: (event) => this.#choose(rows, event.target.checked) }),
      cell: (row) => h("input", { type: "checkbox", "aria-label": `Choose ${row.job}`, checked: this.#chosen.has(row.job), onchange: (event) => this.#choose([row], event.target.checked) }),
    };
    const columns = this.#columns(rows).filter((column) => this.#isShown(column));
    const named = columns.map((column) => (column.name === "job" ? { ...column, cell: (row) => jobLink(this.query, row.job) } : column));
    return table({
      columns: [choose, ...named],
      rows,
      rowKey: (row) => row.job,
      rowClass: (row) => (row.state === "failed" ? "is-failed" : undefined),
      sort: this.query.get("sort"),
      onSort: (sort) => go(same(this.query, { sort }), { replace: true }),
      caption: "Jobs",
    });
  }

  #choose(rows, isChosen) {
    for (const { job } of rows) this.#chosen[isChosen ? "add" : "delete"](job);
    this.page.draw();
  }
}

// How values are drawn by their unit, and the columns that are drawn in a way of their own.
const CELLS = { moment, seconds: duration, number: (value) => value ?? DASH, text: (value) => value ?? DASH };
const DRAWN = {
  state: { label: undefined, className: "state-of", cell: stateWord },
  job: { label: undefined, className: "job", isFixed: true, cell: undefined },
  where: { name: "(where)", label: "on" },
  why: { name: "(why)", label: undefined, sort: undefined, className: "why", cell: (row) => why(row), has: why },
};
// Those before parameters and results.
const FIRST = ["state", "job", "user", "method"];

/** The columns of jobs that the server has, as a table here draws them. */
function ofJobs(columns) {
  return columns.map(({ name, title, unit, shown, usual, sorts }) => {
    const has = shown === "differing" ? (row, rows) => row[name] !== rows[0][name] : (row) => !usual.includes(row[name] ?? null);
    const number = unit === "number" || unit === "seconds";
    return { group: "Job", key: name, name, title, label: title.toLowerCase(), sort: sorts ? name : undefined, number, cell: (row) => CELLS[unit](row[name]), has, isRare: shown === "never", ...DRAWN[name] };
  });
}

function resultColumn(key, rows) {
  const decimals = decimalsFor(rows.map((row) => row.result?.[key]));
  const cell = (row) => (typeof row.result?.[key] === "number" ? fixed(row.result[key], decimals) : text(row.result?.[key]));
  return { name: `${RESULT}${key}`, title: key, label: key, sort: key, number: true, group: "Results", cell };
}

function why(row) {
  return row.why ?? row.error ?? (row.reason && row.reason !== "exit 0" ? row.reason : null) ?? (row.state === "queued" ? DASH : doneAgain(row));
}

/** Which parameters or results get a column of themselves: those that differ, in the order in which rows have them. */
function usualValues(rows, name, first = []) {
  const seen = new Map(first.map((key) => [key, new Set()]));
  for (const row of rows) {
    for (const [key, value] of Object.entries(row[name] ?? {})) {
      if (!seen.has(key)) seen.set(key, new Set());
      seen.get(key).add(JSON.stringify(value));
    }
  }
  const differing = [...seen].filter(([, values]) => (name === "params" ? values.size > 1 : values.size > 0));
  return differing.slice(0, MOST_COLUMNS).map(([key]) => key);
}

/** Jobs that moved from one page to another while pages were loaded come once. */
function distinct(rows) {
  return [...new Map(rows.map((row) => [row.job, row])).values()];
}
