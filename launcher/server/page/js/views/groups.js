/** Groups of answers to one prompt: the list of those that were kept, and one with its answers side by side. */
import { html, useState } from "../vendor.js";
import { at, useGet } from "../api.js";
import { number } from "../format.js";
import { ask, place } from "../router.js";
import { Loaded, Pages } from "../ui.js";
import { AnswerText, ShortAnswer, Signed } from "./episode.js";

/** @typedef {import("../types").Job} Job */
/** @typedef {import("../types").GroupRow} GroupRow */

const MOST = 300; // prompts

/** A score as a small square: empty at the least of the group, full at the greatest. @param {{ scores: import("../types").Num[] }} props */
function Scores({ scores }) {
  const numbers = scores.map((each) => (typeof each === "number" ? each : 0));
  const [low, high] = [Math.min(...numbers), Math.max(...numbers)];
  const share = (/** @type {number} */ value) => (high > low ? (value - low) / (high - low) : high > 0 ? 1 : 0);
  return html`<span class="scores" role="img" aria-label="scores ${numbers.map(number).join(", ")}">
    ${numbers.slice(0, 32).map((value) => html`<i style=${{ "--share": share(value) }} title=${number(value)}></i>`)}</span>`;
}

/** @param {{ job: Job, groups: GroupRow[] }} props */
export function GroupTable({ job, groups }) {
  return html`<table class="stack groups">
    <thead><tr><th>Step</th><th>Prompt</th><th>Source</th><th>Scores</th><th class="right">Mean</th><th class="right">Spread</th></tr></thead>
    <tbody>${groups.map((each) => html`<tr data-row key="${each.step}-${each.group}">
      <td class="num" data-label="step">${number(each.step)}</td>
      <td class="text"><a href="/run/${job.uuid}/group/${each.step}/${each.group}">${each.prompt || "(empty)"}</a></td>
      <td class="dim" data-label="source">${each.data_source}</td>
      <td data-label="scores"><${Scores} scores=${each.scores} /></td>
      <td class="num right" data-label="mean">${number(each.mean)}</td>
      <td class="num right" data-label="spread">${number(each.spread)}</td></tr>`)}</tbody>
  </table>`;
}

/** @param {{ job: Job }} props */
export function Groups({ job }) {
  const query = place.value.query;
  const page = Number(query.get("page") ?? 1);
  const [kind, setKind] = useState("training");
  return html`<div class="filters">
      <fieldset class="choice"><legend class="hidden">Answers</legend>
        ${["training", "held-out"].map((each) => html`<label><input type="radio" name="kind" checked=${kind === each} onChange=${() => setKind(each)} /> ${each}</label>`)}</fieldset>
      <label>step <input class="short num" inputmode="numeric" value=${query.get("step") ?? ""} placeholder="any"
        onChange=${(/** @type {any} */ event) => ask({ step: event.target.value, page: null })} /></label>
    </div>
    ${kind === "training" ? html`<${Training} job=${job} page=${page} step=${query.get("step")} />` : html`<${HeldOutAnswers} job=${job} step=${query.get("step")} />`}`;
}

/** @param {{ job: Job, page: number, step: string | null }} props */
function Training({ job, page, step }) {
  const answer = useGet(at("/api/jobs/{uuid}/groups", { uuid: job.uuid }, { step, page }));
  return html`<${Loaded} of=${answer} empty="No group of answers was kept: this algorithm samples none, or none has come yet.">
    <${GroupTable} job=${job} groups=${answer.data?.items ?? []} />
    <${Pages} page=${page} size=${answer.data?.size ?? 50} total=${answer.data?.total ?? 0} turn=${(/** @type {number} */ to) => ask({ page: to })} />
  <//>`;
}

/** @param {{ job: Job, step: string | null }} props */
function HeldOutAnswers({ job, step }) {
  const [wrong, setWrong] = useState(false);
  const answer = useGet(at("/api/jobs/{uuid}/samples", { uuid: job.uuid }, { step, wrong, limit: MOST }));
  const items = /** @type {any[]} */ (answer.data ?? []);
  return html`<label class="row"><input type="checkbox" checked=${wrong} onChange=${() => setWrong(!wrong)} /> only wrong ones</label>
    <${Loaded} of=${answer} empty="No answer matches.">
      <table class="stack"><thead><tr><th>Step</th><th>Prompt</th><th>Answer</th><th>Expected</th><th class="right">Score</th></tr></thead>
        <tbody>${items.map((each) => html`<tr data-row><td class="num" data-label="step">${number(each.step)}</td><td class="text">${each.prompt}</td><td class="text"><${ShortAnswer} text=${each.response} episodes=${each.episodes} /></td>
          <td class="text dim" data-label="expected">${each.ground_truth}</td><td class="num right" data-label="score">${number(each.score)}</td></tr>`)}</tbody></table>
    <//>`;
}

/** @param {{ job: Job, step: string, group: string }} props */
export function GroupView({ job, step, group }) {
  const answer = useGet(at("/api/jobs/{uuid}/groups/{step}/{group}", { uuid: job.uuid, step, group }));
  const found = answer.data;
  return html`<p class="crumbs"><a href="/run/${job.uuid}/step/${step}">Step ${number(Number(step))}</a> / group ${group}</p>
    <${Loaded} of=${answer}>${found && html`
      <h2>Group ${group} <span class="dim num">mean ${number(found.mean)}, spread ${number(found.spread)}</span></h2>
      <div class="prompt"><h3>Prompt <span class="dim">${found.data_source}</span></h3><pre>${found.prompt}</pre>
        ${found.ground_truth ? html`<h3>Expected</h3><pre>${found.ground_truth}</pre>` : null}</div>
      <div class="answers ${found.answers.some((each) => each.episodes.length) ? "two" : ""}">${found.answers.map((each, place) => html`<article class="answer" data-row>
        <h3><span>Answer ${place}</span><${Signed} value=${each.advantage} title="advantage" />
          <span class="num" title="score">${number(each.score)}</span></h3>
        ${Object.keys(each.parts ?? {}).length ? html`<dl class="parts">${Object.entries(each.parts).map(([part, value]) => html`<div><dt>${part}</dt><dd class="num">${number(value)}</dd></div>`)}</dl>` : null}
        <${AnswerText} ...${each} />
        ${each.tokens ? html`<a href="/run/${job.uuid}/answer/${step}/${group}/${place}">Tokens</a>` : html`<span class="dim small">no facts of its tokens were kept</span>`}
      </article>`)}</div>`}<//>`;
}
