// The filters of the address as chips, and a field that adds one.

import { h } from "./dom.js";
import { button, STATES } from "./parts.js";
import { FILTERS, go, same } from "./route.js";

export function filterBar(page) {
  const { query } = page;
  const { keys } = page.live;
  const chips = [...query]
    .filter(([name]) => FILTERS.includes(name))
    .map(([name, value]) => chip(query, name, value));
  return [
    h("ul", { class: "chips", "aria-label": "Filters" }, chips),
    h(
      "form",
      { class: "add", role: "search", onsubmit: (event) => add(event, query) },
      h("input", {
        name: "filter",
        list: "filter-words",
        placeholder: chips.length ? "and …" : "Filter: lang=greek, seed=1,2, failed …",
        "aria-label": "Add a filter: key=value, or a state",
        autocomplete: "off",
        spellcheck: "false",
      }),
      h("datalist", { id: "filter-words" }, [
        ...keys.map((key) => h("option", { key, value: `${key}=` })),
        ...STATES.map((state) => h("option", { key: state, value: state })),
      ]),
    ),
  ];
}

function chip(query, name, value) {
  const words = { where: value, state: value, methods: `method ${value}`, failure: "one cause of failures", waiting: "one reason to wait" };
  const rest = query.getAll(name).filter((one) => one !== value);
  const remove = () => go(same(query, { [name]: rest, after: null }));
  return h(
    "li",
    { key: `${name} ${value}`, class: "chip" },
    h("span", {}, words[name]),
    button("×", remove, { "aria-label": `Remove the filter ${value}` }),
  );
}

function add(event, query) {
  event.preventDefault();
  const input = event.target.elements.filter;
  const word = input.value.trim();
  if (!word) return;
  const states = word.split(/[\s,]+/);
  const isState = states.every((one) => STATES.includes(one));
  // Whatever else it is, the server says what is wrong with it.
  const name = isState ? "state" : "where";
  const known = query.getAll(name).filter((one) => isState === false && one !== word);
  go(same(query, { [name]: [...known, isState ? states.join(",") : word], after: null }));
  input.value = "";
}
