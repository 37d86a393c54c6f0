/** What the machines of a run do: usage of each process over time, and where the time of its steps goes. */
import { html, uPlot, useEffect, useRef } from "../vendor.js";
import { at, useGet } from "../api.js";
import { colour } from "../charts.js";
import { bytes, clock, finite, number } from "../format.js";
import { Loaded } from "../ui.js";
import { useFresh } from "./overview.js";

/** @typedef {import("../types").Job} Job */

/** What is measured of a process, and of which whole. @type {[string, string, string][]} */
const FIELDS = [
  ["gpu_percent", "GPU", "%"],
  ["gpu_memory_bytes", "GPU memory", "bytes"],
  ["gpu_celsius", "GPU temperature", "°C"],
  ["gpu_watts", "GPU power", "W"],
  ["cpu_percent", "CPU of the process", "%"],
  ["memory_bytes", "Memory of the process", "bytes"],
  ["machine_cpu_percent", "CPU of the machine", "%"],
  ["machine_memory_bytes", "Memory of the machine", "bytes"],
  ["disk_free_bytes", "Free disk", "bytes"],
];

const SHOWN = 18; // steps

/** @typedef {import("../types").Process} Process */

/** @param {{ job: Job }} props */
export function Machines({ job }) {
  const usage = useGet(at("/api/jobs/{uuid}/usage", { uuid: job.uuid }));
  const steps = useGet(at("/api/jobs/{uuid}/metrics", { uuid: job.uuid }, { latest: SHOWN }));
  useFresh(["Usage", "Step"], () => (usage.again(), steps.again()), 10_000);
  const processes = usage.data ?? [];
  const measured = FIELDS.filter(([field]) => processes.some((each) => each.series[field]));
  return html`<section aria-labelledby="steps"><h2 id="steps">Phases of the steps</h2>
      <${Loaded} of=${steps}><${Timeline} job=${job} rows=${steps.data ?? []} /><//></section>
    <section aria-labelledby="usage"><h2 id="usage">Usage <span class="count num">${processes.length} ${processes.length === 1 ? "process" : "processes"}</span></h2>
      <${Loaded} of=${usage}>${processes.length ? null : html`<p class="empty">Nothing has been measured yet.</p>`}
        <div class="charts">${measured.map(([field, label, unit]) => html`<${Usage} key=${field} processes=${processes} field=${field} label=${label} unit=${unit} />`)}</div>
      <//></section>`;
}

/** @param {{ processes: Process[], field: string, label: string, unit: string }} props */
function Usage({ processes, field, label, unit }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const some = processes.filter((each) => each.series[field]);
  const written = (/** @type {unknown} */ value) => (unit === "bytes" ? bytes(finite(value)) : `${number(value)} ${unit}`);
  const last = some[0].series[field].mean.at(-1);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axes = { stroke: colour("--dim"), font, grid: { stroke: colour("--grid"), width: 1 }, ticks: { show: false } };
    const data = uPlot.join(some.map(({ series }) => [/** @type {number[]} */ (series[field].x), series[field].mean.map(finite)]));
    const plot = new uPlot({
      width: element.clientWidth, height: 130, legend: { show: false }, padding: [8, 8, 0, 0],
      series: [{}, ...some.map((each, place) => ({ stroke: colour(`--c${place % 10}`), width: 1.5, spanGaps: true, points: { size: 4 } }))],
      scales: { x: { time: false }, y: { range: (_, low, high) => [0, unit === "%" ? Math.max(100, high) : high * 1.1 || 1] } },
      axes: [{ ...axes, size: 22, gap: 2, space: 80, values: (_, splits) => splits.map(clock) }, { ...axes, size: 62, gap: 4, space: 28, values: (_, splits) => splits.map(written) }],
      cursor: { sync: { key: "time" }, y: false, drag: { x: false, y: false } },
    }, data, element);
    plot.ctx.canvas.setAttribute("role", "img");
    plot.ctx.canvas.setAttribute("aria-label", `${label} over time`);
    const resize = new ResizeObserver(() => plot.setSize({ width: element.clientWidth, height: 130 }));
    resize.observe(element);
    return () => (resize.disconnect(), plot.destroy());
  }, [processes]);
  return html`<figure class="chart"><figcaption><span class="label">${label}</span><span class="readout num">${written(last)}</span></figcaption>
    <div class="plot low" ref=${box}></div>
    ${some.length > 1 ? html`<p class="legend small">${some.map((each, place) => html`<span><i class="key c${place % 10}"></i> ${each.host} ${each.rank}</span>`)}</p>` : null}</figure>`;
}

/** @typedef {Record<string, import("../types").Num>} Phases seconds of each */

const PREFIX = "timing_s/";

/** Those among a step's metrics. @param {Record<string, import("../types").Num>} metrics @returns {Phases} */
export const phasesOf = (metrics) => Object.fromEntries(
  Object.entries(metrics).filter(([name]) => name.startsWith(PREFIX)).map(([name, seconds]) => [name.slice(PREFIX.length), seconds]));

/** Without their sum, which is among them as `step`. @param {Phases} phases @returns {[string, number][]} */
const partsOf = (phases) => Object.entries(phases).filter(([name]) => name !== "step").map(([name, seconds]) => [name, finite(seconds) ?? 0]);

/** @param {Phases} phases */
export const secondsOf = (phases) => partsOf(phases).reduce((sum, [, seconds]) => sum + seconds, 0);

/** Parts of one step beside each other. @param {{ phases: Phases, largest?: number, legend?: boolean }} props */
export function PhaseBar({ phases, largest, legend = true }) {
  const parts = partsOf(phases);
  const total = largest ?? (parts.reduce((sum, [, seconds]) => sum + seconds, 0) || 1);
  let x = 0;
  return html`<svg class="phases" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img" aria-label=${parts.map(([name, seconds]) => `${name} ${number(seconds)} s`).join(", ")}>
      ${parts.map(([name, seconds]) => {
        const width = (seconds / total) * 1000;
        x += width;
        return html`<rect class="f${colourOf(name)}" x=${x - width} y="0" width=${Math.max(width - 1, 0.5)} height="10"><title>${name} ${number(seconds)} s</title></rect>`;
      })}</svg>
    ${legend ? html`<p class="legend small">${parts.map(([name, seconds]) => html`<span><i class="key c${colourOf(name)}"></i> ${name} <span class="num dim">${number(seconds)} s</span></span>`)}</p>` : null}`;
}

/** One phase has one colour on every step. @type {Map<string, number>} */
const colours = new Map();

/** @param {string} name */
function colourOf(name) {
  if (!colours.has(name)) colours.set(name, colours.size % 10);
  return colours.get(name);
}

/** @param {{ job: Job, rows: import("../types").Row[] }} props */
function Timeline({ job, rows }) {
  const some = rows.map((row) => ({ step: row.step, phases: phasesOf(row) })).filter((each) => Object.keys(each.phases).length);
  if (!some.length) return html`<p class="empty">No step has been timed yet.</p>`;
  const largest = Math.max(...some.map((each) => secondsOf(each.phases)));
  const names = [...new Set(some.flatMap((each) => partsOf(each.phases).map(([name]) => name)))];
  return html`<table class="timeline"><caption class="hidden">Seconds of each phase, the latest steps</caption>
      <thead class="hidden"><tr><th>Step</th><th>Phases</th><th>Seconds</th></tr></thead>
      <tbody>${some.map((each) => html`<tr data-row><td class="num right"><a href="/run/${job.uuid}/step/${each.step}">${number(each.step)}</a></td>
      <td><${PhaseBar} phases=${each.phases} largest=${largest} legend=${false} /></td><td class="num right">${number(secondsOf(each.phases))} s</td></tr>`)}</tbody></table>
    <p class="legend small">${names.map((name) => html`<span><i class="key c${colourOf(name)}"></i> ${name}</span>`)}</p>`;
}
