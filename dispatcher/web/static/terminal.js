// Text with control characters as a terminal would show it: progress bars take one line, colours are left out. Pure.

// How many of the last lines can still change: bars that move the cursor up are rarely higher.
const CHANGEABLE = 50;
const FARTHEST = 1_000;
const TOKENS = /\r\n|[\r\n\b]|\x1b\[([0-9;?]*)([@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]|[\x00-\x07\x0b-\x1a\x1c-\x1f\x7f]/g;
// A sequence that the end of a part has cut.
const INCOMPLETE = /\x1b(?:\[[0-9;?]*|\][^\x07\x1b]{0,200}|[ -/]*)?$|\r$/;

export class Terminal {
  #lines = [""];
  #row = 0;
  #column = 0;
  #kept = "";

  /** Writes `text`; returns the lines that cannot change any more. */
  write(text) {
    text = this.#kept + text;
    this.#kept = INCOMPLETE.exec(text)?.[0] ?? "";
    text = text.slice(0, text.length - this.#kept.length);
    let at = 0;
    for (const match of text.matchAll(TOKENS)) {
      this.#put(text.slice(at, match.index));
      at = match.index + match[0].length;
      this.#control(match[0], match[1], match[2]);
    }
    this.#put(text.slice(at));
    return this.#settle();
  }

  /** The lines that can still change. */
  get last() {
    return this.#lines.join("\n");
  }

  #put(words) {
    if (words === "") return;
    const line = this.#lines[this.#row];
    const before = line.length < this.#column ? line.padEnd(this.#column) : line.slice(0, this.#column);
    this.#lines[this.#row] = before + words + line.slice(this.#column + words.length);
    this.#column += words.length;
  }

  #control(token, parameter, final) {
    // A hostile count must not make a million lines.
    const by = Math.min(Number(parameter) || 1, FARTHEST);
    if (token === "\n" || token === "\r\n") this.#newLine();
    else if (token === "\r") this.#column = 0;
    else if (token === "\b") this.#column = Math.max(0, this.#column - 1);
    else if (final === "K") this.#erase(Number(parameter) || 0);
    else if (final === "A") this.#row = Math.max(0, this.#row - by);
    else if (final === "B") this.#row = Math.min(this.#row + by, this.#lines.length - 1);
    else if (final === "G") this.#column = by - 1;
    else if (final === "C") this.#column = Math.min(this.#column + by, FARTHEST);
    else if (final === "D") this.#column = Math.max(0, this.#column - by);
  }

  #newLine() {
    this.#column = 0;
    this.#row += 1;
    if (this.#row === this.#lines.length) this.#lines.push("");
  }

  #erase(how) {
    const line = this.#lines[this.#row];
    if (how === 0) this.#lines[this.#row] = line.slice(0, this.#column);
    else if (how === 1) this.#lines[this.#row] = " ".repeat(this.#column) + line.slice(this.#column);
    else this.#lines[this.#row] = "";
  }

  #settle() {
    const number = Math.min(this.#lines.length - CHANGEABLE, this.#row);
    if (number <= 0) return "";
    this.#row -= number;
    return `${this.#lines.splice(0, number).join("\n")}\n`;
  }
}
