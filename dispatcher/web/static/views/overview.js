// The first screen: what needs a person, how far it is, where the week went, the matrix, what runs, fails and waits.

import { h } from "../dom.js";
import { change, jobsOf } from "../dialogs.js";
import { ago, count, DASH, duration, mebibytes, moment, number, percent, secondsSince } from "../format.js";
import { button, empty, firstJobs, inOrder, jobLink, section, stateBar, stateIcon, stateWord, table } from "../parts.js";
import { FILTERS, href } from "../route.js";
import { Matrix } from "./matrix.js";
import { week } from "./week.js";

const MOST_RUNNING = 50;

export class Overview {
  title = "";
  #showsAllRunning = false;

  constructor(page) {
    this.page = page;
    this.matrix = new Matrix(page);
  }

  show(query) {
    this.query = query;
    this.matrix.show(query);
  }

  changed(change) {
    this.matrix.changed(change);
  }

  leave() {
    this.matrix.leave();
  }

  draw() {
    const { overview } = this.page.live;
    if (!overview) return this.page.live.error ? null : empty("Reading the workspace …");
    // Under a filter, everything here is of the jobs that it shows; the week's account and pods are of all.
    this.isFiltered = this.page.live.isFiltered;
    if (this.isFiltered && overview.total === 0) return section("progress", "No job matches these filters", this.#whole(overview), null);
    const progress = section("progress", "Progress", null, this.#progress(overview));
    return [
      section("attention", "Needs a person", this.isFiltered && this.#whole(overview), this.#attention(overview)),
      this.isFiltered ? h("div", { key: "now", class: "alone" }, progress) : h("div", { key: "now", class: "beside" }, progress, week(overview.week)),
      this.matrix.draw(),
      section("running", "Running", tally(overview.running_total ?? overview.running?.length), this.#running(overview.running ?? [])),
      section("failures", "Failures by cause", tally(sum(overview.failures)), this.#failures(overview.failures ?? [])),
      section("waiting", "Waiting by reason", tally(sum(overview.waiting)), this.#waiting(overview.waiting ?? [])),
    ];
  }

  /** The way to the first screen of all jobs, and what a person would find there. */
  #whole({ attention_of_all: all }) {
    const none = Object.fromEntries(FILTERS.map((name) => [name, null]));
    return h("a", { href: href(this.query, none) }, all > 0 ? `${all.toLocaleString("en-US")} in the whole workspace` : "The whole workspace");
  }

  #none(ofAll, ofSome) {
    return empty(this.isFiltered ? ofSome : ofAll);
  }

  #attention({ attention }) {
    if (!attention?.length) return this.#none("Nothing.", "Nothing about these jobs.");
    const items = attention.map((one, index) =>
      h(
        "li",
        { key: `${one.kind} ${one.text} ${index}`, class: "notice" },
        h("strong", {}, KINDS[one.kind] ?? one.kind),
        h(
          "div",
          {},
          h("p", {}, linked(this.query, one), one.since && h("span", { class: "quiet" }, ` · ${ago(one.since)}`)),
          !isNamed(one) && one.jobs?.length > 0 && h("p", { class: "quiet" }, firstJobs(this.query, one.jobs, one.count ?? one.jobs.length)),
        ),
        this.#remedy(one),
      ),
    );
    return h("ul", { class: "notices" }, items);
  }

  #remedy(notice) {
    const { kind, scope, command } = notice;
    if (kind !== "paused" || !scope) return null;
    if (!this.page.allowsChanges) return h("code", { class: "command" }, command);
    return button("Unpause", () => change(this.page, "unpause", { scope }, {}), { "aria-label": `Unpause ${scope}` });
  }

  #progress({ counts, total, rate_per_hour: rate, rate_window_s: window, slots, eta, left, stuck, unknown_methods: unknown, refused, stalled, limited_by: limit, others_left: others, notices }) {
    const done = counts?.done ?? 0;
    const states = inOrder(counts).map(([state, n]) =>
      h(
        "li",
        { key: state },
        h("a", { href: href(this.query, { view: "jobs", state }) }, stateIcon(state), h("b", {}, n.toLocaleString("en-US")), ` ${state}`),
      ),
    );
    return [
      h("p", { class: "headline" }, h("b", {}, done.toLocaleString("en-US")), ` of ${count(total ?? 0, "job")} done`, h("span", { class: "quiet" }, percent(done, total))),
      stateBar(counts, "tall"),
      h("ul", { class: "states" }, states),
      h(
        "dl",
        { class: "figures" },
        figure("Left", ...(left === 0 && !stuck ? ["none", "no job is left to run"] : etaWords(eta, { unknown: unknown ?? [], refused, stalled, limit, stuck, others }))),
        figure("Rate", rate ? `${number(rate, 3)} per hour` : DASH, rate ? `in the last ${duration(window)}` : "none done lately"),
        figure("Slots", slots ? `${slots.busy} of ${slots.all} ${this.isFiltered ? "with these jobs" : "busy"}` : DASH, slots?.pods !== undefined ? count(slots.pods, "pod") : ""),
      ),
      notices?.length > 0 && h("ul", { class: "remarks" }, notices.map((note) => h("li", { key: note }, note))),
    ];
  }

  #running(rows) {
    if (!rows.length) return this.#none("Nothing runs.", "None of these jobs runs.");
    const shown = this.#showsAllRunning ? rows : rows.slice(0, MOST_RUNNING);
    const columns = COLUMNS.filter((column) => !column.has || rows.some(column.has)).map((column) =>
      column.name === "job" ? { ...column, cell: (row) => jobLink(this.query, row.job) } : column,
    );
    const more = () => {
      this.#showsAllRunning = true;
      this.page.draw();
    };
    return [
      table({ columns, rows: shown, rowKey: (row) => row.job, caption: "Running jobs" }),
      shown.length < rows.length && button(`Show all ${rows.length}`, more, { class: "more" }),
    ];
  }

  #failures(failures) {
    if (!failures.length) return this.#none("No job has failed.", "None of these jobs has failed.");
    return h("ul", { class: "groups" }, failures.map((one, index) => this.#failure(one, index)));
  }

  #failure(failure, index) {
    const { count: failed } = failure;
    const all = h("a", { href: href(this.query, { view: "jobs", failure: failure.key }) }, "list");
    return h(
      "li",
      { key: failure.key },
      h(
        "div",
        { class: "line" },
        h("b", { class: "number" }, stateIcon("failed"), failed.toLocaleString("en-US")),
        h("span", { class: "cause" }, failure.cause),
        this.page.allowsChanges && button(`Requeue ${failed}`, () => this.#requeue(failure), { class: "requeue" }),
      ),
      h("p", { class: "quiet" }, firstJobs(this.query, failure.jobs, failed), " · ", all, failure.last_at && ` · last ${ago(failure.last_at)}`),
      failure.last_lines?.length > 0 && h("details", { open: index === 0 }, h("summary", {}, "Last lines"), h("pre", { tabindex: "0" }, failure.last_lines.join("\n"))),
    );
  }

  /** All jobs that failed for this cause, of those that the filters show. */
  #requeue({ key, count: number, cause }) {
    const question = `Queue ${count(number, "failed job")} again? ${cause}`;
    return change(this.page, "requeue", { jobs: () => jobsOf(this.query, { failure: key }) }, { question, number });
  }

  #waiting(waiting) {
    if (!waiting.length) return this.#none("Nothing waits.", "None of these jobs waits.");
    const items = waiting.map((one) =>
      h(
        "li",
        { key: one.key },
        h(
          "div",
          { class: "line" },
          h("b", { class: "number" }, stateIcon(one.state), one.count.toLocaleString("en-US")),
          h("span", { class: "cause" }, one.reason, one.needs_person && h("strong", { class: "tag" }, "needs a person")),
        ),
        h("p", { class: "quiet" }, firstJobs(this.query, one.jobs, one.count), " · ", h("a", { href: href(this.query, { view: "jobs", waiting: one.key }) }, "list")),
      ),
    );
    return h("ul", { class: "groups" }, items);
  }
}

const KINDS = {
  paused: "Paused",
  gpu_idle: "GPU idle",
  stalled: "Stalled",
  dead_pod: "Pod dead",
  silent_pod: "Pod silent",
  nothing_claims: "No pod",
  notice: "Doubtful notice",
  refused_edit: "Refused edit",
  problem: "Problem",
  external: "Other runs",
};

const COLUMNS = [
  { name: "job", title: "Job", className: "job" },
  { name: "state", title: "State", className: "state-of", cell: stateWord, has: (row) => row.state !== "running" || row.desired },
  { name: "user", label: "user", title: "User", cell: (row) => row.user ?? DASH, has: (row) => row.user },
  { name: "where", label: "on", title: "Where", cell: (row) => row.where ?? DASH },
  { name: "step", title: "Step", cell: step, className: "step" },
  { name: "left", label: "left", title: "Left", number: true, cell: (row) => duration(row.remaining_s) },
  { name: "elapsed", label: "elapsed", title: "Elapsed", number: true, cell: (row) => duration(secondsSince(row.started_at)) },
  { name: "sign", label: "heartbeat", title: "Last heartbeat", number: true, cell: lastSign },
  { name: "use", label: "GPU", title: "GPU", number: true, cell: (row) => (row.gpu_percent == null ? DASH : `${row.gpu_percent} %`), has: (row) => row.gpu_percent != null },
  { name: "memory", label: "memory", title: "Memory", number: true, cell: memory, has: (row) => row.memory_used_mib != null },
  { name: "metric", title: "Metric", cell: metric, className: "metric" },
];

/** Whether the text of a notice names its only job. */
function isNamed({ text, jobs }) {
  return jobs?.length === 1 && text.includes(jobs[0]);
}

function linked(query, notice) {
  if (!isNamed(notice)) return notice.text;
  const [job] = notice.jobs;
  const at = notice.text.indexOf(job);
  return [notice.text.slice(0, at), jobLink(query, job), notice.text.slice(at + job.length)];
}

function step(row) {
  if (row.step === null || row.step === undefined) return row.waits_for ?? DASH;
  const share = row.of ? Math.min(1, row.step / row.of) : null;
  return [
    share !== null && h("progress", { max: 1, value: share, "aria-hidden": "true" }),
    `${number(row.step)}${row.of ? ` / ${number(row.of)}` : ""}`,
  ];
}

function lastSign(row) {
  if (row.gpu_idle_since) return h("strong", { class: "warn" }, `GPU idle ${duration(secondsSince(row.gpu_idle_since))}`);
  if (row.stalled_since) return h("strong", { class: "warn" }, `stalled ${duration(secondsSince(row.stalled_since))}`);
  return row.last_sign_at ? ago(row.last_sign_at) : DASH;
}

function memory(row) {
  return row.memory_used_mib == null ? DASH : `${mebibytes(row.memory_used_mib)} of ${mebibytes(row.memory_total_mib)}`;
}

function metric(row) {
  const [name, value] = Object.entries(row.metrics ?? {})[0] ?? [];
  return name === undefined ? DASH : [h("span", { class: "quiet" }, `${name} `), number(value)];
}

/**
 * The time left, and which jobs are not in it: those of methods without a job that was done lately, refused, stalled and
 * blocked ones. Under a filter it is the time that its jobs take if no other job gets a slot.
 */
function etaWords(eta, { unknown, refused, stalled, limit, stuck, others }) {
  const without = [
    unknown.length > 0 && `no ${unknown.slice(0, 3).join("/")} job to go by`,
    refused > 0 && `${refused} that no live pod can take`,
    stalled > 0 && `${stalled} stalled`,
    limit && `max_running of ${limit}`,
    others > 0 && `if ${count(others, "other job")} ${others === 1 ? "waits" : "wait"} for these`,
    stuck > 0 && `${stuck} blocked`,
  ];
  const more = (words) => [words, ...without].filter(Boolean).join("; ");
  if (!eta || eta.mid_s === null || eta.mid_s === undefined) return [DASH, more("not known yet")];
  const at = (seconds) => moment(Date.now() + seconds * 1_000);
  const isSpread = eta.low_s != null && eta.high_s != null && eta.high_s > eta.low_s;
  return [
    `${unknown.length || refused || stalled || limit || others > 0 ? "at least" : "about"} ${duration(eta.mid_s)}`,
    more(isSpread ? `${duration(eta.low_s)} to ${duration(eta.high_s)}: ${at(eta.low_s)} to ${at(eta.high_s)}` : `at ${at(eta.mid_s)}`),
  ];
}

function figure(name, value, note) {
  return h("div", { key: name }, h("dt", {}, name), h("dd", {}, value, note && h("small", {}, note)));
}

function tally(number) {
  return number > 0 && h("span", { class: "tally" }, number.toLocaleString("en-US"));
}

function sum(groups) {
  return (groups ?? []).reduce((total, group) => total + group.count, 0);
}
