/** A run: what it came to and how that is known, what is wrong, then its curves. */
import { effect, html, useEffect, useState } from "../vendor.js";
import { at, useGet } from "../api.js";
import { Chart } from "../charts.js";
import { interval, number } from "../format.js";
import { atMostEvery } from "../live.js";
import { Loaded, Trouble, isLive } from "../ui.js";
import { ChartBar } from "./chartbar.js";
import { newest } from "./frame.js";

/** @typedef {import("../types").Job} Job */
/** @typedef {import("../types").Finding} Finding */
/** @typedef {import("../types").Name} Name */

/** What is looked at first, in this order; a name that ends with a slash is the beginning of names. */
export const TELLING = ["val-core/", "val/", "critic/score/mean", "critic/rewards/mean", "train/loss", "loss", "actor/pg_loss", "actor/entropy",
  "actor/ppo_kl", "actor/kl_loss", "actor/grad_norm", "train/grad_norm", "response_length/mean", "critic/frac_reward_zero_std"];

/** @param {string} name */
export const rank = (name) => {
  const found = TELLING.findIndex((each) => (each.endsWith("/") ? name.startsWith(each) : name === each));
  return found < 0 ? TELLING.length : found;
};

/** @param {{ job: Job }} props */
export function Overview({ job }) {
  const judged = job.step > 0 || job.alerts.critical + job.alerts.warn + job.alerts.info > 0;
  const findings = useGet(judged ? at("/api/jobs/{uuid}/findings", { uuid: job.uuid }) : null);
  const names = useGet(at("/api/jobs/{uuid}/names", { uuid: job.uuid }));
  useFresh(["Alert", "Ended", "Open"], findings.again, 2000);
  useFresh(["Step"], () => names.data?.length || names.again(), 2000);
  const found = (findings.data ?? []).filter((each) => each.rule !== "verdict");
  return html`<${Proof} job=${job} />
    ${found.length || findings.error || (!findings.data && job.alerts.critical + job.alerts.warn) ? html`<section aria-labelledby="findings"><h2 id="findings">Findings</h2>
      <${Trouble} error=${findings.error} />
      ${findings.data || findings.error ? null : html`<p class="dim loading judging" role="status">Judging…</p>`}${found.map((each, place) => html`<${FindingCard} job=${job} finding=${each} place=${place} />`)}</section>` : null}
    <section aria-labelledby="curves"><h2 id="curves">Curves</h2>
      <${Loaded} of=${names} empty="No step has been recorded yet.">
        <${Curves} job=${job} names=${names.data} findings=${found} />
      <//>
    </section>`;
}

/** Call `act` when an event of these kinds comes, at most every `ms`. @param {string[]} kinds @param {() => unknown} act @param {number} ms */
export function useFresh(kinds, act, ms) {
  const box = useState({ act })[0];
  box.act = act;
  useEffect(() => {
    const soon = atMostEvery(() => void box.act(), ms);
    return effect(() => {
      if (newest.value && kinds.includes(newest.value.kind)) soon();
    });
  }, []);
}

/** @param {{ job: Job }} props */
function Proof({ job }) {
  const { verdict, held_out: held } = job;
  const line = verdict?.line.replace(`${verdict.kind}: `, "");
  return html`<section class="proof" aria-labelledby="verdict">
    <h2 id="verdict" class=${verdict ? `verdict ${verdict.kind.replace(" ", "-")}` : ""}>${verdict ? verdict.kind : isLive(job) ? "No verdict yet" : "No verdict"}</h2>
    <p>${line ?? (isLive(job) ? "A run is judged at its end, by its held-out rows." : "This run has no held-out scores that could say whether it learned.")}</p>
    <dl class="figures">
      ${held && /** @type {const} */ (["first", "last", "best"]).map((which) => held[which] && html`<div>
        <dt>${which === "first" ? "held out at first" : which === "last" ? "held out now" : "best"}</dt>
        <dd class="num">${interval(held[which])}</dd><dd class="dim small">${held[which].label}, step ${number(held[which].step)}</dd></div>`)}
      ${job.score && html`<div><dt>${job.score.label}</dt><dd class="num">${number(job.score.value)}</dd><dd class="dim small">in training, step ${number(job.step)}</dd></div>`}
      ${job.seconds_per_step ? html`<div><dt>a step takes</dt><dd class="num">${number(job.seconds_per_step)} s</dd></div>` : null}
    </dl>
  </section>`;
}

/** The settings that a remedy names. @param {string} fix */
export const settingsIn = (fix) => [...fix.matchAll(/\b([a-z_]+(?:\.[a-z_0-9]+)+=[^\s,;]+)/g)].map((each) => each[1]);

/** @param {{ job: Job, finding: Finding, place: number }} props */
function FindingCard({ job, finding, place }) {
  const step = finding.since ?? finding.step;
  return html`<article class="finding ${finding.level}" id="finding-${place}">
    <p><span class="level ${finding.level}">${finding.level === "warn" ? "warning" : finding.level}</span> <span class="num dim">since step ${number(step)}</span> ${finding.text}</p>
    <dl>
      ${finding.metric ? html`<dt>evidence</dt><dd><code>${finding.metric}</code> ${finding.evidence ?? [finding.measure && `${finding.measure} is ${number(finding.value)}`,
        finding.threshold != null && `bound ${number(finding.threshold)}`].filter(Boolean).join(", ")}</dd>` : null}
      ${finding.cause ? html`<dt>likely cause</dt><dd>${finding.cause}</dd>` : null}
      ${finding.fix ? html`<dt>what helps</dt><dd>${finding.fix}</dd>` : null}
      ${finding.source ? html`<dt>source</dt><dd class="dim">${finding.source}</dd>` : null}
    </dl>
    <p class="row">
      ${settingsIn(finding.fix ?? "").map((each) => html`<a class="button" href="/launch?from=${job.uuid}&set=${encodeURIComponent(each)}">Use ${each}</a>`)}
      ${step >= 0 ? html`<a href="/run/${job.uuid}/step/${Math.max(step, 1)}">metrics and answers of step ${number(Math.max(step, 1))}</a>` : null}
    </p>
  </article>`;
}

/** @param {{ job: Job, names: Name[], findings: Finding[] }} props */
function Curves({ job, names, findings }) {
  const [filter, setFilter] = useState("");
  const wanted = names.filter((each) => `${each.name} ${each.label}`.toLowerCase().includes(filter.toLowerCase()));
  const first = new Set(findings.map((each) => each.metric).filter(Boolean));
  const telling = wanted.filter((each) => first.has(each.name) || rank(each.name) < TELLING.length)
    .sort((a, b) => Number(first.has(b.name)) - Number(first.has(a.name)) || rank(a.name) - rank(b.name));
  /** @type {Map<string, Name[]>} */
  const sections = new Map([["", telling]]);
  for (const each of wanted) {
    if (telling.includes(each)) continue;
    const section = each.name.includes("/") ? each.name.split("/")[0] : "other";
    sections.set(section, [...(sections.get(section) ?? []), each]);
  }
  const chart = (/** @type {Name} */ each) => html`<${Chart} key=${each.name} runs=${[{ uuid: job.uuid, label: "" }]} name=${each.name} label=${each.label || each.name}
    unit=${each.unit} meaning="${each.name}${each.meaning ? `: ${each.meaning}` : ""}" better=${each.better} live=${isLive(job)}
    findings=${findings.filter((one) => one.metric === each.name)} />`;
  return html`<${ChartBar} filter=${filter} setFilter=${setFilter} />
    ${[...sections].map(([section, some]) => some.length ? html`<div key=${section}>
      ${section ? html`<h3>${section} <span class="count num">${some.length}</span></h3>` : null}
      <div class="charts">${some.map(chart)}</div></div>` : null)}
    ${wanted.length ? null : html`<p class="empty">No metric matches.</p>`}`;
}
