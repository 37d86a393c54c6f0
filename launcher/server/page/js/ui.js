/** Parts that several views have. */
import { html, useEffect, useState } from "./vendor.js";
import { ago, date, duration, interval, number } from "./format.js";

/** @typedef {import("./types").Job} Job */

const LIVE = ["waiting", "running", "stopping", "pausing"];

/** Whether a run goes on. @param {Job | null | undefined} job */
export const isLive = (job) => !!job && LIVE.includes(job.status);

/** The name that a person gave it, else its folder's with the project. @param {Job} job */
export const nameOf = (job) => (!job.name || job.run.endsWith(`/${job.name}`) ? job.run : job.name) || job.uuid;

/** Its folder, where the name does not say it. @param {Job} job */
export const folderOf = (job) => (job.run && nameOf(job) !== job.run ? job.run : "");

/** @param {{ job: Job }} props */
export function Status({ job }) {
  const title = `${job.reason || job.status}${job.since ? `, since ${date(job.since)}` : ""}`;
  return html`<span class="status ${job.status}" title=${title}>${job.status}</span>`;
}

/** @param {{ job: Job }} props */
export function Progress({ job }) {
  if (!job.steps) return html`<span class="dim">–</span>`;
  return html`<span class="progress">
    <progress max="1" value=${job.progress ?? job.step / job.steps} aria-label="progress"></progress>
    <span class="num">${number(job.step)}<span class="dim">/${number(job.steps)}</span></span>
  </span>`;
}

/** @param {{ job: Job }} props */
export function Outcome({ job }) {
  return job.verdict
    ? html`<span class="verdict ${job.verdict.kind.replace(" ", "-")}" title=${job.verdict.line}>${job.verdict.kind}</span>`
    : html`<span class="dim">–</span>`;
}

/** @param {{ job: Job }} props */
export function HeldOut({ job }) {
  const found = job.held_out;
  if (!found?.last) return html`<span class="dim">–</span>`;
  return html`<span title="${found.last.label} at step ${found.last.step}">
    <span class="num">${interval(found.last)}</span>${found.first && found.first.step !== found.last.step
      ? html` <span class="dim num">from ${number(found.first.value)}</span>` : null}
  </span>`;
}

/** @param {{ job: Job }} props */
export function Alerts({ job }) {
  const found = /** @type {const} */ (["critical", "warn"]).filter((level) => job.alerts?.[level]);
  return html`${found.map((level) => html`<span class="alerts ${level}" title="${job.alerts[level]} ${level}">${job.alerts[level]}</span>`)}`;
}

/** @param {{ at: number | null | undefined }} props */
export const When = ({ at }) => html`<time title=${date(at)} dateTime=${at ? new Date(at * 1000).toISOString() : undefined}>${ago(at)}</time>`;

/** What is left of a run, or how long it took. @param {{ job: Job }} props */
export const Took = ({ job }) =>
  isLive(job) && job.eta_s != null
    ? html`<span class="num">${duration(job.eta_s)} <span class="dim">left</span></span>`
    : html`<span class="num dim">${duration(job.elapsed_s)}</span>`;

/** @param {{ error: import("./api").Refusal | null }} props */
export function Trouble({ error }) {
  if (!error) return null;
  if (!error.problems?.length) return html`<p class="trouble" role="alert">${error.message}</p>`;
  return html`<ul class="trouble" role="alert">
    ${error.problems.map((each) => html`<li><b>${each.where}</b> ${each.got}${each.fix ? html`; <span>${each.fix}</span>` : null}</li>`)}
  </ul>`;
}

/** The content where there is any, else what is missing. @param {{ of: { data: any, error: any }, empty?: string, children?: any }} props */
export function Loaded({ of, empty = "", children }) {
  if (of.error && !of.data) return html`<${Trouble} error=${of.error} />`;
  if (!of.data) return html`<p class="dim loading" role="status">Loading…</p>`;
  const items = Array.isArray(of.data) ? of.data : of.data.items;
  if (empty && items && !items.length) return html`<p class="empty">${empty}</p>`;
  return html`${of.error ? html`<${Trouble} error=${of.error} />` : null}${children}`;
}

/**
 * A button whose action may be refused; the refusal stands beside it.
 * @param {{ act: () => Promise<unknown>, children?: any, kind?: string, disabled?: boolean, title?: string }} props
 */
export function Action({ act, children, kind = "", disabled = false, title = "" }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (null));
  const run = async () => {
    setBusy(true);
    setError(null);
    await act().catch(setError);
    setBusy(false);
  };
  return html`<span class="action">
    <button type="button" class=${kind} disabled=${busy || disabled} title=${title} onClick=${run}>${children}</button>
    ${error ? html`<${Trouble} error=${error} />` : null}
  </span>`;
}

/** @param {{ page: number, size: number, total: number, turn: (page: number) => void }} props */
export function Pages({ page, size, total, turn }) {
  if (total <= size) return null;
  const last = Math.ceil(total / size);
  return html`<nav class="pages" aria-label="pages">
    <button type="button" disabled=${page <= 1} onClick=${() => turn(page - 1)}>Previous</button>
    <span class="num">${page} of ${last}</span>
    <button type="button" disabled=${page >= last} onClick=${() => turn(page + 1)}>Next</button>
  </nav>`;
}

/** A text that can be copied. @param {{ text: string, label: string }} props */
export function Copy({ text, label }) {
  const [done, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard?.writeText(text);
    setDone(true);
    setTimeout(() => setDone(false), 1500);
  };
  return html`<div class="copy">
    <code aria-label=${label}>${text}</code>
    <button type="button" onClick=${copy}>${done ? "Copied" : "Copy"}</button>
  </div>`;
}

/** The page's name in the window and in the history. @param {string} text */
export function useTitle(text) {
  useEffect(() => {
    document.title = text ? `${text} · rlrun` : "rlrun";
  }, [text]);
}

/** A value that changes when its source has been quiet for `ms`. @template T @param {T} value @param {number} ms @returns {T} */
export function useQuiet(value, ms) {
  const [quiet, set] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => set(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return quiet;
}
