// A job's log: its end first, earlier parts when asked for, and what is written meanwhile.

import { get, isAborted, jobPath } from "../api.js";
import { h } from "../dom.js";
import { bytes } from "../format.js";
import { button, empty, problem, section } from "../parts.js";
import { Terminal } from "../terminal.js";

const PART_BYTES = 65_536;
const EVERY_MS = 2_000;
// A page that follows a log for days forgets its beginning; "load earlier" and the download have it.
const MOST_CHARACTERS = 4_000_000;
const NEAR_PX = 40;

export class Log {
  #job = null;
  #attempt = null;
  #isRunning = false;
  #isFollowing = true;
  #parts = [];
  #from = 0;
  #to = 0;
  #size = null;
  #isRemoved = false;
  #error = null;
  #controller = null;
  #askedAt = 0;
  #isAsking = false;
  #isAsked = false;

  constructor(page) {
    this.page = page;
    // One element with two texts: lines that stay, and the last ones, which a carriage return may still change.
    this.element = document.createElement("pre");
    this.element.className = "log";
    this.element.tabIndex = 0;
    this.element.setAttribute("aria-label", "Log");
    this.settled = document.createTextNode("");
    this.last = document.createTextNode("");
    this.element.append(this.settled, this.last);
    this.terminal = new Terminal();
  }

  show(job, attempt, isRunning) {
    const wasRunning = this.#isRunning;
    this.#isRunning = isRunning;
    if (job === this.#job && attempt === this.#attempt) {
      // What was written between the last look and the end.
      if (wasRunning && !isRunning) this.#askNewer();
      return;
    }
    this.#job = job;
    this.#attempt = attempt;
    this.#parts = [];
    this.#size = this.#error = null;
    this.#isAsked = false;
    this.#isFollowing = true;
    this.#write();
    this.#ask({ bytes: PART_BYTES }, (answer) => {
      this.#parts = [answer.text];
      this.#from = answer.from;
      this.#to = answer.to;
      this.#write();
      this.#toEnd();
    });
  }

  tick() {
    if (!this.#isRunning || document.hidden || !this.#isAsked || this.page.live.error) return;
    if (Date.now() - this.#askedAt >= EVERY_MS) this.#askNewer();
  }

  leave() {
    this.#controller?.abort();
  }

  #askNewer() {
    if (this.#isAsking) return;
    this.#ask({ from: this.#to, bytes: PART_BYTES }, (answer) => {
      if (answer.from < this.#to) {
        // The file is shorter than it was: another one.
        this.#parts = [];
        this.#from = answer.from;
        this.#write();
      } else if (answer.to <= this.#to) return;
      const isAtEnd = this.#isAtEnd();
      this.#parts.push(answer.text);
      this.#to = answer.to;
      if (this.#forget()) this.#write();
      else this.#append(answer.text);
      if (this.#isFollowing && isAtEnd) this.#toEnd();
      if (answer.to < answer.bytes) setTimeout(() => this.#askNewer(), 0);
    });
  }

  #askEarlier() {
    this.#ask({ before: this.#from, bytes: 2 * PART_BYTES }, (answer) => {
      const below = this.element.scrollHeight - this.element.scrollTop;
      this.#parts.unshift(answer.text);
      this.#from = answer.from;
      this.#write();
      this.element.scrollTop = this.element.scrollHeight - below;
    });
  }

  async #ask(params, take) {
    this.#controller?.abort();
    const controller = (this.#controller = new AbortController());
    this.#askedAt = Date.now();
    this.#isAsking = true;
    try {
      const answer = await get(jobPath(this.#job, "/log"), { attempt: this.#attempt, ...params }, controller.signal);
      this.#isAsking = false;
      this.#error = null;
      this.#isAsked = true;
      this.#size = answer.bytes;
      this.#isRemoved = answer.removed;
      take(answer);
    } catch (error) {
      if (isAborted(error)) return;
      this.#isAsking = false;
      this.#error = error;
    }
    this.page.draw();
  }

  #forget() {
    let length = this.#parts.reduce((sum, part) => sum + part.length, 0);
    if (length <= MOST_CHARACTERS) return false;
    const encoder = new TextEncoder();
    while (length > MOST_CHARACTERS / 2 && this.#parts.length > 1) {
      const part = this.#parts.shift();
      length -= part.length;
      this.#from += encoder.encode(part).length;
    }
    return true;
  }

  #write() {
    this.terminal = new Terminal();
    this.settled.data = this.last.data = "";
    for (const part of this.#parts) this.#append(part);
  }

  #append(text) {
    this.settled.appendData(this.terminal.write(text));
    const last = this.terminal.last;
    if (this.last.data !== last) this.last.data = last;
  }

  #isAtEnd() {
    const { scrollHeight, scrollTop, clientHeight } = this.element;
    return scrollHeight - scrollTop - clientHeight < NEAR_PX;
  }

  #toEnd() {
    this.element.scrollTop = this.element.scrollHeight;
  }

  draw() {
    const download = jobPath(this.#job, `/log/download?attempt=${encodeURIComponent(this.#attempt)}`);
    const follow = h("label", { class: "choice" }, h("input", { type: "checkbox", checked: this.#isFollowing, onchange: (event) => this.#follow(event.target.checked) }), "follow");
    const earlier = this.#from > 0 && button(`Load earlier (${bytes(this.#from)} before)`, () => this.#askEarlier());
    const extra = h(
      "div",
      { class: "choices" },
      h("span", { class: "quiet" }, this.#size === null ? "" : `attempt ${this.#attempt}, ${bytes(this.#size)}`),
      earlier,
      this.#isRunning && follow,
      this.#size > 0 && h("a", { href: download, download: true }, "download"),
    );
    const nothing = this.#isRemoved ? "`dispatcher clean` has removed it." : this.#isRunning ? "Nothing was written yet." : "There is none.";
    const content = this.#isAsked && !this.#size ? empty(nothing) : this.element;
    return section("log", "Log", extra, problem(this.#error), content);
  }

  #follow(isFollowing) {
    this.#isFollowing = isFollowing;
    if (isFollowing) this.#toEnd();
    this.page.draw();
  }
}
