/** How values are written: three digits, the same everywhere. */

const THREE = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

/** Three significant digits; thousands whole. @param {unknown} value */
export function number(value) {
  if (typeof value !== "number") return value == null ? "–" : String(value);
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  if (size && (size < 1e-4 || size >= 1e9)) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  return size >= 1000 ? Math.round(value).toLocaleString("en") : THREE.format(value);
}

/** A number of an axis, with the digits that tell it from its neighbours. @param {number} value @param {number} step to the next */
export function tick(value, step) {
  let digits = 0;
  while (digits < 7 && Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) > 1e-6 * step * 10 ** digits) digits += 1;
  return Math.abs(value) >= 1e5 || digits > 5 ? number(value) : value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** `0:42`, `12:05`, `3:04:05`, `2 d 3 h`. @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const all = Math.max(0, Math.round(seconds));
  const [days, hours, minutes] = [Math.floor(all / 86400), Math.floor(all / 3600) % 24, Math.floor(all / 60) % 60];
  const two = (/** @type {number} */ n) => String(n).padStart(2, "0");
  if (days) return `${days} d ${hours} h`;
  return hours ? `${hours}:${two(minutes)}:${two(all % 60)}` : `${minutes}:${two(all % 60)}`;
}

/** Of a unit that binary sizes have, as on the command line. @param {number | null | undefined} count */
export function bytes(count) {
  if (count == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const place = Math.min(units.length - 1, Math.floor(Math.log2(Math.max(count, 1)) / 10));
  return `${number(count / 1024 ** place)} ${units[place]}`;
}

const DAY = new Intl.DateTimeFormat("sv", { dateStyle: "short", timeStyle: "short" });
const CLOCK = new Intl.DateTimeFormat("sv", { timeStyle: "medium" });

/** `2026-11-27 10:17`. @param {number | null | undefined} at Unix seconds */
export const date = (at) => (at ? DAY.format(at * 1000) : "–");

/** `10:17:05`. @param {number} at Unix seconds */
export const clock = (at) => CLOCK.format(at * 1000);

/** `3 min ago`. @param {number | null | undefined} at Unix seconds */
export function ago(at) {
  if (!at) return "–";
  const seconds = Date.now() / 1000 - at;
  if (seconds < 60) return "just now";
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  return seconds < 86400 ? `${Math.round(seconds / 3600)} h ago` : date(at).slice(0, 10);
}

/** `0.95 [0.92–0.97]`. @param {import("./types").HeldOut | null | undefined} one */
export function interval(one) {
  if (!one) return "–";
  const range = one.low == null || one.high == null ? "" : ` [${number(one.low)}–${number(one.high)}]`;
  return number(one.value) + range;
}

/** A setting's value as it is typed. @param {unknown} value @returns {string} */
export function typed(value) {
  if (value === null || value === undefined) return "null";
  if (Array.isArray(value)) return `[${value.map(typed).join(",")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, each]) => `${key}: ${typed(each)}`).join(", ")}}`;
  return typeof value === "number" ? String(value) : String(value);
}

/** A number, or null where there is none that can be drawn. @param {unknown} value */
export const finite = (value) => (typeof value === "number" && Number.isFinite(value) ? value : null);
