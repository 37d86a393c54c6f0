/** One step: where its time went, its groups of answers, and all its numbers. */
import { html, useEffect, useState } from "../vendor.js";
import { at, useGet } from "../api.js";
import { number } from "../format.js";
import { go } from "../router.js";
import { Loaded, isLive } from "../ui.js";
import { GroupTable } from "./groups.js";
import { PhaseBar, phasesOf, secondsOf } from "./machines.js";

/** @typedef {import("../types").Job} Job */

/** @param {{ job: Job, step: string }} props */
export function Step({ job, step }) {
  const now = Number(step);
  const rows = useGet(at("/api/jobs/{uuid}/metrics", { uuid: job.uuid }, { names: "*", from: step, to: step }));
  const answer = useGet(at("/api/jobs/{uuid}/groups", { uuid: job.uuid }, { step, size: 1000 }));
  const [filter, setFilter] = useState("");
  const to = (/** @type {number} */ number) => `/run/${job.uuid}/step/${number}`;
  const groups = answer.data?.items ?? [];
  const metrics = Object.assign({}, ...(rows.data ?? []));
  const phases = phasesOf(metrics);
  const [typed, setTyped] = useState(step);
  useEffect(() => setTyped(step), [step]);
  return html`<div class="head">
      <h2>Step <span class="num">${number(now)}</span> <span class="dim">of ${number(job.step)}</span></h2>
      <form class="row" onSubmit=${(/** @type {any} */ event) => { event.preventDefault(); go(to(Number(typed))); }}>
        <a class="button ${now > 0 ? "" : "off"}" rel="prev" href=${to(Math.max(0, now - 1))} title="previous step ( [ )">←</a>
        <input class="short num" inputmode="numeric" aria-label="step" value=${typed} onInput=${(/** @type {any} */ event) => setTyped(event.target.value)} />
        <a class="button ${now < job.step ? "" : "off"}" rel="next" href=${to(Math.min(job.step, now + 1))} title="next step ( ] )">→</a>
      </form>
    </div>
    <${Loaded} of=${{ data: rows.data && answer.data, error: rows.error ?? answer.error }}>${answer.data && html`
      ${Object.keys(phases).length ? html`<section aria-labelledby="phases"><h3 id="phases">Time
        <span class="dim num">${number(secondsOf(phases))} s</span></h3>
        <${PhaseBar} phases=${phases} /></section>` : null}
      <section aria-labelledby="groups"><h3 id="groups">Groups <span class="count num">${number(answer.data.total)}</span></h3>
        ${groups.length ? html`<${GroupTable} job=${job} groups=${groups} />` : html`<p class="dim">The answers of this step were not kept${isLive(job) && now >= job.step ? ", or not yet" : ""}. <a href="/run/${job.uuid}/answers">Groups that were kept</a></p>`}
      </section>
      <section aria-labelledby="numbers"><h3 id="numbers">Metrics</h3>
        <input data-search type="search" aria-label="filter metrics" placeholder="Filter  ( / )" value=${filter} onInput=${(/** @type {any} */ event) => setFilter(event.target.value)} />
        <div class="columns">${Object.entries(metrics).filter(([name]) => name !== "step" && name.includes(filter)).map(([name, value]) => html`
          <div class="pair"><span>${name}</span><span class="num">${number(value)}</span></div>`)}</div>
      </section>`}<//>`;
}
