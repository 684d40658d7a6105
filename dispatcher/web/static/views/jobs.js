// A table of jobs by the filters of the address: sorted, some chosen to compare them or to change them.

import { get, isAborted } from "../api.js";
import { h } from "../dom.js";
import { change } from "../dialogs.js";
import { count, DASH, decimalsFor, duration, fixed, moment, text } from "../format.js";
import { button, doneAgain, empty, jobLink, menu, problem, section, stateWord, table } from "../parts.js";
import { filtersOf, go, href, same } from "../route.js";
import { where } from "./overview.js";

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
    const [params, results] = [usualValues(rows, "params"), usualValues(rows, "result", metrics)];
    const all = [...new Set([...keys.map((one) => one.key), ...rows.flatMap((row) => Object.keys(row.params ?? {}))])].filter((key) => !(key in FIELDS));
    const names = [...new Set([...metrics, ...rows.flatMap((row) => Object.keys(row.result ?? {}))])];
    return [
      ...Object.values(FIELDS).slice(0, FIRST),
      ...all.map((key) => ({ name: key, title: key, label: key, sort: key, group: "Parameters", cell: (row) => text(row.params?.[key]), isUsual: params.includes(key) })),
      ...names.map((name) => ({ ...resultColumn(name, rows), isUsual: results.includes(name) })),
      ...Object.values(FIELDS).slice(FIRST),
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

// What a row has besides parameters and results, by the name in the address; those before FIRST come before these.
const FIELDS = Object.fromEntries(
  [
    { name: "state", title: "State", sort: "state", className: "state-of", cell: stateWord },
    { name: "job", title: "Job", sort: "job", className: "job", isFixed: true },
    { name: "user", title: "User", label: "user", sort: "user", cell: (row) => row.user ?? DASH, has: (row, rows) => row.user !== rows[0].user },
    { name: "method", title: "Method", label: "method", sort: "method", cell: (row) => row.method ?? DASH, has: (row, rows) => row.method !== rows[0].method },
    { name: "(where)", title: "Where", label: "on", cell: where, has: (row) => row.pod },
    { name: "host", title: "Host", label: "host", sort: "host", cell: (row) => row.host ?? DASH, isRare: true },
    { name: "attempt", title: "Attempt", label: "attempt", sort: "attempt", number: true, cell: (row) => row.attempt, has: (row) => row.attempt > 1 },
    { name: "priority", title: "Priority", label: "priority", sort: "priority", number: true, cell: (row) => row.priority ?? DASH, isRare: true },
    { name: "started_at", title: "Started", label: "started", sort: "started_at", cell: (row) => moment(row.started_at), isRare: true },
    { name: "finished_at", title: "Ended", label: "ended", sort: "finished_at", cell: (row) => moment(row.finished_at), isRare: true },
    { name: "elapsed_s", title: "Took", label: "took", sort: "elapsed_s", number: true, cell: (row) => duration(row.elapsed_s), has: (row) => row.elapsed_s != null },
    { name: "exit_code", title: "Exit status", label: "exit status", sort: "exit_code", number: true, cell: (row) => row.exit_code ?? DASH, isRare: true },
    { name: "(why)", title: "Why", className: "why", cell: (row) => why(row), has: why },
  ].map((column) => [column.name, { group: "Job", ...column }]),
);
const FIRST = 4;

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
