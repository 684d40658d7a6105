// Numbers, times and sizes as people read them. Pure.

export const DASH = "–";

/** Seconds as "45 s", "12 min", "3 h 20 min", "4 d 2 h". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return DASH;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  const minutes = Math.round(s / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 48 * 60) return two(Math.floor(minutes / 60), "h", minutes % 60, "min");
  const hours = Math.round(s / 3600);
  return two(Math.floor(hours / 24), "d", hours % 24, "h");
}

function two(large, unit, small, smallUnit) {
  return small === 0 ? `${large} ${unit}` : `${large} ${unit} ${small} ${smallUnit}`;
}

/** A number with `digits` significant digits: 0.2157, 12 340, 3.1e-7. */
export function number(value, digits = 4) {
  if (value === null || value === undefined) return DASH;
  if (typeof value !== "number") return String(value);
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-4 || size >= 1e9)) return value.toExponential(Math.max(0, digits - 2));
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  if (size >= 10 ** (digits - 1)) return Math.round(value).toLocaleString("en-US");
  return String(Number(value.toPrecision(digits)));
}

/** What a key is called: one without a letter would be no heading. */
export function named(key) {
  return key === "" ? '""' : key;
}

/** The decimals with which a column of numbers is written: enough for `digits` significant ones of the greatest. */
export function decimalsFor(values, digits = 4) {
  const greatest = Math.max(0, ...values.filter(Number.isFinite).map(Math.abs));
  if (greatest === 0) return 0;
  return Math.min(8, Math.max(0, digits - 1 - Math.floor(Math.log10(greatest))));
}

export function fixed(value, decimals) {
  if (value === null || value === undefined) return DASH;
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size !== 0 && (size < 10 ** -Math.max(4, decimals) || size >= 1e9)) return value.toExponential(2);
  return value.toLocaleString("en-US", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });
}

export function percent(part, of) {
  if (!(of > 0)) return DASH;
  const share = (100 * part) / of;
  return part > 0 && share < 0.5 ? "< 1 %" : `${Math.round(share)} %`;
}

export function count(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString("en-US")} ${number === 1 ? noun : plural}`;
}

export function bytes(size) {
  if (size === null || size === undefined) return DASH;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; size >= 1000 && unit < units.length - 1; unit++) size /= 1000;
  return `${size >= 100 || unit === 0 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

export function mebibytes(size) {
  return size === null || size === undefined ? DASH : `${(size / 1024).toFixed(size < 10240 ? 1 : 0)} GiB`;
}

const CLOCK = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
const DAY = { day: "numeric", month: "short" };

/** A moment in local time: only the clock today, else with the day. */
export function moment(iso, now = Date.now()) {
  const at = typeof iso === "number" ? iso : Date.parse(iso ?? "");
  if (Number.isNaN(at)) return iso || DASH;
  const date = new Date(at);
  const clock = date.toLocaleTimeString("en-GB", CLOCK);
  if (date.toDateString() === new Date(now).toDateString()) return clock;
  const isNear = Math.abs(at - now) < 300 * 86_400_000;
  return `${date.toLocaleDateString("en-GB", isNear ? DAY : { ...DAY, year: "numeric" })} ${clock}`;
}

export function ago(iso, now = Date.now()) {
  const at = Date.parse(iso ?? "");
  return Number.isNaN(at) ? DASH : `${duration((now - at) / 1000)} ago`;
}

export function secondsSince(iso) {
  const at = Date.parse(iso ?? "");
  return Number.isNaN(at) ? null : Math.max(0, (Date.now() - at) / 1000);
}

/** A value of a parameter or a record as text: text as it is, everything else as JSON. */
export function text(value) {
  if (value === null || value === undefined) return DASH;
  return typeof value === "string" ? value : JSON.stringify(value);
}
