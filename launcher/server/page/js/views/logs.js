/** The console log of a run, from its end; while the run goes on, what is written is added. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor.js";
import { at, call } from "../api.js";
import { bytes } from "../format.js";
import { Trouble, isLive } from "../ui.js";

/** @typedef {import("../types").Job} Job */

const SOME = 65_536;
const MOST = 2_000_000; // characters that are kept
const POLL_MS = 1500;

/** @param {{ job: Job }} props */
export function Logs({ job }) {
  const [log, setLog] = useState(/** @type {{ text: string, offset: number, next: number, size: number } | null} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [filter, setFilter] = useState("");
  const [follow, setFollow] = useState(true);
  const box = useRef(/** @type {HTMLPreElement | null} */ (null));
  const ask = (/** @type {number} */ offset, limit = SOME) => call(at("/api/jobs/{uuid}/logs", { uuid: job.uuid }, { offset, limit }));
  useEffect(() => {
    ask(-SOME).then(setLog, setError);
  }, [job.uuid]);
  const live = isLive(job);
  useEffect(() => {
    if (!live || !log) return;
    const timer = setTimeout(() => ask(log.next).then((more) => setLog({ ...log, text: (log.text + more.text).slice(-MOST), next: more.next, size: more.size }), () => setLog({ ...log })), POLL_MS);
    return () => clearTimeout(timer);
  }, [log, live]);
  useLayoutEffect(() => {
    if (follow && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [log, follow, filter]);
  const earlier = async () => {
    if (!log) return;
    const offset = Math.max(0, log.offset - SOME);
    const before = await ask(offset, Math.max(4, log.offset - offset));
    setFollow(false);
    setLog({ ...log, offset: before.offset, text: before.text + log.text });
  };
  if (!log) return error ? html`<${Trouble} error=${error} />` : html`<p class="dim loading" role="status">Loading…</p>`;
  const lines = filter ? log.text.split("\n").filter((line) => line.toLowerCase().includes(filter.toLowerCase())).join("\n") : log.text;
  return html`<div class="filters">
      <input data-search type="search" aria-label="filter lines" placeholder="Only lines with…  ( / )" value=${filter} onInput=${(/** @type {any} */ event) => setFilter(event.target.value)} />
      <label><input type="checkbox" checked=${follow} onChange=${() => setFollow(!follow)} /> stay at the end</label>
      ${log.offset > 0 ? html`<button type="button" onClick=${earlier}>Earlier</button>` : null}
      <span class="dim num">${bytes(log.size)}</span></div>
    <pre class="log" ref=${box} tabindex="0" role="log" aria-label="console log">${lines || "nothing has been written yet"}</pre>`;
}
