// What may be meant by what is typed into the filter: keys, states, values of a key. A combobox with a list below it.

import { Loader } from "./api.js";
import { h } from "./dom.js";
import { count } from "./format.js";
import { STATES } from "./parts.js";

const LIST = "filter-words";
const MOST = 12;
const SOON_MS = 120;

export class Suggestions {
  #text = "";
  #isOpen = false;
  // Which of them the arrow keys have reached; -1: what is typed itself.
  #at = -1;
  #timer = null;

  /** `fieldId` is the field's, `choose(word)` applies a filter. */
  constructor(fieldId, page, choose) {
    this.fieldId = fieldId;
    this.page = page;
    this.choose = choose;
    this.loader = new Loader(() => page.draw());
  }

  get #field() {
    return document.getElementById(this.fieldId);
  }

  /** What the field needs to be a combobox; `onTyped` is called whenever its text changes. */
  props(onTyped) {
    const items = this.#items();
    const isShown = this.#isOpen && items.length > 0;
    return {
      role: "combobox",
      "aria-autocomplete": "list",
      "aria-expanded": String(isShown),
      "aria-controls": LIST,
      "aria-activedescendant": isShown && this.#at >= 0 && `${LIST}-${this.#at}`,
      oninput: () => {
        onTyped();
        this.#open();
      },
      onfocus: () => this.#open(),
      onclick: () => this.#open(),
      onblur: () => this.close(),
      onkeydown: (event) => this.#press(event, items),
    };
  }

  draw() {
    const items = this.#isOpen ? this.#items() : [];
    const options = items.map((item, index) =>
      h(
        "li",
        {
          key: item.word,
          id: `${LIST}-${index}`,
          role: "option",
          "aria-selected": String(index === this.#at),
          // The field keeps the focus.
          onmousedown: (event) => event.preventDefault(),
          onclick: () => this.#take(item),
        },
        h("span", {}, item.word),
        h("small", {}, item.note),
      ),
    );
    return h("ul", { id: LIST, class: "suggestions", role: "listbox", "aria-label": "Filters to choose from", hidden: !options.length }, options);
  }

  close() {
    clearTimeout(this.#timer);
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#at = -1;
    this.page.draw();
  }

  #open() {
    this.#isOpen = true;
    this.#at = -1;
    this.#text = this.#field?.value ?? "";
    clearTimeout(this.#timer);
    if (this.#text.trim()) this.#timer = setTimeout(() => this.#load(), SOON_MS);
    this.page.draw();
  }

  #load() {
    const { key, last } = taken(this.#text);
    this.loader.asked = this.#text;
    this.loader.load("api/values", key === null ? { text: last } : { key, text: last });
  }

  #press(event, items) {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key in steps && items.length) {
      event.preventDefault();
      if (!this.#isOpen) return this.#open();
      const places = items.length + 1;
      this.#at = ((this.#at + 1 + steps[event.key] + places) % places) - 1;
      this.page.draw();
    } else if (event.key === "Enter" && this.#isOpen && this.#at >= 0) {
      event.preventDefault();
      this.#take(items[this.#at]);
    } else if (event.key === "Escape") {
      event.preventDefault();
      if (this.#isOpen && items.length) this.close();
      else this.#field.blur();
    }
  }

  /** A whole filter is applied; the beginning of one is gone on with. */
  #take({ word, isWhole }) {
    if (isWhole) {
      this.choose(word);
      return;
    }
    this.#field.value = word;
    this.#field.focus();
    this.#open();
  }

  #items() {
    const { key, start, last } = taken(this.#text);
    const known = this.loader.asked === this.#text && !this.loader.error ? (this.loader.data?.values ?? []) : [];
    const jobs = ({ of }) => count(of, "job");
    if (key !== null) {
      const given = start.slice(start.indexOf("=") + 1).split(",");
      const others = known.filter((one) => !given.includes(one.where.slice(key.length + 1)));
      return others.slice(0, MOST).map((one) => ({ word: `${start}${one.where.slice(key.length + 1)}`, note: jobs(one), isWhole: true }));
    }
    const text = last.toLowerCase();
    const states = STATES.filter((state) => state.startsWith(text)).map((state) => ({ word: state, note: "state", isWhole: true }));
    const keys = this.page.live.keys.filter((one) => one.toLowerCase().includes(text)).map((one) => ({ word: `${one}=`, note: "key", isWhole: false }));
    const values = text ? known.map((one) => ({ word: one.where, note: jobs(one), isWhole: true })) : [];
    return [...(text ? [...states, ...keys] : [...keys, ...states]), ...values].slice(0, MOST);
  }
}

/** What is typed: the key before the sign, what stays as it is, and the last part, which is completed. */
function taken(text) {
  const found = /^\s*([^=]*?)!?=/.exec(text);
  if (!found) return { key: null, start: "", last: text.trim() };
  const comma = text.lastIndexOf(",");
  const end = Math.max(found[0].length, comma + 1);
  return { key: found[1].trim(), start: text.slice(0, end), last: text.slice(end).trim() };
}
