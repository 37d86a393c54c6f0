/** All settings of a run: value, where it comes from, what the default is, and how another run differs. */
import { html, useState } from "../vendor.js";
import { at, useGet } from "../api.js";
import { typed } from "../format.js";
import { ask, place } from "../router.js";
import { Loaded, nameOf } from "../ui.js";

/** @typedef {import("../types").Job} Job */

/** Settings by name; where choices of a group differ, those of the algorithm. @param {any} schema @param {string} algorithm @returns {Map<string, import("../types").Setting>} */
function defaultsFor(schema, algorithm) {
  const found = new Map();
  for (const each of schema?.settings ?? []) {
    if (!found.has(each.name) || each.choice.includes(algorithm)) found.set(each.name, each);
  }
  return found;
}

/** Its file without the folder; what was typed is called an argument. @param {string} origin */
const shortened = (origin) => origin.replace(/^.*\/(?=spec\.yaml)/, "").replace(/^.*\/words\.txt: .*/, "argument");

/** @param {{ job: Job }} props */
export function Settings({ job }) {
  const other = place.value.query.get("other") ?? "";
  const [filter, setFilter] = useState("");
  const [all, setAll] = useState(false);
  const config = useGet(at("/api/jobs/{uuid}/config", { uuid: job.uuid }));
  const schema = useGet(at("/api/schema"));
  const jobs = useGet(at("/api/jobs", {}, { size: 200 }));
  const diff = useGet(other ? at("/api/jobs/{uuid}/config/diff", { uuid: job.uuid }, { other }) : null);
  const rows = config.data?.settings ?? [];
  const known = defaultsFor(schema.data, job.algorithm.toLowerCase());
  const same = (/** @type {any} */ each) => !each.group && (each.origin === "default" || typed(each.value) === typed(known.get(each.setting)?.default));
  const shown = rows.filter((each) => each.setting.includes(filter) && (all || filter || !same(each)));
  const differs = diff.data?.differs ?? [];
  return html`<div class="filters">
      <input data-search type="search" aria-label="filter settings" placeholder="Filter settings  ( / )" value=${filter} onInput=${(/** @type {any} */ event) => setFilter(event.target.value)} />
      <label><input type="checkbox" checked=${all} onChange=${() => setAll(!all)} /> also those at their default</label>
      <label>compare with <select value=${other} onChange=${(/** @type {any} */ event) => ask({ other: event.target.value })}>
        <option value="">no other run</option>
        ${(jobs.data?.items ?? []).filter((each) => each.uuid !== job.uuid).map((each) => html`<option value=${each.uuid} selected=${each.uuid === other}>${nameOf(each)}</option>`)}</select></label>
    </div>
    ${other ? html`<section aria-labelledby="diff"><h2 id="diff">Differences</h2><${Loaded} of=${diff}>${diff.data?.equal ? html`<p class="dim">The settings are equal.</p>` : null}
      <table class="stack"><thead><tr><th>Setting</th><th>This run</th><th>The other</th></tr></thead>
        <tbody>${differs.map((each) => html`<tr><td><code>${each.setting}</code></td><td data-label="this"><code>${side(each, "a")}</code></td><td data-label="other"><code>${side(each, "b")}</code></td></tr>`)}</tbody></table><//></section>` : null}
    <${Loaded} of=${config} empty="The settings of this run are not known.">
      <table class="stack settings"><thead><tr><th>Setting</th><th>Value</th><th>Default</th><th>From</th></tr></thead>
        <tbody>${shown.map((each) => html`<tr data-row><td title=${known.get(each.setting)?.help ?? ""}><code>${each.setting}</code></td><td class=${same(each) ? "dim" : ""} data-label="value"><code>${typed(each.value)}</code></td>
          <td class="dim" data-label="default"><code>${known.has(each.setting) ? typed(known.get(each.setting)?.default) : ""}</code></td><td class="dim" data-label="from">${shortened(each.origin)}</td></tr>`)}</tbody></table>
      ${shown.length ? null : html`<p class="empty">No setting matches.</p>`}
    <//>`;
}

/** Of a difference; a run may lack the setting. @param {any} row @param {"a" | "b"} which */
const side = (row, which) => (which in row ? typed(row[which]) : "–");
