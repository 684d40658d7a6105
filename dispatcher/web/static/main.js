// The page: its header, the filters, the age of the data, and one view at a time.

import { h, render } from "./dom.js";
import { FilterBar } from "./filters.js";
import { duration, moment } from "./format.js";
import { Live } from "./live.js";
import { button } from "./parts.js";
import { again, current, filtersOf, href, viewOf, watch, without } from "./route.js";
import { Overview } from "./views/overview.js";

const VIEWS = {
  overview: async () => Overview,
  jobs: async () => (await import("./views/jobs.js")).Jobs,
  job: async () => (await import("./views/job.js")).Job,
  compare: async () => (await import("./views/compare.js")).Compare,
  pods: async () => (await import("./views/pods.js")).Pods,
};
const VIEW_EVERY_S = 5;
const NAVIGATION = [["overview", "Overview"], ["jobs", "Jobs"], ["compare", "Compare"], ["pods", "Pods"]];

class Page {
  // What is in the address, and what of it is shown: without filters that the server does not understand.
  address = current();
  query = current();
  // By filter, what is wrong with it.
  rejected = new Map();
  view = null;
  #name = null;
  // By view, its settings when it was shown last: chosen columns are kept.
  #last = new Map();
  #isDrawn = true;
  // What the view drew last: drawing the age again does not look at it.
  #content = null;
  #ticks = 0;

  constructor(root) {
    this.root = root;
    const onChange = (change) => {
      if (change) this.view?.changed?.(change);
      this.draw();
    };
    this.live = new Live(onChange, (error) => this.#reject(error));
    this.filters = new FilterBar(this);
    watch(() => this.route());
    setInterval(() => this.#tick(), 1_000);
    this.route();
  }

  get allowsChanges() {
    return Boolean(this.live.overview?.changes_allowed);
  }

  route() {
    this.rejected.clear();
    this.#follow();
  }

  /** Leaves out a filter that the server refuses, so that the others still count. False when it is none of these. */
  #reject({ filter, message }) {
    const value = filtersOf(this.query).getAll(filter.name)[filter.number];
    if (value === undefined) return false;
    this.rejected.set(`${filter.name} ${value}`, `${value} is not applied: ${message}`);
    this.#follow();
    return true;
  }

  async #follow() {
    this.address = current();
    this.query = without(this.address, this.rejected);
    this.live.follow(filtersOf(this.query));
    const name = viewOf(this.query);
    this.#last.set(name, this.query);
    if (name !== this.#name) {
      this.#name = name;
      this.view?.leave?.();
      this.view = null;
      this.draw();
      const View = await VIEWS[name]();
      if (this.#name !== name) return;
      this.view = new View(this);
    }
    this.view?.show(this.query);
    this.draw();
  }

  draw() {
    this.#content = null;
    this.#drawSoon();
  }

  /** Draws once, however often it is asked for at a time. */
  #drawSoon() {
    if (!this.#isDrawn) return;
    this.#isDrawn = false;
    queueMicrotask(() => {
      this.#isDrawn = true;
      this.#draw();
    });
  }

  #draw() {
    document.title = [this.view?.title, this.live.overview?.workspace, "dispatcher"].filter(Boolean).join(" · ");
    render(
      this.root,
      h("a", { class: "skip", href: "#content" }, "To the content"),
      this.#header(),
      this.#banner(),
      h("div", { key: "filters", class: "filters", role: "search", "aria-label": "Filters" }, this.filters.draw()),
      (this.#content ??= this.#main()),
    );
  }

  #main() {
    return h("main", { key: this.#name, id: "content", class: `view-${this.#name}`, tabindex: "-1" }, heading(this.#name), this.#drawView());
  }

  #drawView() {
    if (!this.view) return h("p", { class: "quiet" }, "…");
    try {
      return this.view.draw();
    } catch (error) {
      // The header, the filters and the other views must stay.
      console.error(error);
      return h("p", { class: "problem", role: "alert" }, `This view cannot be drawn, a fault of the page: ${error.message}`);
    }
  }

  #header() {
    const { overview } = this.live;
    const links = NAVIGATION.map(([view, title]) =>
      h("a", { key: view, href: again(this.query, this.#last.get(view), view), "aria-current": view === this.#name && "page" }, title),
    );
    return h(
      "header",
      { class: "top" },
      h("a", { class: "name", href: href(this.query), title: overview?.root }, overview?.workspace ?? "dispatcher"),
      h("nav", { "aria-label": "Views" }, links),
      h("span", { class: "age", id: "age" }, this.#age()),
    );
  }

  #age() {
    const { ageS, failingSince, isLive, isOld } = this.live;
    const dot = h("span", { class: `dot ${failingSince ? "is-off" : isOld ? "is-old" : ""}`, "aria-hidden": "true" });
    if (ageS === null) return [dot, "no data yet"];
    const words = isLive || ageS < 60 ? `data ${duration(ageS)} old` : `data of ${moment(Date.now() - ageS * 1_000)}: no pod runs`;
    return [dot, words, this.live.overview && !this.allowsChanges && h("span", { class: "quiet" }, "read-only")];
  }

  #banner() {
    const { error, failingSince, isOld, ageS } = this.live;
    if (isOld) return banner(`The server answers, but it last read the workspace ${duration(ageS)} ago.`);
    if (error === null) return null;
    const again = button("Try now", () => this.live.askNow());
    if (error.status === 401)
      return banner("The server does not know this browser any more: open the link that `dispatcher web` printed.", again);
    if (!error.isUnreachable) return banner(error.message, again);
    const age = ageS === null ? "" : ` What you see is from ${moment(Date.now() - ageS * 1_000)}.`;
    const text = error.status === 0 ? "" : ` (${error.message})`;
    return banner(`No answer from the server for ${duration((Date.now() - failingSince) / 1_000)}${text}.${age}`, again);
  }

  #tick() {
    this.view?.tick?.();
    if (document.hidden) return;
    // Durations in the view are good enough a few seconds late.
    if (++this.#ticks % VIEW_EVERY_S === 0) this.draw();
    else this.#drawSoon();
  }
}

/** What the view is called; that of a job has its id as a heading. */
function heading(name) {
  const [, title] = NAVIGATION.find(([view]) => view === name) ?? [];
  return title && h("h1", { key: "title", class: "unseen" }, title);
}

function banner(text, ...more) {
  return h("div", { key: "banner", id: "banner", class: "banner", role: "alert" }, h("span", {}, text), more);
}

new Page(document.getElementById("page"));
