/** Requests to the server: the token, problem documents, and values that components wait for. */
import { signal, useEffect, useRef, useState } from "./vendor.js";

/** @typedef {import("./types").Problem} Problem */
/** @typedef {keyof import("api").paths} Path of the server's OpenAPI */

const KEY = "rlrun-token";

/** Sent with every request; kept until the tab is closed. */
export const token = signal(sessionStorage.getItem(KEY) ?? "");
/** Whether the server has refused the token that is known. */
export const wantsToken = signal(false);

/** @param {string} text */
export function useToken(text) {
  sessionStorage.setItem(KEY, text);
  token.value = text;
  wantsToken.value = false;
}

/** An answer of 400 or above, or none. */
export class Refusal extends Error {
  /** @param {number} status @param {Problem[]} problems @param {string} text */
  constructor(status, problems, text) {
    super(text);
    this.status = status;
    this.problems = problems;
  }
}

/**
 * The address of a path with its parameters in place.
 * @template {Path} P
 * @param {P} path @param {Record<string, string | number>} [parameters]
 * @param {Record<string, string | number | boolean | null | undefined>} [query] what is empty is left out
 * @returns {import("./types").Address<P>}
 */
export function at(path, parameters = {}, query = {}) {
  const filled = path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(parameters[name]));
  const asked = Object.entries(query).filter(([, value]) => value !== "" && value != null && value !== false);
  return filled + (asked.length ? `?${new URLSearchParams(asked.map(([name, value]) => [name, String(value)]))}` : "");
}

/**
 * @template {Path} P
 * @param {import("./types").Address<P>} address @param {{ method?: string, body?: unknown, key?: string, signal?: AbortSignal }} [how]
 * @returns {Promise<import("./types").Got<P>>} the answer's JSON
 */
export async function call(address, { method = "GET", body, key, signal: stop } = {}) {
  /** @type {Record<string, string>} */
  const headers = { Accept: "application/json" };
  if (token.value) headers.Authorization = `Bearer ${token.value}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (key) headers["Idempotency-Key"] = key;
  const sent = body === undefined ? undefined : JSON.stringify(body);
  let answer;
  try {
    answer = await fetch(address, { method, headers, body: sent, signal: stop });
  } catch (error) {
    if (stop?.aborted) throw error;
    throw new Refusal(0, [], "the server does not answer");
  }
  if (answer.ok) return answer.json();
  if (answer.status === 401) wantsToken.value = true;
  const told = await answer.json().catch(() => ({}));
  throw new Refusal(answer.status, told.problems ?? [], told.detail ?? told.title ?? answer.statusText);
}

/**
 * @param {import("./types").Address<any>} address @param {unknown} [body] @param {string} [key] of a request that may be sent twice
 * @returns {Promise<any>}
 */
export const post = (address, body = {}, key) => call(address, { method: "POST", body, key });

/**
 * The answer to a GET, asked again when the address changes; until then the one before stays.
 * @template {Path} P
 * @param {import("./types").Address<P> | null} address null asks nothing
 * @returns {{ data: import("./types").Got<P> | null, error: Refusal | null, again: () => void }}
 */
export function useGet(address) {
  const [answer, put] = useState(/** @type {{ address: string | null, data: any, error: Refusal | null }} */ ({ address: null, data: null, error: null }));
  const [round, next] = useState(0);
  const last = useRef(answer);
  last.current = answer;
  const allowed = token.value;
  useEffect(() => {
    if (!address) return;
    const stop = new AbortController();
    call(address, { signal: stop.signal }).then(
      (data) => put({ address, data, error: null }),
      (error) => stop.signal.aborted || put({ address, data: last.current.address === address ? last.current.data : null, error }),
    );
    return () => stop.abort();
  }, [address, round, allowed]);
  return { data: answer.data, error: answer.error, again: () => next((count) => count + 1) };
}
