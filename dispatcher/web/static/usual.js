// What a view shows until its viewer chooses: keys with few values, and the first result. Pure.

export const STATES = "states";
// A matrix with more rows or columns is none that people read at a glance.
const MOST_ROWS = 60;
const MOST_COLUMNS = 12;
// What cells are taken over, and what every job has its own of.
const RARELY = new Set(["seed", "config_id", "job_id"]);

/** The keys in a list with commas; what is known with its commas is one key. */
export function keysOf(list, known) {
  const parts = list.split(",");
  const found = [];
  while (parts.length) {
    let end = parts.length;
    while (end > 1 && !known.includes(parts.slice(0, end).join(","))) end--;
    found.push(parts.splice(0, end).join(","));
  }
  return found.filter((key) => key !== "");
}

/** Rows and columns until the viewer chooses some: keys with few values, the most of them down. */
export function usual({ keys = [], metrics = [] }) {
  const fit = keys.filter(({ key, values }) => values > 1 && values <= MOST_ROWS && !RARELY.has(key));
  const some = fit.length ? fit : keys.slice(0, 1);
  const columns = some.filter(({ values }) => values <= MOST_COLUMNS).sort((a, b) => a.values - b.values)[0];
  const rows = some.filter((one) => one !== columns).sort((a, b) => b.values - a.values)[0] ?? columns;
  const isOne = rows === columns;
  return { rows: rows?.key ?? "method", columns: isOne ? "" : (columns?.key ?? ""), value: metrics[0] ?? STATES };
}
