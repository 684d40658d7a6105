// Where the time of slots went in the last week: a bar for each method, by how its attempts ended.

import { h } from "../dom.js";
import { duration, moment, number, percent, text } from "../format.js";
import { bar, empty, section } from "../parts.js";

const NAMES = {
  unknown_end: "unknown end",
  running: "running so far",
  idle_waited: "idle while jobs waited",
  idle: "idle",
};
const KINDS = ["useful", "running", "pruned", "preempted", "superseded", "cancelled", "lost", "failed", "unknown_end", "idle_waited", "idle"];
const MOST_ROWS = 7;

export function week(ledger) {
  if (!ledger) return section("week", "This week", null, empty("The account is being made …"));
  if (ledger.error) return section("week", "This week", null, h("p", { class: "problem" }, ledger.error));
  const total = ledger.total?.total ?? { slots: 0, gpus: 0 };
  if (!(total.slots > 0)) return section("week", "This week", null, empty("No slot was there in the last 7 days."));
  const kinds = KINDS.filter((kind) => ledger.total[kind]?.slots > 0);
  const rows = [...ledger.rows].sort((a, b) => isIdle(a) - isIdle(b) || b.hours.total.slots - a.hours.total.slots);
  const shown = rows.length > MOST_ROWS ? [...rows.slice(0, MOST_ROWS - 1), ...rows.filter(isIdle).slice(0, 1)] : rows;
  const greatest = Math.max(...shown.map((row) => row.hours.total.slots));
  const sums = [`${number(total.slots, 3)} slot-hours`, total.gpus > 0 && `${number(total.gpus, 3)} GPU-hours`, `until ${moment(ledger.until)}`].filter(Boolean);
  return section(
    "week",
    "This week",
    h("span", { class: "tally" }, sums.join(", ")),
    h("ul", { class: "account" }, shown.map((row) => line(row, kinds, greatest))),
    h("ul", { class: "legend" }, kinds.map((kind) => legend(kind, ledger.total, total))),
    ledger.notes?.length > 0 && h("p", { class: "quiet" }, ledger.notes.join(" ")),
  );
}

function isIdle(row) {
  return row.values.method === null && !row.hours.useful && !row.hours.running;
}

function line(row, kinds, greatest) {
  const { total } = row.hours;
  const parts = kinds.filter((kind) => row.hours[kind]?.slots > 0).map((kind) => [`u-${kind}`, row.hours[kind].slots, `${nameOf(kind)}: ${time(row.hours[kind].slots)}`]);
  const name = isIdle(row) ? "no job" : text(row.values.method);
  const words = parts.map(([, , title]) => title).join(", ");
  return h(
    "li",
    { key: name },
    h("span", { class: "name", title: name }, name),
    h("span", { class: "room" }, h("span", { class: "length", vars: { "--share": (total.slots / greatest).toFixed(5) } }, bar(parts, `${name}: ${words}`, "thick"))),
    h("span", { class: "number" }, time(total.slots)),
  );
}

function legend(kind, hours, total) {
  const swatch = h("span", { class: `swatch u-${kind}`, "aria-hidden": "true" });
  return h("li", { key: kind }, swatch, `${nameOf(kind)} `, h("span", { class: "quiet" }, percent(hours[kind].slots, total.slots)));
}

function time(hours) {
  return hours >= 1 ? `${number(hours, 3)} h` : duration(3_600 * hours);
}

function nameOf(kind) {
  return NAMES[kind] ?? kind;
}
