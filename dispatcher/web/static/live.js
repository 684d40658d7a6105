// What the workspace looks like now: one overview, kept up to date by asking for changes since a position.

import { get } from "./api.js";

const VISIBLE_MS = 2_000;
const HIDDEN_MS = 30_000;
const LONGEST_PAUSE_MS = 30_000;
// Later than that, an age is worth a warning although the server answers: it cannot read the workspace.
const OLD_S = 60;

export class Live {
  overview = null;
  position = null;
  error = null;
  failingSince = null;
  // Whether a pod runs. Where none does, as in a copy, the age is that of the newest time in the data.
  isLive = false;
  // Whether the overview is of some jobs only.
  isFiltered = false;
  #filters = new URLSearchParams();
  #dataAge = null;
  #answeredAt = null;
  #controller = null;
  #timer = null;

  /**
   * `onChange(change)`: an answer with news (`all`: of any job), or null when only the connection's state changed.
   * `onRejected(error)`: a filter makes no sense; true when other filters are followed now.
   */
  constructor(onChange, onRejected) {
    this.onChange = onChange;
    this.onRejected = onRejected;
    document.addEventListener("visibilitychange", () => document.hidden || this.askNow());
    addEventListener("online", () => this.askNow());
  }

  /** Begins anew when the filters differ. */
  follow(filters) {
    if (this.position !== null && filters.toString() === this.#filters.toString()) return;
    this.#filters = filters;
    this.position = null;
    this.askNow();
  }

  askNow() {
    clearTimeout(this.#timer);
    this.#controller?.abort();
    this.#ask();
  }

  /** Seconds since the workspace was last known to be read; null before the first answer. */
  get ageS() {
    return this.#dataAge === null ? null : this.#dataAge + (performance.now() - this.#answeredAt) / 1000;
  }

  /** Whether the answers come, but not from files that were read lately. */
  get isOld() {
    return this.isLive && this.ageS > OLD_S && this.failingSince === null && !document.hidden;
  }

  /** The keys that jobs have. */
  get keys() {
    return (this.overview?.keys ?? []).map((one) => one.key);
  }

  async #ask() {
    const controller = (this.#controller = new AbortController());
    try {
      const isFirst = this.position === null;
      const params = new URLSearchParams(this.#filters);
      if (!isFirst) params.set("since", this.position);
      const answer = await get(isFirst ? "api/overview" : "api/changes", params, controller.signal);
      // Another question was asked just when this one was answered.
      if (controller.signal.aborted) return;
      this.#take(answer, isFirst);
    } catch (error) {
      if (controller.signal.aborted) return;
      // What is shown stays until there is an answer for the other filters.
      this.position = error.filter ? null : this.position;
      if (error.filter && this.onRejected(error)) return;
      this.#failed(error);
    }
    this.#later();
  }

  #take(answer, isFirst) {
    const wasFailing = this.failingSince !== null || this.error !== null;
    this.error = this.failingSince = null;
    this.#answeredAt = performance.now();
    this.#dataAge = Math.max(0, (Date.parse(answer.at) - Date.parse(answer.data_at ?? answer.at)) / 1000) || 0;
    this.isLive = Boolean(answer.live);
    this.position = answer.position;
    this.isFiltered = this.#filters.size > 0;
    if (isFirst || answer.reset) this.overview = answer;
    else if (!answer.unchanged) this.overview = { ...this.overview, ...answer };
    this.onChange(answer.unchanged && !wasFailing ? null : { ...answer, all: isFirst || answer.reset || answer.jobs_more });
  }

  #failed(error) {
    this.error = error;
    this.failingSince ??= Date.now();
    // Another server at this address does not know the position.
    if (error.status === 400 || error.status === 404) this.position = null;
    // What is known is of other filters.
    if (this.position === null) this.overview = null;
    this.onChange(null);
  }

  #later() {
    const pause = this.failingSince === null ? 0 : Date.now() - this.failingSince;
    const wait = Math.max(document.hidden ? HIDDEN_MS : VISIBLE_MS, Math.min(pause / 2, LONGEST_PAUSE_MS));
    this.#timer = setTimeout(() => this.#ask(), wait);
  }
}
