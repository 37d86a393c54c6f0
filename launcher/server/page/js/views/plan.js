/** What would happen if the form were started now. */
import { html } from "../vendor.js";
import { bytes, number, typed } from "../format.js";
import { Copy, Trouble } from "../ui.js";
import { Notes } from "./launch.js";

/** @typedef {import("../types").Plan} Plan */

/** @param {{ plan: Plan | null, error: any, busy: boolean, command: string, mend: (found: [string, string]) => void }} props */
export function PlanPanel({ plan, error, busy, command, mend }) {
  const failed = (plan?.results ?? []).filter((each) => each.level === "FAIL");
  const warned = (plan?.results ?? []).filter((each) => each.level === "WARN");
  return html`<aside class="panel plan ${busy ? "busy" : ""}" aria-label="Plan" aria-busy=${busy}>
    <h2>Plan ${plan ? html`<span class=${plan.ok ? "ok" : "bad"}>${plan.ok ? "can start" : `cannot start: ${failed.length} ${failed.length === 1 ? "problem" : "problems"}`}</span>` : null}</h2>
    <${Trouble} error=${error} />
    ${plan && html`
      ${failed.length + warned.length ? html`<ul class="plain problems">${[...failed, ...warned].map((each) => html`<li><b>${each.subject}</b><${Notes} problems=${[each]} mend=${mend} /></li>`)}</ul>` : null}
      ${plan.arithmetic ? html`<${Facts} plan=${plan} />` : null}
      ${plan.memory ? html`<${Memory} memory=${plan.memory} />` : null}
      ${plan.rows.length ? html`<${Rows} rows=${plan.rows} />` : null}
      ${plan.results.some((each) => each.level === "OK") ? html`<details><summary>${plan.results.filter((each) => each.level === "OK").length} checks passed</summary>
        <dl class="checks">${plan.results.filter((each) => each.level === "OK").map((each) => html`<dt>${each.subject}</dt><dd>${each.message}</dd>`)}</dl></details>` : null}
      ${plan.differs.length ? html`<details><summary>${plan.differs.length} settings differ from their defaults</summary>
        <table><tbody>${plan.differs.map((each) => html`<tr><td><code>${each.name}</code></td><td><code>${typed(each.value)}</code></td><td class="dim small">${each.origin}</td></tr>`)}</tbody></table></details>` : null}`}
    <h3>The same from a terminal</h3>
    <${Copy} label="command" text=${command} />
  </aside>`;
}

/** @param {{ plan: Plan }} props */
function Facts({ plan }) {
  const { steps, answers, prompts, rows } = plan.arithmetic ?? {};
  const time = plan.results.find((each) => each.subject === "time");
  return html`<dl class="figures">
    <div><dt>steps</dt><dd class="num">${number(steps)}</dd></div>
    <div><dt>rows</dt><dd class="num">${number(rows)}</dd></div>
    ${prompts ? html`<div><dt>prompts a step</dt><dd class="num">${number(prompts)}</dd></div>` : null}
    ${answers && answers !== prompts ? html`<div><dt>answers a step</dt><dd class="num">${number(answers)}</dd></div>` : null}
    ${time ? html`<div><dt>duration</dt><dd>${time.message.split(":")[0]}</dd>${time.message.includes(":") ? html`<dd class="dim small">${time.message.split(": ").slice(1).join(": ")}</dd>` : null}</div>` : null}
  </dl>`;
}

/** One bar for each phase, its parts in it; the line is what the device has. @param {{ memory: NonNullable<Plan["memory"]> }} props */
function Memory({ memory }) {
  const names = [...new Set(memory.phases.flatMap((each) => Object.keys(each.parts)))];
  const most = Math.max(...memory.phases.map((each) => each.total_bytes));
  const whole = memory.limit_bytes && most > memory.limit_bytes / 4 ? Math.max(most, memory.limit_bytes) : most * 1.15;
  return html`<h3>Memory of a process ${memory.limit_bytes ? html`<span class="dim num">of ${bytes(memory.limit_bytes)}</span>` : null}</h3>
    <table class="memory"><caption class="hidden">Memory by phase</caption><thead class="hidden"><tr><th>Phase</th><th>Parts</th><th>Bytes</th></tr></thead>
    <tbody>${memory.phases.map((phase) => {
      let x = 0;
      return html`<tr class=${phase.name === memory.peak ? "peak" : ""}><td>${phase.name}</td><td><svg class="phases" viewBox="0 0 1000 10" preserveAspectRatio="none" role="img"
        aria-label=${Object.entries(phase.parts).map(([name, size]) => `${name} ${bytes(size)}`).join(", ")}>
        ${names.map((name, place) => {
          const width = ((phase.parts[name] ?? 0) / whole) * 1000;
          x += width;
          return width ? html`<rect class="f${place % 10}" x=${x - width} y="0" width=${width} height="10"><title>${name} ${bytes(phase.parts[name])}</title></rect>` : null;
        })}
        ${memory.limit_bytes && memory.limit_bytes <= whole ? html`<rect class="limit" x=${(memory.limit_bytes / whole) * 1000 - 2} y="0" width="2" height="10" />` : null}</svg></td>
        <td class="num right">${bytes(phase.total_bytes)}</td></tr>`;
    })}</tbody></table>
    <p class="legend small">${names.map((name, place) => html`<span><i class="key c${place % 10}"></i> ${name.replaceAll("_", " ")}</span>`)}</p>`;
}

/** The first rows as tokens; what has a loss stands out. @param {{ rows: Plan["rows"] }} props */
function Rows({ rows }) {
  return html`<h3>First rows as tokens</h3>
    ${rows.map((row) => html`<p class="tokens small">${row.map((token) => html`<span class="token ${token.loss ? "learned" : "masked"}">${token.text.replaceAll("\n", "↵\n")}</span>`)}</p>`)}
    <p class="legend small"><span class="token learned">has a loss</span> <span class="token masked">has none</span>${rows.flat().some((token) => token.loss) ? null : html` <span>what is answered to these prompts will have one</span>`}</p>`;
}
