/** What stands above every view of one run: its name, state, actions and the other views; and the events that come. */
import { html, signal, useEffect, useState } from "../vendor.js";
import { at, call, post, useGet } from "../api.js";
import { atMostEvery, useLive } from "../live.js";
import { duration } from "../format.js";
import { go } from "../router.js";
import { Action, Alerts, Loaded, Outcome, Progress, Status, folderOf, isLive, nameOf, useTitle } from "../ui.js";

/** @typedef {import("../types").Job} Job */
/** @typedef {import("../types").Event} Event */

/** The newest event of the run that is shown; views that follow it listen. */
export const newest = signal(/** @type {Event | null} */ (null));

const STARTABLE = ["created"];
const RESUMABLE = ["paused", "stopped", "failed", "finished", "doubtful"];

/** @param {{ job: Job, changed: () => void }} props */
function Actions({ job, changed }) {
  const ask = (/** @type {"start" | "stop" | "pause" | "resume"} */ what) => async () => {
    await post(at(`/api/jobs/{uuid}/${what}`, { uuid: job.uuid }), what === "start" ? undefined : {});
    changed();
  };
  if (job.origin !== "rlrun") return html`<span class="dim">${job.origin}</span>`;
  return html`<div class="actions">
    ${STARTABLE.includes(job.status) ? html`<${Action} kind="main" act=${ask("start")}>Start<//>` : null}
    ${isLive(job) ? html`<${Action} act=${ask("pause")} title="Save a checkpoint, then end; resume goes on from it">Pause<//>
      <${Action} act=${ask("stop")} title="Save and end">Stop<//>` : null}
    ${RESUMABLE.includes(job.status) ? html`<${Action} act=${ask("resume")} title="Go on from the newest checkpoint">Resume<//>` : null}
    <button type="button" onClick=${() => go(`/launch?from=${job.uuid}`)} title="The form with this run's settings">Rerun with changes</button>
  </div>`;
}

/** @param {{ uuid: string, view: any, parameters: Record<string, string> }} props */
export function RunFrame({ uuid, view, parameters }) {
  const answer = useGet(at("/api/jobs/{uuid}", { uuid }));
  const [again] = useState(() => atMostEvery(() => last.again(), 2000));
  /** @type {{ again: () => void }} */
  const last = answer;
  useEffect(() => () => void (newest.value = null), [uuid]);
  const seq = useSeq(uuid);
  useLive(seq === null ? null : `/api/jobs/${encodeURIComponent(uuid)}/stream`, (event) => {
    newest.value = event;
    if (event.kind !== "Usage" && event.kind !== "Sample") again();
  }, seq ?? -1);
  const job = /** @type {Job | null} */ (answer.data);
  useTitle(job ? nameOf(job) : "Run");
  const base = `/run/${uuid}`;
  return html`<${Loaded} of=${answer}>${job && seq !== null && html`
    <div class="head run">
      <div class="who">
        <p class="crumbs"><a href="/runs">Runs</a>${folderOf(job) ? ` / ${folderOf(job)}` : ""}</p>
        <h1>${nameOf(job)}</h1>
        <p class="facts"><${Status} job=${job} /> ${job.verdict ? html`<${Outcome} job=${job} />` : null} <${Alerts} job=${job} />
          <span>${job.algorithm}</span>${job.model ? html`<span class="dim">${job.model}</span>` : null}
          <${Progress} job=${job} />
          <span class="num dim">${duration(job.elapsed_s)}${isLive(job) && job.eta_s != null ? `, ${duration(job.eta_s)} left` : ""}</span>
          ${job.attempt > 1 ? html`<span class="dim">attempt ${job.attempt}</span>` : null}
          ${isLive(job) && job.phase ? html`<span class="dim">${job.phase}</span>` : null}</p>
        ${job.reason && !["finished", "running"].includes(job.status) && !job.verdict?.line.includes(job.reason) ? html`<p class="reason">${job.reason}</p>` : null}
      </div>
      <${Actions} job=${job} changed=${answer.again} />
    </div>
    <nav class="tabs" aria-label="Views of this run">
      ${[["", "Overview"], [`/step/${job.step}`, "Step"], ["/answers", "Answers"], ["/prompts", "Prompts"], ["/machines", "Machines"],
        ["/checkpoints", "Checkpoints"], ["/logs", "Logs"], ["/settings", "Settings"]].map(([path, text]) => html`
        <a href=${base + path} aria-current=${text.toLowerCase() === current(parameters) ? "page" : undefined}>${text}</a>`)}
    </nav>
    <${view} job=${job} ...${parameters} />`}<//>`;
}

/** The number of the last event before any view asks for values, so that what comes later is not missed. @param {string} uuid */
function useSeq(uuid) {
  const [seq, setSeq] = useState(/** @type {number | null} */ (null));
  useEffect(() => {
    call(at("/api/jobs/{uuid}/curves", { uuid }, { buckets: 1 })).then((found) => setSeq(found.seq), () => setSeq(-1));
  }, [uuid]);
  return seq;
}

/** The tab that the address belongs to. @param {Record<string, string>} parameters */
function current(parameters) {
  const part = location.pathname.split("/")[3] ?? "overview";
  if (part === "group" || part === "answer") return "answers";
  return parameters.uuid && part;
}
