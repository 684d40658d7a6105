// The filters of the address as chips, and a field that adds one; an error is shown beside them.

import { get } from "./api.js";
import { h } from "./dom.js";
import { button, STATES } from "./parts.js";
import { FILTERS, filtersOf, go, same } from "./route.js";
import { Suggestions } from "./suggestions.js";

const FIELD = "filter-field";
const ERROR = "filter-error";
const NAMES = { methods: (value) => `method ${value}`, failure: () => "one cause of failures", waiting: () => "one reason to wait" };

export class FilterBar {
  // What is wrong with what was typed last.
  #error = null;

  constructor(page) {
    this.page = page;
    this.suggestions = new Suggestions(FIELD, page, (word) => this.#add(word));
    document.addEventListener("keydown", (event) => focusBySlash(event));
  }

  draw() {
    const { address, rejected } = this.page;
    const chips = [...address].filter(([name, value]) => FILTERS.includes(name) && value).map(([name, value]) => this.#chip(name, value));
    const problems = [...new Set([...rejected.values(), this.#error].filter(Boolean))];
    return [
      chips.length > 0 && h("ul", { class: "chips", "aria-label": "What is shown" }, chips),
      h(
        "form",
        { class: "add", onsubmit: (event) => this.#submit(event) },
        h("input", {
          id: FIELD,
          name: "filter",
          type: "text",
          placeholder: chips.length ? "and …" : "Filter: lang=greek, seed=1,2, failed, part of an id …",
          "aria-label": "Add a filter: key=value, a state, or a part of an id",
          "aria-keyshortcuts": "/",
          "aria-invalid": Boolean(this.#error) && "true",
          "aria-describedby": problems.length > 0 && ERROR,
          autocomplete: "off",
          autocapitalize: "none",
          spellcheck: "false",
          ...this.suggestions.props(() => this.#typed()),
        }),
        h("kbd", { "aria-hidden": "true" }, "/"),
        this.suggestions.draw(),
      ),
      problems.length > 0 && h("div", { id: ERROR, class: "problem", role: "alert" }, problems.map((words) => h("p", { key: words }, words))),
    ];
  }

  #typed() {
    if (this.#error === null) return;
    this.#error = null;
    this.page.draw();
  }

  #chip(name, value) {
    const { address, rejected } = this.page;
    const rest = address.getAll(name).filter((one) => one !== value);
    const isOff = rejected.has(`${name} ${value}`);
    const words = NAMES[name]?.(value) ?? value;
    const isId = name === "where" && !value.includes("=");
    return h(
      "li",
      { key: `${name} ${value}`, class: isOff ? "chip is-off" : "chip" },
      h("span", { title: words }, isOff && h("b", {}, "not applied: "), isId && h("i", {}, "id "), words),
      button("×", () => go(same(address, { [name]: rest, after: null })), { "aria-label": `Remove the filter ${value}` }),
    );
  }

  #submit(event) {
    event.preventDefault();
    const word = event.target.elements.filter.value.trim();
    if (word) this.#add(word);
  }

  /** Adds a filter to the address if the server understands it; otherwise what was typed stays, with what is wrong. */
  async #add(text) {
    const { query } = this.page;
    const { states, wheres } = parsed(text);
    const known = query.getAll("where").filter((one) => !wheres.includes(one));
    const next = { where: [...known, ...wheres], ...(states.length ? { state: states.join(",") } : {}), after: null };
    const address = same(query, next);
    const field = document.getElementById(FIELD);
    this.suggestions.close();
    try {
      const params = filtersOf(new URLSearchParams(address.split("?")[1] ?? ""));
      params.set("limit", "1");
      await get("api/jobs", params);
    } catch (error) {
      this.#error = error.status === 400 ? error.message : `The filter is not applied: ${error.message}`;
      if (field.value.trim() === "") field.value = text;
      this.page.draw();
      return;
    }
    this.#error = null;
    field.value = "";
    go(address);
  }
}

/** `key=value` is one filter, with all its spaces; of other words each is a state or a part of an id. */
function parsed(text) {
  if (text.includes("=")) return { states: [], wheres: [text] };
  const words = text.split(/\s+/);
  const areStates = (word) => word.split(",").every((one) => STATES.includes(one));
  return {
    states: words.filter(areStates).flatMap((word) => word.split(",")),
    wheres: words.filter((word) => !areStates(word)),
  };
}

function focusBySlash(event) {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.target.closest?.("input, select, textarea, [contenteditable], dialog[open]")) return;
  event.preventDefault();
  const field = document.getElementById(FIELD);
  field.focus();
  field.select();
}
