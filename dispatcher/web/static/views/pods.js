// Pods with their slots, their GPUs over the last hour, who else uses them, and outlets.

import { Loader } from "../api.js";
import { h } from "../dom.js";
import { ago, count, DASH, duration, mebibytes, secondsSince, text } from "../format.js";
import { empty, jobLink, problem, section, table } from "../parts.js";
import { same } from "../route.js";
import { spark } from "./spark.js";

const EVERY_MS = 5_000;

export class Pods {
  title = "Pods";
  #readAt = 0;

  constructor(page) {
    this.page = page;
    this.loader = new Loader(() => page.draw());
  }

  show(query) {
    this.query = query;
    if (this.#readAt === 0) this.#load();
  }

  tick() {
    if (Date.now() - this.#readAt > EVERY_MS && !document.hidden && !this.page.live.error) this.#load();
  }

  leave() {
    this.loader.stop();
  }

  #load() {
    this.#readAt = Date.now();
    this.loader.load("api/pods");
  }

  draw() {
    const { data, error } = this.loader;
    if (!data) return error ? problem(error) : empty("Reading the workspace …");
    const hasEnded = (pod) => pod.state === "ended";
    const ended = data.pods.filter(hasEnded);
    const showsEnded = this.query.get("ended") === "1";
    const shown = showsEnded ? data.pods : data.pods.filter((pod) => !hasEnded(pod));
    const toggle = ended.length > 0 && h("a", { href: same(this.query, { ended: showsEnded ? null : "1" }) }, showsEnded ? "hide those that have ended" : `${ended.length} ended`);
    return [
      problem(error),
      section("pods", "Pods", toggle, shown.length ? shown.map((pod) => this.#pod(pod)) : empty(ended.length ? "No pod runs." : "No pod was started yet.")),
    ];
  }

  #pod(pod) {
    const words = [
      `on ${pod.host}`,
      pod.user,
      pod.alive && pod.started_at && `up ${duration(secondsSince(pod.started_at))}`,
      pod.state !== "ended" && `${pod.busy} of ${pod.size} slots busy`,
      pod.heartbeat_at && `heartbeat ${ago(pod.heartbeat_at)}`,
      pod.methods?.length > 0 && `only ${pod.methods.join(", ")}`,
    ];
    return h(
      "article",
      { key: pod.pod, class: pod.alive ? "pod" : "pod is-ended" },
      h("h3", {}, pod.pod, h("span", { class: `tag p-${pod.state}` }, pod.state === "silent" ? `no sign of life for ${duration(secondsSince(pod.heartbeat_at))}` : pod.state)),
      h("p", { class: "quiet" }, words.filter(Boolean).join(" · ")),
      remarks([pod.stopped && `claims no more jobs: ${text(pod.stopped)}`, pod.slots_left_out > 0 && `${count(pod.slots_left_out, "slot")}: too many to show here, see dispatcher pods`, ...[pod.notes ?? []].flat()]),
      this.#slots(pod),
      outlets(pod),
    );
  }

  #slots({ pod, slots }) {
    if (!slots?.length) return null;
    const columns = [
      { name: "slot", title: "Slot", cell: nameOf },
      { name: "gpu", title: "GPU", cell: (slot) => (slot.gpu_name ? h("span", { title: slot.gpu_name }, shortName(slot.gpu_name)) : DASH), has: (slot) => slot.gpu_name },
      { name: "job", title: "Job", className: "job", cell: (slot) => (slot.job ? jobLink(this.query, slot.job) : h("span", { class: "quiet" }, "free")) },
      { name: "attempt", title: "Attempt", number: true, cell: (slot) => slot.attempt ?? "", has: (slot) => slot.attempt > 1 },
      { name: "use", title: "Use", number: true, cell: (slot) => use(slot), has: isGpu },
      { name: "hour", title: "Last hour", cell: ({ hour, slot }) => spark(hour?.percent, 100, (one) => `${one} %`, `${slot}: utilisation`), has: ({ hour }) => hour },
      { name: "memory", title: "Memory", number: true, cell: (slot) => (slot.memory_used_mib == null ? DASH : `${mebibytes(slot.memory_used_mib)} of ${mebibytes(slot.memory_total_mib)}`), has: (slot) => slot.memory_total_mib != null },
      { name: "memory hour", title: "Last hour", cell: ({ hour, slot, memory_total_mib: size }) => spark(hour?.memory_mib, size, mebibytes, `${slot}: memory`), has: ({ hour }) => hour },
      { name: "idle", title: "Idle", cell: (slot) => slot.gpu_idle_s != null && h("strong", { class: "warn" }, `GPU idle ${duration(slot.gpu_idle_s)}`), has: (slot) => slot.gpu_idle_s != null },
      { name: "others", title: "Others on it", cell: others, className: "why", has: (slot) => slot.others?.length > 0 || slot.others_unnamed > 0 },
      { name: "note", title: "Note", cell: (slot) => slot.note ?? "", className: "why", has: (slot) => slot.note },
    ].filter((column) => !column.has || slots.some(column.has));
    return table({ columns, rows: slots, rowKey: (slot) => `${slot.outlet} ${slot.slot} ${slot.job}`, caption: `Slots of ${pod}` });
  }
}

/** `H100` of `NVIDIA H100 80GB HBM3`: the memory has a column of its own. */
function shortName(name) {
  return name.replace(/^NVIDIA /, "").replace(/[ -]\d+ ?GB.*$/, "");
}

function isGpu(slot) {
  return Boolean(slot.gpu_name) || slot.memory_total_mib != null;
}

/** The utilisation in the last minute; the driver does not tell it of a GPU in MIG mode. */
function use(slot) {
  if (!isGpu(slot)) return "";
  return slot.gpu_percent == null ? h("span", { class: "quiet", title: "not known: the driver does not tell it with MIG, nor a pod in its first minute" }, "unknown") : `${slot.gpu_percent} %`;
}

/** Processes on a GPU that are of no job of this pod. */
function others({ others: users, others_unnamed: unnamed }) {
  const listed = (users ?? []).map((one) =>
    h("span", { key: one.pid, class: "user" }, h("b", {}, one.user || "unknown user"), one.used_mib == null ? "" : ` ${mebibytes(one.used_mib)}`, h("span", { class: "quiet" }, ` ${[one.program, `pid ${one.pid}`].filter(Boolean).join(", ")}`)),
  );
  return [listed, unnamed > 0 && h("span", { key: "unnamed", class: "user quiet" }, `${count(unnamed, "process", "processes")} that cannot be named from there`)];
}

function nameOf({ outlet, slot }) {
  return !outlet || outlet === "local" || outlet === slot ? slot : `${outlet} ${slot}`;
}

/** Configured hosts that a pod submits to; its own slots are in the table of slots. */
function outlets({ pod, outlets: all }) {
  const others = (all ?? []).filter((one) => one.outlet !== "local");
  const names = [...new Set(others.flatMap((one) => Object.keys(one)))].filter((name) => name !== "outlet" && others.some((one) => isShort(one[name])));
  if (!names.length) return null;
  const columns = [
    { name: "outlet", title: "Outlet", cell: (one) => one.outlet },
    ...names.map((name) => ({ name, title: name.replaceAll("_", " "), cell: (one) => (isShort(one[name]) ? text(one[name]) : DASH) })),
  ];
  return table({ columns, rows: others, rowKey: (one) => one.outlet, caption: `Outlets of ${pod}` });
}

function isShort(value) {
  return value !== null && value !== undefined && value !== "" && (typeof value !== "object" || (Array.isArray(value) && value.length < 4 && value.every((one) => typeof one !== "object")));
}

function remarks(notes) {
  const listed = notes.filter(Boolean);
  return listed.length > 0 && h("ul", { class: "remarks" }, listed.map((note) => h("li", { key: text(note) }, text(note))));
}
