/** The checkpoints of a run: what each scores, whether it is whole, and how to take one along. */
import { html, useState } from "../vendor.js";
import { at, useGet } from "../api.js";
import { bytes, number } from "../format.js";
import { Copy, Loaded, When } from "../ui.js";
import { useFresh } from "./overview.js";

/** @typedef {import("../types").Job} Job */

/** @param {{ job: Job }} props */
export function Checkpoints({ job }) {
  const answer = useGet(at("/api/jobs/{uuid}/checkpoints", { uuid: job.uuid }));
  useFresh(["Saved", "Ended"], answer.again, 2000);
  const [chosen, choose] = useState(/** @type {number | null} */ (null));
  const items = answer.data ?? [];
  const scores = [...new Set(items.flatMap((each) => Object.keys(each.eval_results ?? {})))];
  return html`<${Loaded} of=${answer} empty="No checkpoint has been saved yet.">
    <table class="stack"><thead><tr><th>Step</th>${scores.map((name) => html`<th class="right">${name}</th>`)}<th class="right">Size</th><th>Saved</th><th>State</th><th>Path</th><th></th></tr></thead>
      <tbody>${items.map((each) => html`<tr data-row><td class="num" data-label="step">${number(each.step)}</td>
        ${scores.map((name) => html`<td class="num right" data-label=${name}>${number(each.eval_results?.[name])}</td>`)}
        <td class="num right" data-label="size">${bytes(each.bytes)}</td><td class="dim" data-label="saved"><${When} at=${each.at} /></td>
        <td data-label="state">${[each.best && "best", each.newest && "newest", each.kept === false && "deleted"].filter(Boolean).join(", ") || "–"}</td>
        <td class="text"><code>${each.path}</code></td>
        <td><button type="button" onClick=${() => choose(each.step)}>Export</button></td></tr>`)}</tbody></table>
    ${chosen === null ? null : html`<section class="panel"><h2>Export step ${number(chosen)}</h2>
      <${Copy} label="command" text="rlrun checkpoints export ${job.run} --step ${chosen} --to hf --out FOLDER" /></section>`}
  <//>`;
}
