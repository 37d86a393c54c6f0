/** Several runs over each other: what they came to, whether they differ, in which settings, and their curves. */
import { html, useEffect, useState } from "../vendor.js";
import { at, call, useGet } from "../api.js";
import { COLOURS, Chart } from "../charts.js";
import { number, typed } from "../format.js";
import { place } from "../router.js";
import { HeldOut, Loaded, Outcome, Progress, Status, Took, nameOf, useTitle } from "../ui.js";
import { ChartBar } from "./chartbar.js";
import { rank } from "./overview.js";

/** @typedef {import("../types").Job} Job */
/** @typedef {import("../types").Name} Name */

const ALPHA = 0.05;

export function Compare() {
  const jobs = place.value.query.get("jobs") ?? "";
  const uuids = jobs.split(",").filter(Boolean);
  useTitle(`${uuids.length} runs`);
  const answer = useGet(uuids.length > 1 ? at("/api/compare", {}, { jobs }) : null);
  const [found, setFound] = useState(/** @type {{ job: Job, names: Name[] }[] | null} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  useEffect(() => {
    Promise.all(uuids.map(async (uuid) => {
      const [job, names] = await Promise.all([call(at("/api/jobs/{uuid}", { uuid })), call(at("/api/jobs/{uuid}/names", { uuid }))]);
      return { job, names };
    })).then(setFound, setError);
  }, [jobs]);
  if (!uuids.length) return html`<h1>Compare</h1><p class="empty">Mark runs in <a href="/runs">the list</a>, then compare them here.</p>`;
  return html`<div class="head"><h1>Compare <span class="count num">${uuids.length} runs</span></h1></div>
    <${Loaded} of=${{ data: found, error }}>${found && html`
      <table class="stack"><thead><tr><th>Run</th><th>Algorithm</th><th>Status</th><th>Outcome</th><th>Held out</th><th>Progress</th><th>Time</th></tr></thead>
        <tbody>${found.map(({ job }, place) => html`<tr data-row><td><i class="key c${place % COLOURS}"></i> <a href="/run/${job.uuid}">${nameOf(job)}</a></td>
          <td data-label="algorithm">${job.algorithm}</td><td data-label="status"><${Status} job=${job} /></td><td data-label="outcome"><${Outcome} job=${job} /></td>
          <td data-label="held out"><${HeldOut} job=${job} /></td><td data-label="progress"><${Progress} job=${job} /></td><td data-label="time"><${Took} job=${job} /></td></tr>`)}</tbody></table>
      ${uuids.length > 1 ? html`<${Loaded} of=${answer}>${answer.data && html`<${Differences} found=${found} compared=${answer.data} />`}<//>` : null}
      <section aria-labelledby="curves"><h2 id="curves">Curves</h2><${Curves} found=${found} /></section>`}<//>`;
}

/** Of one run of each setting only the answers may differ; of several the setting may. @param {any} test */
function outcomeOf(test) {
  if (test.p_adjusted === null) return "not tested";
  if (Math.max(...test.runs) > 1) return test.significant ? "significant" : "not significant";
  return test.p_adjusted < ALPHA ? "their answers differ" : "may differ by chance";
}

/** @param {{ found: { job: Job }[], compared: any }} props */
function Differences({ found, compared }) {
  const letters = Object.keys(compared.runs);
  const settings = Object.entries(/** @type {Record<string, Record<string, unknown>>} */ (compared.settings));
  /** @type {any[]} */
  const tests = compared.tests;
  /** @type {Record<string, string[]>} */
  const runs = compared.runs;
  const single = Object.values(runs).every((side) => side.length === 1);
  // A1 and A2 are the runs of A, which differ by their seed alone
  const who = (/** @type {string} */ letter) => single
    ? html`<i class="key c${letters.indexOf(letter) % COLOURS}"></i> ${nameOf(found[letters.indexOf(letter)].job)}`
    : (runs[letter] ?? [runs[letter[0]][Number(letter.slice(1)) - 1]]).join(", ");
  return html`<section aria-labelledby="pairs"><h2 id="pairs">Do their held-out scores differ?</h2>
    ${tests.length ? html`<div class="wide"><table><thead><tr><th>Metric</th><th>Runs</th><th class="right">At step</th><th class="right">Scores</th><th class="right">Difference</th><th>95 % interval</th><th class="right">p</th><th>Test</th><th></th></tr></thead>
      <tbody>${tests.map((each) => html`<tr><td>${each.source || each.metric}</td><td>${who(each.a)} <span class="dim">and</span> ${who(each.b)}</td>
        <td class="num right">${[...new Set(each.steps)].map(number).join(", ")}</td><td class="num right">${number(each.found.a)}, ${number(each.found.b)}</td><td class="num right">${each.difference > 0 ? "+" : ""}${number(each.difference)}</td>
        <td class="num">${number(each.found.low)} to ${number(each.found.high)}</td><td class="num right">${number(each.p_adjusted ?? each.found.p)}</td>
        <td class="dim small">${each.found.method}, ${each.paired ? `${number(each.found.items)} rows, paired` : "not paired"}</td><td>${outcomeOf(each)}</td></tr>`)}</tbody></table></div>` : html`<p class="dim">They have no held-out rows in common.</p>`}
    ${[...compared.notes, ...compared.remarks].map((/** @type {string} */ each) => html`<p class="dim small">${each}</p>`)}</section>
    <section aria-labelledby="settings"><h2 id="settings">Settings that differ <span class="count num">${settings.length}</span></h2>
      ${settings.length ? html`<div class="wide"><table><thead><tr><th>Setting</th>${found.map(({ job }, place) => html`<th><i class="key c${place % COLOURS}"></i> ${nameOf(job)}</th>`)}</tr></thead>
        <tbody>${settings.map(([name, values]) => html`<tr><td><code>${name}</code></td>${letters.map((letter) => html`<td><code>${typed(values[letter] ?? "–")}</code></td>`)}</tr>`)}</tbody></table></div>`
        : html`<p class="dim">None.</p>`}</section>`;
}

/** @param {{ found: { job: Job, names: Name[] }[] }} props */
function Curves({ found }) {
  const [filter, setFilter] = useState("");
  /** @type {Map<string, Name>} */
  const names = new Map(found.flatMap(({ names }) => names.map((each) => [each.name, each])));
  const some = [...names.values()].filter((each) => `${each.name} ${each.label}`.toLowerCase().includes(filter.toLowerCase()))
    .sort((a, b) => rank(a.name) - rank(b.name) || (a.name < b.name ? -1 : 1));
  return html`<${ChartBar} filter=${filter} setFilter=${setFilter} />
    <div class="charts">${some.map((each) => html`<${Chart} key=${each.name} name=${each.name} label=${each.label || each.name} unit=${each.unit} meaning="${each.name}: ${each.meaning}" better=${each.better}
      runs=${found.flatMap(({ job, names }, place) => (names.some((one) => one.name === each.name) ? [{ uuid: job.uuid, label: nameOf(job), colour: place % COLOURS }] : []))} />`)}</div>`;
}
