/** Curves from the server: what is asked for within one moment goes as one request, and live steps are added. */
import { call, at } from "./api.js";
import { finite } from "./format.js";

/** @typedef {{ x: number[], min: (number | null)[], max: (number | null)[], mean: (number | null)[] }} Drawn */
/** @typedef {{ uuid: string, name: string, axis: string, from: number | null, to: number | null, buckets: number }} Wanted */

const TOGETHER_MS = 15;
const MOST_NAMES = 40; // of one request

/** @type {Map<string, { wanted: Wanted, put: (curve: Drawn) => void, fail: (error: unknown) => void }[]>} */
const waiting = new Map();

/** @param {Wanted} wanted @returns {Promise<Drawn>} empty where the run has no such metric */
export function curve(wanted) {
  const key = JSON.stringify({ ...wanted, name: "" });
  return new Promise((put, fail) => {
    const others = waiting.get(key);
    if (others) return void others.push({ wanted, put, fail });
    waiting.set(key, [{ wanted, put, fail }]);
    setTimeout(() => send(key), TOGETHER_MS);
  });
}

/** @param {string} key */
async function send(key) {
  const all = waiting.get(key) ?? [];
  waiting.delete(key);
  for (let first = 0; first < all.length; first += MOST_NAMES) {
    const some = all.slice(first, first + MOST_NAMES);
    const { uuid, axis, from, to, buckets } = some[0].wanted;
    const names = [...new Set(some.map((each) => each.wanted.name))].join(",");
    try {
      const { curves } = await call(at("/api/jobs/{uuid}/curves", { uuid }, { names, x: axis, from, to, buckets }));
      for (const { wanted, put } of some) put(drawable(curves[wanted.name], axis));
    } catch (error) {
      for (const { fail } of some) fail(error);
    }
  }
}

/** Times are seconds since the first value. @param {import("./types").Curve | undefined} found @param {string} axis @returns {Drawn} */
function drawable(found, axis) {
  if (!found) return { x: [], min: [], max: [], mean: [] };
  const x = /** @type {number[]} */ (found.x);
  return { x: axis === "time" ? x.map((each) => each - x[0]) : x, min: found.min.map(finite), max: found.max.map(finite), mean: found.mean.map(finite) };
}

/** The point of a new step; one of a step that is there counts instead of it. @param {Drawn} to @param {number} x @param {unknown} value */
export function add(to, x, value) {
  const last = to.x.length - 1;
  const found = finite(value);
  if (last >= 0 && x < to.x[last]) return;
  const place = last >= 0 && to.x[last] === x ? last : last + 1;
  to.x[place] = x;
  to.min[place] = to.max[place] = to.mean[place] = found;
}

/** Exponential average whose start is not drawn towards 0. @param {(number | null)[]} values @param {number} weight of what was before */
export function smoothed(values, weight) {
  let [sum, mass] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return sum / mass;
  });
}
