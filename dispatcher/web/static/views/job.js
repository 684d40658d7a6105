// One job: its state and error, parameters as run, curves, log, attempts, what it ran from.

import { jobPath, Loader } from "../api.js";
import { h } from "../dom.js";
import { change } from "../dialogs.js";
import { ago, bytes, DASH, duration, mebibytes, moment, number, secondsSince, text } from "../format.js";
import { button, doneAgain, empty, facts, hasEnded, jobLink, problem, section, stateWord, table } from "../parts.js";
import { same } from "../route.js";
import { Curves } from "./curves.js";
import { Log } from "./log.js";

const WHILE_IT_RUNS_MS = 5_000;
// How the journal calls the end of an attempt, where people say it otherwise.
const ENDS = { retried: "failed, retried", auto_requeued: "queued again", snapshot: null };

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

  changed({ all, jobs }) {
    if (all || jobs?.includes(this.#asked)) this.#load();
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
    return ["running", "submitted"].includes(this.loader.data?.row.state);
  }

  get #attempt() {
    return this.query.get("attempt") ?? (this.loader.data?.row.attempt || null);
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
    const isLast = Number(this.#attempt) === this.loader.data.row.attempt;
    this.curves.show(this.#asked, this.#attempt, this.query);
    this.log.show(this.#asked, this.#attempt, this.#isRunning && isLast);
  }

  draw() {
    const { data, error } = this.loader;
    if (!data) return error ? problem(error) : empty("Reading the workspace …");
    const { row } = data;
    return [
      h("header", { key: "job", class: "subject" }, h("h1", {}, row.job), h("p", { class: "states" }, stateWord(row)), this.#actions(row)),
      problem(error),
      this.#error(data),
      h(
        "div",
        { key: "facts", class: "beside" },
        section("record", "Record", null, this.#record(data)),
        section("parameters", data.params_as === "ran" ? "Parameters as run" : "Parameters", null, this.#parameters(data)),
      ),
      this.#attempt === null ? null : this.curves.draw(),
      this.#attempt === null ? null : this.log.draw(),
      this.#attempts(data),
      provenance(data, this.#attempt),
    ];
  }

  #parameters({ params, params_unknown: isUnknown, changes, result }) {
    return [
      isUnknown && h("p", { class: "quiet" }, "With which parameters it ran is not known; these are the manifest's."),
      facts(Object.entries(params ?? {}).map(([name, value]) => [name, text(value)])),
      changes?.length > 0 && h("p", { class: "warn" }, "The manifest has other parameters now: ", changes.map((one) => text(one)).join("; ")),
      result && [h("h3", {}, "Results"), facts(Object.entries(result.values ?? {}).map(([name, value]) => [name, typeof value === "number" ? number(value, 6) : text(value)]))],
    ];
  }

  #actions(job) {
    if (!this.page.allowsChanges) return null;
    const actions = hasEnded(job.state) ? [["requeue", "Requeue"]] : [["hold", "Hold"], ["cancel", "Cancel job"]];
    const running = this.#isRunning ? 1 : 0;
    const ask = (action, words) => change(this.page, action, { jobs: [job.job] }, { question: `${words} ${job.job}?`, running });
    return h("div", { class: "buttons" }, actions.filter(([action]) => action !== "hold" || job.state !== "held").map(([action, words]) => button(words, () => ask(action, words), { key: action, class: action === "cancel" && "danger-word" })));
  }

  #error({ row, error }) {
    if (row.state !== "failed" && !error) return null;
    return h("div", { key: "error", class: "error" }, h("p", {}, h("strong", {}, row.reason ?? row.state), error && `: ${error}`));
  }

  #record({ row: job, needs, why, refused_edits: refused }) {
    const isRunning = job.started_at && !job.finished_at;
    return facts([
      ["Method", job.method],
      ["Why it waits", why],
      ["Where", job.pod ? [job.where, job.host && ` on ${job.host}`] : null],
      ["User", job.user],
      ["Attempt", job.attempt || null],
      ["Started", job.started_at && moment(job.started_at)],
      ["Ended", job.finished_at && moment(job.finished_at)],
      ["Took", job.finished_at && job.elapsed_s != null ? duration(job.elapsed_s) : null],
      ["Elapsed", isRunning ? duration(secondsSince(job.started_at)) : null],
      ["Last heartbeat", job.last_sign_at && ago(job.last_sign_at)],
      ["Left", job.remaining_s == null ? null : `about ${duration(job.remaining_s)}`],
      ["Step", job.step == null ? null : `${number(job.step)}${job.of ? ` of ${number(job.of)}` : ""}`],
      ["Stalled", job.stalled_since && `no progress for ${duration(secondsSince(job.stalled_since))}`],
      ["GPU idle", job.gpu_idle_since && `for ${duration(secondsSince(job.gpu_idle_since))}`],
      ["GPU use", job.gpu_percent == null ? null : `${job.gpu_percent} %`],
      ["Memory", job.memory_used_mib == null ? null : `${mebibytes(job.memory_used_mib)} of ${mebibytes(job.memory_total_mib)}`],
      ...Object.entries(job.metrics ?? {}).map(([name, value]) => [name, number(value)]),
      ["Newer inputs", doneAgain(job)],
      ["Reason", job.reason],
      ["Exit status", job.exit_code],
      ["Priority", job.priority || null],
      ["Refused edits", refused?.length ? refused.map((one) => text(one)).join("; ") : null],
      ["Needs", needs?.length ? needs.map((one) => h("div", { key: one.job }, jobLink(this.query, one.job), " ", one.state ? stateWord(one.state) : "not known")) : null],
    ]);
  }

  #attempts({ attempts }) {
    if (!attempts?.length) return null;
    const shown = String(this.#attempt);
    const columns = [
      { name: "number", title: "Attempt", cell: (one) => h("a", { href: same(this.query, { attempt: one.attempt }), "aria-current": String(one.attempt) === shown && "true" }, one.attempt) },
      { name: "end", title: "End", cell: (one) => ENDS[one.event] ?? one.event ?? DASH },
      { name: "reason", title: "Reason", cell: (one) => one.reason ?? DASH },
      { name: "host", title: "Host", cell: (one) => one.host ?? DASH },
      { name: "started", title: "Started", cell: (one) => moment(one.started_at) },
      { name: "took", title: "Took", number: true, cell: (one) => took(one) },
      { name: "exit", title: "Exit", number: true, cell: (one) => text(one.exit_code) },
      { name: "log", title: "Log", number: true, cell: (one) => (one.log_bytes == null ? (one.cleaned_at ? "removed" : DASH) : h("a", { href: logHref(this.#asked, one.attempt), download: true }, bytes(one.log_bytes))) },
    ];
    const rows = [...attempts].sort((a, b) => b.attempt - a.attempt);
    return section("attempts", "Attempts", null, table({ columns, rows, rowKey: (one) => one.attempt, caption: "Attempts" }));
  }
}

function logHref(job, attempt) {
  return jobPath(job, `/log/download?attempt=${encodeURIComponent(attempt)}`);
}

/** Between its start and its end; an attempt in flight has none. */
function took({ started_at: began, ended_at: ended }) {
  return began && ended ? duration((Date.parse(ended) - Date.parse(began)) / 1_000) : DASH;
}

function provenance({ attempts }, shown) {
  const { provenance: found } = attempts?.find((one) => String(one.attempt) === String(shown)) ?? {};
  if (!found) return null;
  const { recorded, ...known } = found;
  return section("provenance", "Provenance", null, recorded ? empty("Not recorded.") : facts(Object.entries(known).map(([name, value]) => [name, value && text(value)])));
}
