/** Prompts that were answered at two steps: their answers side by side, and what changed. */
import { html } from "../vendor.js";
import { at, useGet } from "../api.js";
import { number } from "../format.js";
import { ask, place } from "../router.js";
import { Loaded } from "../ui.js";
import { AnswerText } from "./episode.js";

/** @typedef {import("../types").Job} Job */
/** @typedef {import("../types").Pair} Pair */

/** @param {{ job: Job }} props */
export function Prompts({ job }) {
  const asked = place.value.query.get("steps");
  const answer = useGet(at("/api/jobs/{uuid}/prompts", { uuid: job.uuid }, { steps: asked }));
  const { steps = [], pairs = [] } = answer.data ?? {};
  const shown = asked ? asked.split(",").map(Number) : [steps[0], steps[steps.length - 1]];
  const pick = (/** @type {number} */ which) => html`<label>step <select value=${shown[which]}
    onChange=${(/** @type {any} */ event) => ask({ steps: shown.map((step, index) => (index === which ? event.target.value : step)).join() })}>
    ${steps.map((each) => html`<option value=${each} selected=${each === shown[which]}>${each}</option>`)}</select></label>`;
  return html`<${Loaded} of=${answer}>
    ${steps.length ? html`<div class="filters">${pick(0)} ${pick(1)}</div>` : null}
    ${pairs.map((each) => html`<${Compared} pair=${each} />`)}
    ${pairs.length ? null : html`<p class="empty">${steps.length ? "These steps have no prompt in common." : "No prompt was answered at more than one step yet."}</p>`}<//>`;
}

/** @param {{ pair: Pair }} props */
function Compared({ pair }) {
  return html`<section data-row><pre class="prompt">${pair.prompt || "(empty)"}</pre>
    <div class="answers two">${pair.step.map((step, which) => html`<article class="answer">
      <h3>Step ${number(step)} <span class="num" title="mean score">${number(pair.score[which])}</span></h3>
      ${pair.changed.length && !pair.episodes[which].length ? html`<pre>${changedText(pair.changed, which ? "gone" : "new")}</pre>`
        : html`<${AnswerText} text=${pair.response[which]} episodes=${pair.episodes[which]} />`}</article>`)}</div></section>`;
}

/** The words of one side, those that the other lacks marked. @param {Pair["changed"]} changed @param {"gone" | "new"} without what the other side has */
function changedText(changed, without) {
  const mine = changed.filter(({ what }) => what !== without);
  return mine.map(({ what, words }, place) => html`${place ? " " : ""}${what === "same" ? words : html`<${what === "gone" ? "del" : "ins"}>${words}<//>`}`);
}
