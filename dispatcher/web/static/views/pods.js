// Pods with their slots, GPUs over the last hour and who else uses them, outlets.

import { Loader } from "../api.js";
import { h } from "../dom.js";
import { ago, DASH, duration, mebibytes, text } from "../format.js";
import { empty, jobLink, problem, section, table } from "../parts.js";

const EVERY_MS = 5_000;
const WIDTH = 240;
const HEIGHT = 36;
const HOUR_MS = 3_600_000;

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
    const pods = data.pods ?? [];
    return [
      problem(error),
      section("pods", "Pods", null, pods.length ? h("div", { class: "pods" }, pods.map((pod) => this.#pod(pod))) : empty("No pod was started yet.")),
      this.#gpus(data.gpus ?? []),
      this.#outlets(data.outlets ?? []),
    ];
  }

  #pod(pod) {
    const slots = pod.slots ?? [];
    const columns = [
      { name: "slot", title: "Slot", cell: (slot) => slot.slot },
      { name: "job", title: "Job", className: "job", cell: (slot) => (slot.job ? jobLink(this.query, slot.job.replace(/\/\d+$/, ""), slot.job) : h("span", { class: "quiet" }, slot.note ?? "free")) },
      { name: "elapsed", title: "Runs for", number: true, cell: (slot) => duration(slot.elapsed_s), has: (slot) => slot.elapsed_s != null },
      { name: "gpu", title: "GPU", number: true, cell: (slot) => (slot.gpu_percent == null ? DASH : `${slot.gpu_percent} %`), has: (slot) => slot.gpu_percent != null },
      { name: "memory", title: "Memory", number: true, cell: (slot) => `${mebibytes(slot.memory_used_mib)} of ${mebibytes(slot.memory_total_mib)}`, has: (slot) => slot.memory_total_mib != null },
      { name: "idle", title: "Idle", cell: (slot) => slot.gpu_idle_s != null && h("strong", { class: "warn" }, `GPU idle ${duration(slot.gpu_idle_s)}`), has: (slot) => slot.gpu_idle_s != null },
    ].filter((column) => !column.has || slots.some(column.has));
    const beat = pod.heartbeat_at ? `heartbeat ${ago(pod.heartbeat_at)}` : null;
    const words = [`on ${pod.host}`, pod.user, pod.up_s != null && `up ${duration(pod.up_s)}`, `${pod.busy} of ${pod.size} slots busy`, beat];
    return h(
      "article",
      { key: pod.pod, class: pod.alive ? "pod" : "pod is-ended" },
      h("h3", {}, pod.pod, h("span", { class: `tag p-${pod.state}` }, pod.state)),
      h("p", { class: "quiet" }, words.filter(Boolean).join(" · ")),
      notes(pod),
      slots.length > 0 && table({ columns, rows: slots, rowKey: (slot) => `${slot.slot} ${slot.job}`, caption: `Slots of ${pod.pod}` }),
    );
  }

  #gpus(gpus) {
    if (!gpus.length) return null;
    const columns = [
      { name: "gpu", title: "GPU", cell: (gpu) => [`${gpu.host}:${gpu.index} `, h("span", { class: "quiet" }, gpu.name)] },
      { name: "hour", title: "Utilisation, last hour", cell: (gpu) => spark(gpu) },
      { name: "now", title: "Now", number: true, cell: (gpu) => (gpu.percent?.at(-1) == null ? DASH : `${gpu.percent.at(-1)} %`) },
      { name: "memory", title: "Memory", number: true, cell: (gpu) => `${mebibytes(gpu.memory_mib?.at(-1))} of ${mebibytes(gpu.memory_total_mib)}` },
      { name: "job", title: "Job", className: "job", cell: (gpu) => (gpu.job ? jobLink(this.query, gpu.job.replace(/\/\d+$/, ""), gpu.job) : DASH) },
      { name: "others", title: "Others on it", cell: others, className: "why" },
    ];
    return section("gpus", "GPUs", null, table({ columns, rows: gpus, rowKey: (gpu) => `${gpu.host} ${gpu.index}`, caption: "GPUs" }));
  }

  #outlets(outlets) {
    if (!outlets.length) return null;
    const columns = [
      { name: "name", title: "Outlet", cell: (one) => one.name },
      { name: "kind", title: "Kind", cell: (one) => one.kind ?? DASH },
      { name: "state", title: "State", cell: (one) => one.state ?? DASH },
      { name: "busy", title: "In flight", number: true, cell: (one) => (one.size == null ? text(one.busy) : `${one.busy ?? 0} of ${one.size}`) },
      { name: "text", title: "Notes", cell: (one) => one.text ?? "", className: "why" },
    ];
    return section("outlets", "Outlets", null, table({ columns, rows: outlets, rowKey: (one) => `${one.name} ${one.pod ?? ""}`, caption: "Outlets" }));
  }
}

function notes(pod) {
  const listed = [pod.notes ?? []].flat().filter(Boolean);
  return listed.length > 0 && h("ul", { class: "remarks" }, listed.map((note) => h("li", { key: note }, text(note))));
}

function others({ others: processes }) {
  if (processes === null || processes === undefined) return DASH;
  if (!processes.length) return h("span", { class: "quiet" }, "nobody");
  return processes.map((one) => [one.user, one.memory_mib != null && mebibytes(one.memory_mib), one.command].filter(Boolean).join(", ")).join("; ");
}

/** Utilisation over the last hour; a gap where it is not known. */
function spark({ at, percent, host, index }) {
  const known = (percent ?? []).filter((value) => value !== null);
  if (!known.length) return h("span", { class: "quiet" }, "not known");
  const end = Date.now();
  const runs = [[]];
  percent.forEach((value, n) => {
    if (value === null) return void (runs.at(-1).length && runs.push([]));
    const left = Math.max(0, WIDTH * (1 - (end - Date.parse(at[n])) / HOUR_MS));
    runs.at(-1).push([left.toFixed(1), (HEIGHT - 1 - (value / 100) * (HEIGHT - 2)).toFixed(1)]);
  });
  const paths = runs.filter((run) => run.length).map((run, n) => {
    const line = run.map(([x, y]) => `${x} ${y}`).join("L");
    return [
      h("path", { key: `a${n}`, class: "area", d: `M${run[0][0]} ${HEIGHT}L${line}L${run.at(-1)[0]} ${HEIGHT}z` }),
      h("path", { key: `l${n}`, class: "line", d: `M${line}` }),
    ];
  });
  const mean = Math.round(known.reduce((sum, one) => sum + one, 0) / known.length);
  const words = `${host}:${index}: mean ${mean} %, least ${Math.min(...known)} %, most ${Math.max(...known)} %`;
  return h("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": words }, h("title", {}, words), paths);
}
