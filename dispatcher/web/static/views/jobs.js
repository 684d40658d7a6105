// A table of jobs by the filters of the address: sorted, some chosen to compare them or to change them.

import { get, isAborted } from "../api.js";
import { h } from "../dom.js";
import { change } from "../dialogs.js";
import { count, DASH, decimalsFor, duration, fixed, text } from "../format.js";
import { button, doneAgain, empty, jobLink, problem, section, stateWord, table } from "../parts.js";
import { filtersOf, go, href, same } from "../route.js";
import { where } from "./overview.js";

const AT_ONCE = 200;
const EVERY_MS = 5_000;
// More columns of parameters and results make a table that nobody reads.
const MOST_COLUMNS = 6;
// What can be done to jobs, and to those in which states.
const ACTIONS = [
  ["requeue", "Requeue"],
  ["hold", "Hold"],
  ["cancel", "Cancel"],
];

export class Jobs {
  title = "Jobs";
  #asked = null;
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
    if (query.get("sort")) params.set("sort", query.get("sort"));
    params.set("limit", AT_ONCE);
    if (params.toString() === this.#asked) return;
    this.#asked = params.toString();
    this.#chosen.clear();
    this.#pages = [];
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
      [h("span", { class: "tally" }, total), this.#actions(rows)],
      problem(this.#error),
      rows.length ? this.#table(rows) : empty("No job matches these filters."),
      more,
    );
  }

  #actions(rows) {
    const chosen = rows.filter((row) => this.#chosen.has(row.job)).map((row) => row.job);
    const compared = chosen.length ? { jobs: chosen.join(",") } : {};
    const compare = h("a", { class: "button", href: href(this.query, { view: "compare", ...compared }) }, chosen.length ? `Compare ${chosen.length}` : "Compare all of these");
    const changes = !this.page.allowsChanges || !chosen.length ? [] : ACTIONS.map(([action, words]) => button(`${words} ${chosen.length}`, () => this.#change(action, words, chosen), { key: action }));
    return h("div", { class: "buttons" }, compare, changes);
  }

  async #change(action, words, jobs) {
    const question = `${words} ${count(jobs.length, "job")}?`;
    if (await change(this.page, action, { jobs }, { question, number: jobs.length })) {
      this.#chosen.clear();
      this.#load();
    }
  }

  #table(rows) {
    const choose = {
      name: "choose",
      title: h("input", { type: "checkbox", "aria-label": "Choose all", checked: rows.every((row) => this.#chosen.has(row.job)), onchange: (event) => this.#choose(rows, event.target.checked) }),
      cell: (row) => h("input", { type: "checkbox", "aria-label": `Choose ${row.job}`, checked: this.#chosen.has(row.job), onchange: (event) => this.#choose([row], event.target.checked) }),
    };
    const columns = [
      choose,
      { name: "state", title: "State", sort: "state", cell: stateWord },
      { name: "job", title: "Job", sort: "job", className: "job", cell: (row) => jobLink(this.query, row.job) },
      { name: "user", title: "User", sort: "user", cell: (row) => row.user ?? DASH, has: (row) => row.user !== rows[0].user },
      ...valuesOf(rows, "params").map((key) => ({ name: `p ${key}`, title: key, sort: key, cell: (row) => text(row.params?.[key]) })),
      ...valuesOf(rows, "result", this.page.live.overview?.metrics).map((key) => resultColumn(key, rows)),
      { name: "where", title: "Where", cell: where, has: (row) => row.pod },
      { name: "attempt", title: "Attempt", sort: "attempt", number: true, cell: (row) => row.attempt, has: (row) => row.attempt > 1 },
      { name: "elapsed", title: "Took", sort: "elapsed_s", number: true, cell: (row) => duration(row.elapsed_s), has: (row) => row.elapsed_s != null },
      { name: "why", title: "Why", className: "why", cell: (row) => why(row), has: why },
    ].filter((column) => !column.has || rows.some(column.has));
    return table({
      columns,
      rows,
      rowKey: (row) => row.job,
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

function resultColumn(key, rows) {
  const decimals = decimalsFor(rows.map((row) => row.result?.[key]));
  const cell = (row) => (typeof row.result?.[key] === "number" ? fixed(row.result[key], decimals) : text(row.result?.[key]));
  return { name: `r ${key}`, title: key, sort: key, number: true, cell };
}

function why(row) {
  return row.why ?? row.error ?? (row.reason && row.reason !== "exit 0" ? row.reason : null) ?? (row.state === "queued" ? DASH : doneAgain(row));
}

/** Which parameters or results get a column: those that differ, in the order in which rows have them. */
function valuesOf(rows, name, first = []) {
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
