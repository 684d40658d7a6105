// Where the time of slots and GPUs went in the last week: a bar for each day, by how attempts ended.

import { h } from "../dom.js";
import { number, percent, weekday } from "../format.js";
import { empty, section } from "../parts.js";

const NAMES = {
  unknown_end: "unknown end",
  running: "running so far",
  idle_waited: "idle while jobs waited",
  idle: "idle",
};
const KINDS = ["useful", "running", "pruned", "preempted", "superseded", "cancelled", "lost", "failed", "unknown_end", "idle_waited", "idle"];

export function week(ledger) {
  const rows = ledger?.rows ?? [];
  if (!rows.length) return section("week", "This week", null, empty("No time of any slot in the last 7 days."));
  const totals = ledger.total ?? totalOf(rows);
  const kinds = KINDS.filter((kind) => totals[kind] > 0);
  const all = kinds.reduce((sum, kind) => sum + totals[kind], 0);
  const greatest = Math.max(...rows.map((row) => sumOf(row.hours)), 1e-9);
  const unit = ledger.unit ?? "slot-hours";
  return section(
    "week",
    "This week",
    h("span", { class: "tally" }, `${number(all, 3)} ${unit}`),
    h("ol", { class: "days" }, rows.map((row) => day(row, kinds, greatest, unit))),
    h(
      "ul",
      { class: "legend" },
      kinds.map((kind) =>
        h("li", { key: kind }, h("span", { class: `swatch u-${kind}`, "aria-hidden": "true" }), `${NAMES[kind] ?? kind} `, h("span", { class: "quiet" }, `${number(totals[kind], 3)} h, ${percent(totals[kind], all)}`)),
      ),
    ),
  );
}

function day(row, kinds, greatest, unit) {
  const parts = kinds.filter((kind) => row.hours[kind] > 0);
  const words = parts.map((kind) => `${NAMES[kind] ?? kind} ${number(row.hours[kind], 3)}`).join(", ");
  const total = sumOf(row.hours);
  const segments = parts.toReversed().map((kind) =>
    h("span", { key: kind, class: `u-${kind}`, vars: { "--share": (row.hours[kind] / greatest).toFixed(5) }, title: `${NAMES[kind] ?? kind}: ${number(row.hours[kind], 3)} ${unit}` }),
  );
  return h(
    "li",
    { key: row.label },
    h("span", { class: "column", role: "img", "aria-label": `${row.label}: ${words || "nothing"}` }, segments),
    h("span", { class: "of" }, total > 0 ? number(total, 2) : "0"),
    h("span", { class: "day" }, weekday(row.label)),
  );
}

function sumOf(hours) {
  return Object.values(hours).reduce((sum, one) => sum + one, 0);
}

function totalOf(rows) {
  const totals = {};
  for (const { hours } of rows) for (const [kind, one] of Object.entries(hours)) totals[kind] = (totals[kind] ?? 0) + one;
  return totals;
}
