// The page's address: which view, which filters. All of it is in the query, so that a link shows the same to others.

export const FILTERS = ["where", "state", "methods", "failure", "waiting"];
// Which jobs were chosen, and which part of a list: settings that do not outlive a look at something else.
const CHOSEN = ["jobs", "from"];
const VIEWS = ["overview", "jobs", "job", "compare", "pods"];

export function current() {
  return new URLSearchParams(location.search);
}

export function viewOf(query) {
  if (query.get("job")) return "job";
  const view = query.get("view") ?? "overview";
  return VIEWS.includes(view) ? view : "overview";
}

/** Only what says which jobs. */
export function filtersOf(query) {
  const filters = new URLSearchParams();
  for (const [name, value] of query) if (FILTERS.includes(name) && value) filters.append(name, value);
  return filters;
}

/** The same without these filters, whose keys are `name value`. */
export function without(query, rejected) {
  return new URLSearchParams([...query].filter(([name, value]) => !rejected.has(`${name} ${value}`)));
}

/** An address: the filters of `query`, or `changes.where` and so on instead, and the other changes. */
export function href(query, changes = {}) {
  return address(filtersOf(query), changes);
}

/** The address of a view with the filters of `query` and the settings that it had before. */
export function again(query, before, view) {
  const settings = [...(before ?? [])].filter(([name]) => !FILTERS.includes(name) && !CHOSEN.includes(name));
  return address(new URLSearchParams([...filtersOf(query), ...settings]), { view });
}

/** The address of the same view with some of its settings changed; null removes one, "" is a choice of nothing. */
export function same(query, changes) {
  return address(new URLSearchParams(query), changes);
}

function address(query, changes) {
  for (const [name, value] of Object.entries(changes)) {
    query.delete(name);
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== null && one !== undefined) query.append(name, one);
  }
  if (query.get("view") === "overview") query.delete("view");
  const text = query.toString().replaceAll("%3D", "=").replaceAll("%2C", ",");
  return text ? `?${text}` : "./";
}

export function go(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  dispatchEvent(new Event("routechange"));
}

/** Calls `onChange` for every change of the address: links of the page, the back button, `go`. */
export function watch(onChange) {
  addEventListener("popstate", onChange);
  addEventListener("routechange", onChange);
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const link = event.target.closest?.("a[href]");
    if (!link || link.hasAttribute("target") || link.hasAttribute("download")) return;
    // The links of a drawing have no properties of a URL.
    const to = new URL(link.getAttribute("href"), location.href);
    if (to.origin !== location.origin || to.pathname !== location.pathname || to.hash) return;
    event.preventDefault();
    const isSameView = viewOf(to.searchParams) === viewOf(current());
    go(to.href);
    if (!isSameView) scrollTo(0, 0);
  });
}
