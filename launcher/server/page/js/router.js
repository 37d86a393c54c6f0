/** Addresses: one for each view, by the History API. */
import { signal } from "./vendor.js";

const read = () => ({ path: location.pathname, query: new URLSearchParams(location.search) });

/** Where the page is. */
export const place = signal(read());

addEventListener("popstate", () => (place.value = read()));

/** @param {string} address @param {{ replace?: boolean }} [how] `replace` leaves no entry in the history */
export function go(address, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", address);
  const before = place.value.path;
  place.value = read();
  if (place.value.path !== before) scrollTo(0, 0);
}

/** Another query at the same place; empty values are left out. @param {Record<string, string | number | null | undefined>} values */
export function ask(values) {
  const query = new URLSearchParams(place.value.query);
  for (const [name, value] of Object.entries(values)) {
    if (value === "" || value == null) query.delete(name);
    else query.set(name, String(value));
  }
  const text = query.toString();
  go(place.value.path + (text ? `?${text}` : ""), { replace: true });
}

addEventListener("click", (event) => {
  const link = event.target instanceof Element ? event.target.closest("a") : null;
  const plain = !(event.metaKey || event.ctrlKey || event.shiftKey || event.button || event.defaultPrevented);
  if (!link || !plain || link.target || link.origin !== location.origin || link.hasAttribute("download")) return;
  if (link.hash && link.pathname === location.pathname) return;
  if (link.pathname.startsWith("/api") || link.pathname.startsWith("/docs")) return;
  event.preventDefault();
  go(link.pathname + link.search);
});

/**
 * The parameters of a path that has the form of `pattern` ("/run/:uuid/step/:step"), else null.
 * @param {string} pattern @param {string} path @returns {Record<string, string> | null}
 */
export function match(pattern, path) {
  const [want, got] = [pattern.split("/"), path.replace(/\/$/, "").split("/")];
  if (want.length !== got.length) return null;
  /** @type {Record<string, string>} */
  const found = {};
  for (const [at, part] of want.entries()) {
    if (part.startsWith(":")) found[part.slice(1)] = decodeURIComponent(got[at]);
    else if (part !== got[at]) return null;
  }
  return found;
}
