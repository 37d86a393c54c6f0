/** One answer, token by token: how likely each was, how far trainer and sampler differ, and what is learned from it. */
import { html, useState } from "../vendor.js";
import { at, useGet } from "../api.js";
import { finite, number } from "../format.js";
import { ask, place } from "../router.js";
import { Loaded } from "../ui.js";

/** @typedef {import("../types").Job} Job */
/** @typedef {import("../types").Token} Token */

/** How each kind of fact becomes a shade between -1 and 1. @type {Record<string, { text: string, shade: (token: Token) => number, value: (token: Token) => unknown }>} */
const KINDS = {
  log_prob: { text: "log-probability", shade: (token) => clip((finite(token.log_prob) ?? 0) / 6), value: (token) => token.log_prob },
  ratio: { text: "ratio trainer / sampler", shade: (token) => clip(Math.log2(finite(token.ratio) || 1) * 2), value: (token) => token.ratio },
  advantage: { text: "advantage", shade: (token) => clip((finite(token.advantage) ?? 0) / 2), value: (token) => token.advantage },
  mask: { text: "what is learned", shade: (token) => (token.learns ? 0.6 : 0), value: (token) => (token.learns ? "learned" : "masked") },
};

const clip = (/** @type {number} */ value) => Math.max(-1, Math.min(1, value));

/** @param {{ job: Job, step: string, group: string, answer: string }} props */
export function Answer({ job, step, group, answer }) {
  const got = useGet(at("/api/jobs/{uuid}/tokens/{step}/{group}/{answer}", { uuid: job.uuid, step, group, answer }));
  const [chosen, choose] = useState(/** @type {number | null} */ (null));
  const kind = place.value.query.get("by") ?? "log_prob";
  const tokens = got.data ?? [];
  const shown = KINDS[kind] ?? KINDS.log_prob;
  const learned = tokens.filter((token) => token.learns).length;
  const one = chosen === null ? null : tokens[chosen];
  return html`<p class="crumbs"><a href="/run/${job.uuid}/step/${step}">Step ${number(Number(step))}</a> / <a href="/run/${job.uuid}/group/${step}/${group}">group ${group}</a> / answer ${answer}</p>
    <h2>Answer ${answer} ${got.data ? html`<span class="dim num">${number(tokens.length)} tokens, ${number(learned)} learned</span>` : null}</h2>
    <fieldset class="choice"><legend>Colour by</legend>
      ${Object.entries(KINDS).map(([name, each]) => html`<label><input type="radio" name="by" checked=${name === kind} onChange=${() => ask({ by: name })} /> ${each.text}</label>`)}</fieldset>
    <p class="legend small"><i class="swatch" style=${{ "--heat": -1 }}></i> ${kind === "log_prob" ? "unlikely" : "below"}
      <i class="swatch" style=${{ "--heat": 1 }}></i> ${kind === "log_prob" ? "likely is plain" : "above"} <span class="token masked">masked</span> not learned from</p>
    <${Loaded} of=${got}>
      <p class="tokens" onMouseOver=${(/** @type {any} */ event) => event.target.dataset.at && choose(Number(event.target.dataset.at))}>${tokens.map((token, index) => html`<span
        class="token ${token.learns ? "" : "masked"} ${index === chosen ? "chosen" : ""}" data-at=${index}
        style=${{ "--heat": token.learns || kind === "mask" ? shown.shade(token) : 0 }}
        onClick=${() => choose(index)} title="${number(shown.value(token))}">${visible(token.text)}</span>`)}</p>
      ${one ? html`<dl class="figures">
        <div><dt>token ${chosen}</dt><dd><code>${JSON.stringify(one.text)}</code></dd></div>
        <div><dt>log-probability</dt><dd class="num">${number(one.log_prob)}</dd></div>
        <div><dt>of the sampler</dt><dd class="num">${number(one.sampler_log_prob)}</dd></div>
        <div><dt>ratio</dt><dd class="num">${one.learns ? number(one.ratio) : "masked"}</dd></div>
        <div><dt>advantage</dt><dd class="num">${one.learns ? number(one.advantage) : "masked"}</dd></div></dl>` : html`<p class="dim">Point at a token to see its numbers.</p>`}
      <details><summary>As a table</summary>
        <table><thead><tr><th class="right">#</th><th>Token</th><th class="right">Log-probability</th><th class="right">Sampler</th><th class="right">Ratio</th><th class="right">Advantage</th></tr></thead>
        <tbody>${tokens.map((token, index) => html`<tr class=${token.learns ? "" : "dim"}><td class="num right">${index}</td><td><code>${JSON.stringify(token.text)}</code></td>
          <td class="num right">${number(token.log_prob)}</td><td class="num right">${number(token.sampler_log_prob)}</td>
          <td class="num right">${token.learns ? number(token.ratio) : "masked"}</td><td class="num right">${token.learns ? number(token.advantage) : "masked"}</td></tr>`)}</tbody></table>
      </details>
    <//>`;
}

/** Ends of lines are seen, and still break the line. @param {string} text */
const visible = (text) => text.replaceAll("\n", "↵\n") || "∅";
