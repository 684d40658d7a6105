// Where the time of slots went in the last week: a column for each day and a bar for each method, by how attempts ended.

import { h } from "../dom.js";
import { DASH, duration, moment, number, percent, text } from "../format.js";
import { bar, empty, section } from "../parts.js";

const NAMES = {
  unknown_end: "unknown end",
  running: "running so far",
  idle_waited: "idle: jobs waited",
  idle_paused: "idle: paused",
  idle: "idle",
};
const KINDS = ["useful", "running", "pruned", "preempted", "superseded", "cancelled", "lost", "failed", "unknown_end", "idle_waited", "idle"];
const MOST_ROWS = 7;

export function week(ledger) {
  if (!ledger) return section("week", "This week", null, empty("Computing the usage of this week …"));
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
    days(ledger.days ?? [], kinds),
    h("ul", { class: "account" }, shown.map((row) => line(row, kinds, greatest))),
    h("ul", { class: "legend" }, kinds.map((kind) => legend(kind, ledger.total, total))),
    (ledger.notes ?? []).map((note) => h("p", { key: note, class: "quiet" }, note)),
  );
}

function days(listed, kinds) {
  const greatest = Math.max(...listed.map(({ hours }) => hours.total?.slots ?? 0));
  if (!(greatest > 0)) return null;
  return h("ol", { class: "days" }, listed.map(({ day, hours }, index) => column(day, hours, kinds, greatest, index === listed.length - 1)));
}

/** A day: what there was of slots is the height of its column. */
function column(day, hours, kinds, greatest, isToday) {
  const total = hours.total?.slots ?? 0;
  const parts = partsOf(hours, kinds);
  const name = isToday ? "today" : new Date(`${day}T12:00`).toLocaleDateString("en-GB", { weekday: "short" });
  const words = `${day}: ${parts.length ? parts.map(([, , title]) => title).join(", ") : "no slot was there"}`;
  const segments = parts.map(([kind, size, title]) => h("span", { key: kind, class: kind, title, vars: { "--share": (size / total).toFixed(5) } }));
  return h(
    "li",
    { key: day, title: day },
    h("span", { class: "room" }, h("span", { class: "stack", role: "img", "aria-label": words, vars: { "--share": (total / greatest).toFixed(5) } }, segments)),
    h("span", {}, name),
    h("small", {}, total > 0 ? time(total) : DASH),
  );
}

function partsOf(hours, kinds) {
  const occurring = kinds.filter((kind) => hours[kind]?.slots > 0);
  return occurring.map((kind) => [`u-${kind}`, hours[kind].slots, `${nameOf(kind)}: ${time(hours[kind].slots)}`]);
}

function isIdle(row) {
  return row.values.method === null && !row.hours.useful && !row.hours.running;
}

function line(row, kinds, greatest) {
  const { total } = row.hours;
  const parts = partsOf(row.hours, kinds);
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
