// Pods with their slots, the memory of their GPUs over the last hour, who else uses them, and outlets.

import { Loader } from "../api.js";
import { h } from "../dom.js";
import { ago, DASH, duration, mebibytes, secondsSince, text } from "../format.js";
import { empty, jobLink, problem, section, table } from "../parts.js";
import { same } from "../route.js";

const EVERY_MS = 5_000;
const WIDTH = 180;
const HEIGHT = 26;
const HOUR_S = 3_600;
// A longer silence between two samples is a gap: nobody looked meanwhile.
const GAP_S = 60;

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
    if (!data) return error ? problem(error) : empty("…");
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
      h("h3", {}, pod.pod, h("span", { class: `tag p-${pod.state}` }, pod.state)),
      h("p", { class: "quiet" }, words.filter(Boolean).join(" · ")),
      remarks([pod.stopped && `claims no more jobs: ${text(pod.stopped)}`, ...[pod.notes ?? []].flat()]),
      this.#slots(pod),
      outlets(pod),
    );
  }

  #slots({ pod, slots }) {
    if (!slots?.length) return null;
    const columns = [
      { name: "slot", title: "Slot", cell: nameOf },
      { name: "gpu", title: "GPU", cell: (slot) => slot.gpu_name ?? DASH, has: (slot) => slot.gpu_name },
      { name: "job", title: "Job", className: "job", cell: (slot) => (slot.job ? jobLink(this.query, slot.job) : h("span", { class: "quiet" }, "free")) },
      { name: "attempt", title: "Attempt", number: true, cell: (slot) => slot.attempt ?? "", has: (slot) => slot.attempt > 1 },
      { name: "memory", title: "Memory", number: true, cell: (slot) => (slot.memory_used_mib == null ? DASH : `${mebibytes(slot.memory_used_mib)} of ${mebibytes(slot.memory_total_mib)}`), has: (slot) => slot.memory_total_mib != null },
      { name: "hour", title: "Memory, last hour", cell: spark, has: (slot) => slot.memory?.length > 1 },
      { name: "idle", title: "Idle", cell: (slot) => slot.gpu_idle_s != null && h("strong", { class: "warn" }, `GPU idle ${duration(slot.gpu_idle_s)}`), has: (slot) => slot.gpu_idle_s != null },
      { name: "note", title: "Others on it", cell: (slot) => slot.note ?? "", className: "why", has: (slot) => slot.note },
    ].filter((column) => !column.has || slots.some(column.has));
    return table({ columns, rows: slots, rowKey: (slot) => `${slot.outlet} ${slot.slot} ${slot.job}`, caption: `Slots of ${pod}` });
  }
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

/** Used memory of a GPU over the last hour, as far as somebody looked. */
function spark({ memory, memory_total_mib: size, slot }) {
  if (!(memory?.length > 1)) return null;
  const end = Date.now() / 1_000;
  const runs = [[]];
  let before = null;
  for (const [at, used] of memory) {
    if (before !== null && at - before > GAP_S) runs.push([]);
    before = at;
    const left = Math.max(0, WIDTH * (1 - (end - at) / HOUR_S));
    runs.at(-1).push(`${left.toFixed(1)} ${(HEIGHT - 1 - (used / size) * (HEIGHT - 2)).toFixed(1)}`);
  }
  const paths = runs.map((run, n) => {
    const [from, to] = [run[0], run.at(-1)].map((point) => point.split(" ")[0]);
    return [
      h("path", { key: `a${n}`, class: "area", d: `M${from} ${HEIGHT}L${run.join("L")}L${to} ${HEIGHT}z` }),
      h("path", { key: `l${n}`, class: "line", d: `M${run.join("L")}` }),
    ];
  });
  const used = memory.map(([, one]) => one);
  const words = `${slot}: between ${mebibytes(Math.min(...used))} and ${mebibytes(Math.max(...used))} of ${mebibytes(size)}`;
  return h("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words }, h("title", {}, words), paths);
}
