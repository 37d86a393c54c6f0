/** The checkpoints of a run: what each scores, whether it is whole, and how to take one along. */
import { html, useState } from "../vendor.js";
import { at, post, useGet } from "../api.js";
import { bytes, number } from "../format.js";
import { Action, Copy, Loaded, When } from "../ui.js";
import { useFresh } from "./overview.js";

/** @typedef {import("../types").Job} Job */

/** @param {{ job: Job }} props */
export function Checkpoints({ job }) {
  const answer = useGet(at("/api/jobs/{uuid}/checkpoints", { uuid: job.uuid }));
  useFresh(["Saved", "Ended"], answer.again, 2000);
  const [to, setTo] = useState("");
  const [chosen, choose] = useState(/** @type {number | null} */ (null));
  const [done, setDone] = useState("");
  const items = answer.data ?? [];
  const scores = [...new Set(items.flatMap((each) => Object.keys(each.eval_results ?? {})))];
  const send = async () => {
    const found = await post(at("/api/jobs/{uuid}/checkpoints/{step}/export", { uuid: job.uuid, step: Number(chosen) }), { to });
    setDone(found.path ?? found.to ?? to);
  };
  return html`<${Loaded} of=${answer} empty="No checkpoint has been saved yet.">
    <table class="stack"><thead><tr><th>Step</th>${scores.map((name) => html`<th class="right">${name}</th>`)}<th class="right">Size</th><th>Saved</th><th>State</th><th>Path</th><th></th></tr></thead>
      <tbody>${items.map((each) => html`<tr data-row><td class="num" data-label="step">${number(each.step)}</td>
        ${scores.map((name) => html`<td class="num right" data-label=${name}>${number(each.eval_results?.[name])}</td>`)}
        <td class="num right" data-label="size">${bytes(each.bytes)}</td><td class="dim" data-label="saved"><${When} at=${each.at} /></td>
        <td data-label="state">${[each.best && "best", each.newest && "newest", each.kept === false && "deleted"].filter(Boolean).join(", ") || "–"}</td>
        <td class="text"><code>${each.path}</code></td>
        <td><button type="button" onClick=${() => choose(each.step)}>Export</button></td></tr>`)}</tbody></table>
    ${chosen === null ? null : html`<form class="panel" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <h2>Export step ${number(chosen)}</h2>
      <label>to a folder of the server <input value=${to} placeholder="models/mine" onInput=${(/** @type {any} */ event) => setTo(event.target.value)} /></label>
      <${Action} kind="main" act=${send} disabled=${!to}>Export<//> ${done ? html`<span role="status">written to <code>${done}</code></span>` : null}
      <${Copy} label="command" text="rlrun checkpoints export ${job.run} --step ${chosen} --to hf --out ${to || "FOLDER"}" /></form>`}
  <//>`;
}
