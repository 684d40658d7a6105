// One job: its state and error, parameters as run, curves, log, attempts, what it ran from.

import { jobPath, Loader } from "../api.js";
import { h } from "../dom.js";
import { change } from "../dialogs.js";
import { bytes, DASH, duration, moment, number, text } from "../format.js";
import { button, empty, facts, jobLink, problem, section, stateWord, table } from "../parts.js";
import { go, href, same } from "../route.js";
import { Curves } from "./curves.js";
import { Log } from "./log.js";
import { where } from "./overview.js";

const WHILE_IT_RUNS_MS = 5_000;

export class Job {
  #asked = null;
  #readAt = 0;

  constructor(page) {
    this.page = page;
    this.loader = new Loader(() => this.#loaded());
    this.curves = new Curves(page);
    this.log = new Log(page);
  }

  get title() {
    return this.query?.get("job");
  }

  show(query) {
    this.query = query;
    const job = query.get("job");
    if (job !== this.#asked) {
      this.#asked = job;
      this.loader.data = this.loader.error = null;
      this.#load();
    }
    this.#showParts();
  }

  changed({ jobs, running }) {
    const isMine = (row) => row.job === this.#asked;
    if (jobs?.some?.(isMine) || running?.some?.(isMine)) this.#load();
  }

  tick() {
    const isDue = Date.now() - this.#readAt > WHILE_IT_RUNS_MS;
    if (this.#isRunning && isDue && !document.hidden && !this.page.live.error) {
      this.#load();
      this.curves.again();
    }
    this.log.tick();
  }

  leave() {
    this.loader.stop();
    this.curves.leave();
    this.log.leave();
  }

  get #isRunning() {
    return ["running", "submitted"].includes(this.loader.data?.job?.state);
  }

  get #attempt() {
    return this.query.get("attempt") ?? (this.loader.data?.job?.attempt || null);
  }

  #load() {
    this.#readAt = Date.now();
    this.loader.load(jobPath(this.#asked));
  }

  #loaded() {
    this.#showParts();
    this.page.draw();
  }

  /** The log and the curves are those of one attempt: the chosen one, else the last. */
  #showParts() {
    if (!this.loader.data || this.#attempt === null) return;
    const isLast = Number(this.#attempt) === this.loader.data.job.attempt;
    this.curves.show(this.#asked, this.#attempt, this.query);
    this.log.show(this.#asked, this.#attempt, this.#isRunning && isLast);
  }

  draw() {
    const { data, error } = this.loader;
    if (!data) return error ? problem(error) : empty("…");
    const { job } = data;
    return [
      h("header", { key: "job", class: "subject" }, h("h1", {}, job.job), h("p", { class: "states" }, stateWord(job)), this.#actions(job)),
      problem(error),
      this.#error(data),
      h(
        "div",
        { key: "facts", class: "beside" },
        section("record", "Record", null, this.#record(data)),
        section("parameters", "Parameters as run", null, facts(Object.entries(data.params ?? {})), results(data)),
      ),
      this.#attempt === null ? null : this.curves.draw(),
      this.#attempt === null ? null : this.log.draw(),
      this.#attempts(data),
      provenance(data),
    ];
  }

  #actions(job) {
    if (!this.page.allowsChanges) return null;
    const isMoving = ["running", "submitted", "queued", "held"].includes(job.state);
    const actions = isMoving ? [["hold", "Hold"], ["cancel", "Cancel"]] : [["requeue", "Requeue"]];
    const ask = (action) => change(this.page, action, { jobs: [job.job] }, {});
    return h("div", { class: "buttons" }, actions.filter(([action]) => action !== "hold" || job.state !== "held").map(([action, words]) => button(words, () => ask(action), { key: action })));
  }

  #error({ job, error, last_lines: lines }) {
    if (job.state !== "failed" && !error) return null;
    return h(
      "div",
      { key: "error", class: "error" },
      h("p", {}, h("strong", {}, job.reason ?? "failed"), error && `: ${error}`),
      lines && h("pre", { tabindex: "0" }, lines),
    );
  }

  #record({ job, needs, why }) {
    const began = job.started_at && moment(job.started_at);
    return facts([
      ["Method", job.method],
      ["Why it waits", why ?? job.why],
      ["Where", job.pod ? [where(job), job.host && ` on ${job.host}`] : null],
      ["User", job.user],
      ["Attempt", job.attempt || null],
      ["Started", began],
      ["Ended", job.finished_at && moment(job.finished_at)],
      [job.finished_at ? "Took" : "Runs for", job.elapsed_s == null ? null : duration(job.elapsed_s)],
      ["Left", job.remaining_s == null ? null : `about ${duration(job.remaining_s)}`],
      ["Step", job.step == null ? null : `${number(job.step)}${job.of ? ` of ${number(job.of)}` : ""}`],
      ["Stalled", job.stalled_s == null ? null : `no progress for ${duration(job.stalled_s)}`],
      ["GPU idle", job.gpu_idle_s == null ? null : `for ${duration(job.gpu_idle_s)}`],
      ["Reason", job.reason],
      ["Exit status", job.exit_code],
      ["Priority", job.priority || null],
      ["Manifest", job.changed ? "has other parameters now" : null],
      ["Needs", needs?.length ? needs.map((one) => [jobLink(this.query, one.job), " ", stateWord(one.state), " "]) : null],
    ]);
  }

  #attempts({ attempts }) {
    if (!attempts?.length) return null;
    const shown = String(this.#attempt);
    const columns = [
      { name: "number", title: "Attempt", cell: (one) => h("a", { href: same(this.query, { attempt: one.attempt }), "aria-current": String(one.attempt) === shown && "true" }, one.attempt) },
      { name: "end", title: "End", cell: (one) => one.end ?? one.state ?? DASH },
      { name: "reason", title: "Reason", cell: (one) => one.reason ?? DASH },
      { name: "where", title: "Where", cell: where },
      { name: "host", title: "Host", cell: (one) => one.host ?? DASH },
      { name: "started", title: "Started", cell: (one) => moment(one.started_at) },
      { name: "took", title: "Took", number: true, cell: (one) => duration(one.elapsed_s) },
      { name: "exit", title: "Exit", number: true, cell: (one) => text(one.exit_code) },
      { name: "log", title: "Log", number: true, cell: (one) => (one.log_bytes == null ? DASH : h("a", { href: logHref(this.#asked, one.attempt), download: true }, bytes(one.log_bytes))) },
    ];
    const rows = [...attempts].sort((a, b) => b.attempt - a.attempt);
    return section("attempts", "Attempts", null, table({ columns, rows, rowKey: (one) => one.attempt, caption: "Attempts" }));
  }
}

function logHref(job, attempt) {
  return jobPath(job, `/log/download?attempt=${encodeURIComponent(attempt)}`);
}

function results({ results: found }) {
  const pairs = Object.entries(found ?? {});
  return pairs.length > 0 && [h("h3", {}, "Results"), facts(pairs.map(([name, value]) => [name, typeof value === "number" ? number(value, 6) : value]))];
}

function provenance({ provenance: rows }) {
  if (!rows?.length) return section("provenance", "What it ran from", null, empty("Not recorded."));
  return section("provenance", "What it ran from", null, facts(rows.map(([name, value]) => [name, value])));
}
