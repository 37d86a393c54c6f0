/** Prompts that were answered at several steps, and the answers to one of them at two steps side by side. */
import { html, useState } from "../vendor.js";
import { at, useGet } from "../api.js";
import { number } from "../format.js";
import { ask, place } from "../router.js";
import { Loaded } from "../ui.js";
import { AnswerText } from "./episode.js";

/** @typedef {import("../types").Job} Job */

const MOST = 500;

/** @param {{ job: Job }} props */
export function Prompts({ job }) {
  const [filter, setFilter] = useState("");
  const answer = useGet(at("/api/jobs/{uuid}/prompts", { uuid: job.uuid }, { size: MOST }));
  const items = answer.data?.items ?? [];
  const some = items.filter((each) => each.prompt.includes(filter));
  return html`<div class="filters"><input data-search type="search" aria-label="filter prompts" placeholder="Filter prompts  ( / )" value=${filter}
      onInput=${(/** @type {any} */ event) => setFilter(event.target.value)} /></div>
    <${Loaded} of=${answer} empty="No prompt was answered at more than one step yet.">
      <table class="stack"><thead><tr><th>Prompt</th><th>Kind</th><th>Steps</th><th class="right">First score</th><th class="right">Last score</th></tr></thead>
        <tbody>${some.map((each) => html`<tr data-row><td class="text"><a href="/run/${job.uuid}/prompts/${each.digest}">${each.prompt || "(empty)"}</a></td>
          <td class="dim" data-label="kind">${each.kind}</td><td class="num dim" data-label="steps">${each.steps.length} <span class="small">(${number(each.steps[0])}–${number(each.steps.at(-1))})</span></td>
          <td class="num right" data-label="first">${number(each.scores[0])}</td><td class="num right" data-label="last">${number(each.scores.at(-1))}</td></tr>`)}</tbody></table>
    <//>`;
}

/** @param {{ job: Job, digest: string }} props */
export function Prompt({ job, digest }) {
  const steps = place.value.query.get("steps");
  const answer = useGet(at("/api/jobs/{uuid}/prompts/{digest}", { uuid: job.uuid, digest }, { steps }));
  const found = answer.data;
  const all = useGet(at("/api/jobs/{uuid}/prompts", { uuid: job.uuid }, { size: MOST }));
  const sides = found ? [found.steps[0], found.steps[found.steps.length - 1]] : [];
  const [a, b] = sides.map((each) => each.step);
  const known = all.data?.items.find((each) => each.digest === digest)?.steps ?? [a, b];
  const pick = (/** @type {number} */ which, /** @type {string} */ value) => ask({ steps: which ? `${a},${value}` : `${value},${b}` });
  return html`<p class="crumbs"><a href="/run/${job.uuid}/prompts">Prompts</a></p>
    <${Loaded} of=${answer}>${found && html`
      <div class="prompt"><h2>Prompt</h2><pre>${found.prompt}</pre>${found.ground_truth ? html`<h3>Expected</h3><pre>${found.ground_truth}</pre>` : null}</div>
      <div class="answers two">${sides.map(({ step, answers }, which) => html`<article class="answer">
        <h3><label>step <select value=${step} onChange=${(/** @type {any} */ event) => pick(which, event.target.value)}>
          ${known.map((each) => html`<option value=${each} selected=${each === step}>${each}</option>`)}</select></label>
          <span class="num" title="mean score">${number(mean(answers.map((each) => each.score)))}</span></h3>
        ${found.changed.length && !answers[0].episodes.length ? html`<pre>${changedText(found.changed, which ? "gone" : "new")}</pre>` : html`<${AnswerText} ...${answers[0]} />`}</article>`)}</div>`}<//>`;
}

/** @param {import("../types").Num[]} values */
function mean(values) {
  const numbers = values.filter((each) => typeof each === "number");
  return numbers.length ? numbers.reduce((sum, each) => sum + each, 0) / numbers.length : null;
}

/** The words of one side, those that the other lacks marked. @param {{ what: string, words: string }[]} changed @param {"gone" | "new"} without what the other side has */
function changedText(changed, without) {
  const mine = changed.filter(({ what }) => what !== without);
  return mine.map(({ what, words }, place) => html`${place ? " " : ""}${what === "same" ? words : html`<${what === "gone" ? "del" : "ins"}>${words}<//>`}`);
}
