/** Events as they come: a WebSocket that goes on where it was after a broken connection. */
import { signal, useEffect, useRef } from "./vendor.js";
import { token } from "./api.js";

/** @typedef {import("./types").Event} Event */

/** How the page's connection is: "", "live" or "retrying". */
export const connection = signal("");

const SHORTEST_MS = 500;
const LONGEST_MS = 20_000;
const BEGUN_ANEW = 1012; // another log is in the place of the one that was followed

/**
 * @param {string} path of the WebSocket
 * @param {(event: Event) => void} apply called once for each event, in order; one of the kind Open says that all was
 *   begun anew
 * @param {number} after the number of the last event that is known
 * @returns {() => void} ends it
 */
export function follow(path, apply, after) {
  let [seq, wait, ended] = [after, SHORTEST_MS, false];
  let timer = 0;
  /** @type {WebSocket} */
  let socket;

  function open() {
    const address = new URL(`${path}?after=${seq}`, location.href);
    address.protocol = address.protocol.replace("http", "ws");
    socket = new WebSocket(address, token.value ? [`bearer.${token.value}`] : []);
    socket.onopen = () => {
      connection.value = "live";
      wait = SHORTEST_MS;
    };
    socket.onmessage = ({ data }) => {
      const event = JSON.parse(data);
      if (event.kind === "Ping" || event.seq <= seq) return;
      seq = event.seq;
      apply(event);
    };
    socket.onclose = ({ code }) => {
      if (ended) return;
      if (code === BEGUN_ANEW) {
        seq = -1;
        apply({ kind: "Open", seq, attempt: 0, at: Date.now() / 1000 });
      }
      connection.value = "retrying";
      timer = setTimeout(open, wait * (0.75 + Math.random() / 2));
      wait = Math.min(wait * 2, LONGEST_MS);
    };
  }

  open();
  return () => {
    ended = true;
    clearTimeout(timer);
    socket.close();
    connection.value = "";
  };
}

/**
 * Follow while a component is shown.
 * @param {string | null} path null follows nothing
 * @param {(event: Event) => void} apply @param {number} after as it is when `path` is first given
 */
export function useLive(path, apply, after) {
  const newest = useRef(apply);
  newest.current = apply;
  const allowed = token.value;
  useEffect(() => (path ? follow(path, (event) => newest.current(event), after) : undefined), [path, allowed]);
}

/**
 * `act`, at once and then at most once in `ms`; the last request is never lost.
 * @param {() => void} act @param {number} ms
 */
export function atMostEvery(act, ms) {
  let [last, timer] = [0, 0];
  return () => {
    if (timer) return;
    const run = () => {
      [last, timer] = [Date.now(), 0];
      act();
    };
    const rest = last + ms - Date.now();
    if (rest <= 0) run();
    else timer = setTimeout(run, rest);
  };
}
