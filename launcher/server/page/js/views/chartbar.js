/** What is set for all charts of a page at once. */
import { html } from "../vendor.js";
import { axisText, look, setLook } from "../charts.js";

/** @param {{ filter: string, setFilter: (text: string) => void }} props */
export function ChartBar({ filter, setFilter }) {
  const { axis, log, smooth, from, to } = look.value;
  return html`<div class="filters chartbar">
    <input data-search type="search" aria-label="filter metrics" placeholder="Filter metrics  ( / )" value=${filter}
      onInput=${(/** @type {any} */ event) => setFilter(event.target.value)} />
    <label>by <select value=${axis} onChange=${(/** @type {any} */ event) => setLook({ axis: event.target.value, from: null, to: null })}>
      ${["step", "tokens", "time"].map((each) => html`<option value=${each} selected=${each === axis}>${each}</option>`)}</select></label>
    <label>smooth <input type="range" min="0" max="0.99" step="0.01" value=${smooth}
      onInput=${(/** @type {any} */ event) => setLook({ smooth: Number(event.target.value) })} /> <span class="num">${smooth.toFixed(2)}</span></label>
    <label><input type="checkbox" checked=${log} onChange=${() => setLook({ log: !log })} /> log scale</label>
    ${from !== null && to !== null ? html`<button type="button" onClick=${() => setLook({ from: null, to: null })}>
      ${axisText(axis, from)}–${axisText(axis, to)} ×</button>` : html`<span class="dim hint">drag over a curve to zoom</span>`}
  </div>`;
}
