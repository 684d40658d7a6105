// Pieces that several views show: states, bars, links to jobs, sections.

import { h, isNode } from "./dom.js";
import { count, DASH, text } from "./format.js";
import { href } from "./route.js";
import { KNOWN } from "./states.js";

export const STATES = Object.keys(KNOWN);

export function stateIcon(state) {
  const path = h("path", { d: (KNOWN[state] ?? KNOWN.queued).path });
  return h("svg", { class: `icon ${stateClass(state)}`, viewBox: "0 0 10 10", "aria-hidden": "true" }, path);
}

/** Whether a job in this state is not expected to change by itself. */
export function hasEnded(state) {
  return KNOWN[state]?.isEnded ?? false;
}

export function stateClass(state) {
  return `s-${STATES.includes(state) ? state : "queued"}`;
}

/** The icon and the word. */
export function stateWord(row) {
  const { state, desired } = typeof row === "string" ? { state: row } : row;
  return h("span", { class: "state" }, stateIcon(state), desired ? `${state} → ${desired}` : state);
}

/** States by number, in one order everywhere; those that no job has are left out. */
export function inOrder(counts) {
  return STATES.filter((state) => counts?.[state] > 0).map((state) => [state, counts[state]]);
}

export function statesText(counts) {
  return inOrder(counts).map(([state, number]) => `${number.toLocaleString("en-US")} ${state}`).join(", ");
}

/** A horizontal bar of parts `[class, size, name]`. What it shows must stand beside it in words, too. */
export function bar(parts, label, className = "") {
  const total = parts.reduce((sum, [, size]) => sum + size, 0) || 1;
  const segments = parts.map(([name, size, title]) =>
    h("span", { key: name, class: name, title, vars: { "--share": (size / total).toFixed(5) } }),
  );
  return h("span", { class: `bar ${className}`, role: "img", "aria-label": label }, segments);
}

export function stateBar(counts, className) {
  const parts = inOrder(counts).map(([state, number]) => [stateClass(state), number, `${number} ${state}`]);
  return bar(parts, statesText(counts), className);
}

export function jobLink(query, job, content = job) {
  return h("a", { class: "job", href: href(query, { job }), title: job }, content);
}

/** The jobs that a job needs and that were done again since it began; null for none. */
export function doneAgain({ newer_inputs: newer }) {
  const jobs = Object.entries(newer ?? {}).map(([job, attempt]) => `${job} (attempt ${attempt})`);
  return jobs.length ? `${jobs.slice(0, 5).join(", ")}${jobs.length > 5 ? ", …" : ""} done again since` : null;
}

/** A part of the page with a heading; `id` is also its key. */
export function section(id, title, extra, ...children) {
  const heading = h("header", {}, h("h2", { id: `${id}-title` }, title), extra);
  return h("section", { key: id, id, "aria-labelledby": `${id}-title` }, heading, children);
}

export function empty(words) {
  return h("p", { class: "quiet" }, words);
}

/** What went wrong with one part of a view, instead of it. */
export function problem(error) {
  return error && h("p", { class: "problem", role: "alert" }, error.message);
}

export function choice(label, name, value, options, onchange) {
  const listed = options.map((one) => (Array.isArray(one) ? one : [one, one]));
  const shown = listed.some(([key]) => key === value) ? listed : [[value, value], ...listed];
  const items = shown.map(([key, word]) => h("option", { key, value: key }, word));
  const select = h("select", { name, value, onchange: (event) => onchange(event.target.value) }, items);
  return h("label", { class: "choice", key: name }, h("span", {}, label), select);
}

export function button(words, onclick, props = {}) {
  return h("button", { type: "button", onclick, ...props }, words);
}

/** Names and values in two columns; rows without a value are left out. A value is text, or what `h` makes, or a list of that. */
export function facts(pairs) {
  const rows = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return h(
    "dl",
    { class: "facts" },
    rows.map(([name, value]) => h("div", { key: name }, h("dt", {}, name), h("dd", {}, isNode(value) || Array.isArray(value) ? value : text(value)))),
  );
}

/**
 * A table whose heads stay on the screen. `columns`: {name, title, cell(row), number, sort, label}; `rowKey(row)` tells rows
 * apart, `rowClass(row)` is a class of one. On a phone each row is a card, in which values have their `label`.
 */
export function table({ columns, rows, rowKey, rowClass, sort, onSort, caption, className = "" }) {
  const head = columns.map((column) => {
    const isSorted = sort && column.sort && (sort === column.sort || sort === `-${column.sort}`);
    const order = isSorted ? (sort.startsWith("-") ? "descending" : "ascending") : undefined;
    const next = order === "ascending" ? `-${column.sort}` : column.sort;
    const title = column.sort && onSort ? button(column.title, () => onSort(next), { class: "sort" }) : column.title;
    return h("th", { key: column.name, scope: "col", role: "columnheader", class: classOf(column), "aria-sort": order }, title);
  });
  const body = rows.map((row) =>
    h(
      "tr",
      { key: rowKey(row), role: "row", class: rowClass?.(row) },
      columns.map((column) => {
        const value = column.cell(row);
        return h("td", { key: column.name, role: "cell", class: [classOf(column), value === DASH && "is-none"].filter(Boolean).join(" ") || undefined, "data-label": column.label }, value);
      }),
    ),
  );
  // As cards, the parts of a table lose their roles unless these are said.
  return h(
    "div",
    { class: "scroll tall", tabindex: "0", role: "region", "aria-label": `Table: ${caption}` },
    h(
      "table",
      { class: `cards ${className}`, role: "table" },
      h("caption", { class: "unseen" }, caption),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
      h("tbody", { role: "rowgroup" }, body),
    ),
  );
}

/** A button with a list below it, which closes with Escape and with a click elsewhere. */
export function menu(words, ...children) {
  return h("details", { class: "menu", onkeydown: closeByEscape }, h("summary", { class: "button" }, words), h("div", { class: "sheet" }, children));
}

function closeByEscape(event) {
  const { currentTarget } = event;
  if (event.key !== "Escape" || !currentTarget.open) return;
  event.preventDefault();
  currentTarget.open = false;
  currentTarget.querySelector("summary").focus();
}

document.addEventListener("pointerdown", (event) => {
  for (const one of document.querySelectorAll("details.menu[open]")) if (!one.contains(event.target)) one.open = false;
});

function classOf(column) {
  return [column.number && "number", column.className].filter(Boolean).join(" ") || undefined;
}

/** The first names of a list of jobs as links, and how many more there are. */
export function firstJobs(query, jobs, total, most = 4) {
  const shownJobs = (jobs ?? []).slice(0, most);
  const rest = total - shownJobs.length;
  const links = shownJobs.map((job, number) => [number > 0 && ", ", jobLink(query, job)]);
  return h("span", { class: "names" }, links, rest > 0 && ` and ${count(rest, "other")}`);
}

/** Among the links of a picture one has the focus at a time, and the arrow keys go to the others. */
export function rove(event) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  const links = [...event.currentTarget.querySelectorAll("a")];
  const at = links.indexOf(document.activeElement);
  if (!step || at < 0) return;
  event.preventDefault();
  const next = links[(at + step + links.length) % links.length];
  links[at].setAttribute("tabindex", "-1");
  next.setAttribute("tabindex", "0");
  next.focus();
}
