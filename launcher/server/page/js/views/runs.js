/** All runs: where each is, what it came to, and which are compared. */
import { html, useEffect, useState } from "../vendor.js";
import { at, useGet } from "../api.js";
import { ask, place } from "../router.js";
import { Alerts, HeldOut, Loaded, Outcome, Pages, Progress, Status, Took, When, folderOf, nameOf, useTitle } from "../ui.js";

/** @typedef {import("../types").Job} Job */

const STATUSES = ["created", "waiting", "running", "paused", "finished", "doubtful", "failed", "stopped"];
const ORDERS = [["started", "newest first"], ["run", "name"], ["status", "status"], ["took", "duration"], ["step", "step"], ["held-out", "held-out score"]];
const MOST = 20;
const SIZE = 50;
const FRESH_MS = 5000; // 50 jobs are 80 KB

/** @param {{ name: string, all: string, values: string[] | string[][] }} props */
function Pick({ name, all, values }) {
  const now = place.value.query.get(name) ?? (all ? "" : values[0][0]);
  return html`<select aria-label=${name} value=${now} onChange=${(/** @type {any} */ event) => ask({ [name]: event.target.value, page: null })}>
    ${all ? html`<option value="">${all}</option>` : null}
    ${values.map((each) => {
      const [value, text] = Array.isArray(each) ? each : [each, each];
      return html`<option value=${value} selected=${value === now}>${text}</option>`;
    })}
  </select>`;
}

export function Runs() {
  useTitle("Runs");
  const query = place.value.query;
  const page = Number(query.get("page") ?? 1);
  const asked = Object.fromEntries(["search", "status", "sort"].map((name) => [name, query.get(name)]));
  const answer = useGet(at("/api/jobs", {}, { ...asked, page, size: SIZE }));
  const [marked, setMarked] = useState(/** @type {string[]} */ ([]));
  useEffect(() => {
    const timer = setInterval(() => document.hidden || answer.again(), FRESH_MS);
    return () => clearInterval(timer);
  }, []);
  const mark = (/** @type {string} */ uuid) =>
    setMarked((before) => (before.includes(uuid) ? before.filter((each) => each !== uuid) : [...before, uuid].slice(-MOST)));
  const jobs = answer.data?.items ?? [];
  return html`<div class="head">
      <h1>Runs ${answer.data ? html`<span class="count num">${answer.data.total}</span>` : null}</h1>
      <a class="button main" href="/launch">Launch a run</a>
    </div>
    <form class="filters" role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <input data-search type="search" aria-label="search runs" placeholder="Search name, model, tag  ( / )" value=${query.get("search") ?? ""}
        onInput=${(/** @type {any} */ event) => ask({ search: event.target.value, page: null })} />
      <${Pick} name="status" all="any status" values=${STATUSES} />
      <${Pick} name="sort" all="" values=${ORDERS} />
      ${marked.length ? html`<span class="marked">
        <a class="button ${marked.length > 1 ? "" : "off"}" href="/compare?jobs=${marked.join(",")}">Compare ${marked.length}</a>
        <button type="button" class="quiet" onClick=${() => setMarked([])}>Clear</button>
      </span>` : null}
    </form>
    <${Loaded} of=${answer} empty="No run matches. Start one from the form, or with rlrun train; it appears here by itself.">
      <table class="runs stack">
        <thead><tr><th><span class="hidden">Compare</span></th><th>Run</th><th>Algorithm</th><th>Status</th><th>Outcome</th>
          <th>Held out</th><th>Progress</th><th>Time</th><th>Started</th></tr></thead>
        <tbody>${jobs.map((job) => html`<tr key=${job.uuid} data-row>
          <td><input type="checkbox" aria-label="compare ${nameOf(job)}" checked=${marked.includes(job.uuid)} onChange=${() => mark(job.uuid)} /></td>
          <td class="name"><a href="/run/${job.uuid}">${nameOf(job)}</a> ${(job.tags ?? []).map((tag) => html`<button type="button" class="tag" onClick=${() => ask({ search: tag, page: null })}>${tag}</button>`)}
            ${folderOf(job) ? html`<div class="dim small">${folderOf(job)}</div>` : null}</td>
          <td data-label="algorithm">${job.algorithm || "–"}</td>
          <td data-label="status"><${Status} job=${job} /> <${Alerts} job=${job} /></td>
          <td data-label="outcome"><${Outcome} job=${job} /></td>
          <td data-label="held out"><${HeldOut} job=${job} /></td>
          <td data-label="progress"><${Progress} job=${job} /></td>
          <td data-label="time"><${Took} job=${job} /></td>
          <td data-label="started" class="dim"><${When} at=${job.started_at ?? job.created_at} /></td>
        </tr>`)}</tbody>
      </table>
      <${Pages} page=${page} size=${SIZE} total=${answer.data?.total ?? 0} turn=${(/** @type {number} */ to) => ask({ page: to })} />
    <//>`;
}
