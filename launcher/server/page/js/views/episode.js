/** What was answered: a text, or an episode with an environment, turn by turn. */
import { html, useState } from "../vendor.js";
import { number } from "../format.js";

/** @typedef {import("../types").Episode} Episode */
/** @typedef {import("../types").Turn} Turn */

const FEW = 6; // turns that are all open; of more only the last is
const LONG = 700; // characters of a text that are shown; longer ones can be opened
const LINES = 12;
const PREVIEW = 90; // characters of a turn that is not open

/** @param {{ text: string, episodes?: Episode[] }} props */
export function AnswerText({ text, episodes = [] }) {
  if (!episodes.length) return html`<pre>${text}</pre>`;
  return episodes.map((episode) => html`<div class="episode">
    <p class="outcome">${ending(episode)}</p>
    ${episode.turns.map((turn, place) => html`<${TurnView} turn=${turn} place=${place} open=${episode.turns.length <= FEW || place === episode.turns.length - 1} />`)}</div>`);
}

/** The same in a list: an episode is opened when it is asked for. @param {{ text: string, episodes?: Episode[] }} props */
export function ShortAnswer({ text, episodes = [] }) {
  const [shown, show] = useState(false);
  if (!episodes.length) return text;
  return html`<details class="closed" onToggle=${(/** @type {any} */ event) => show(event.target.open || shown)}><summary>${episodes.map(ending)}</summary>
    ${shown ? html`<${AnswerText} text=${text} episodes=${episodes} />` : null}</details>`;
}

/** @param {Episode} episode */
const ending = ({ turns, outcome, fault }) => html`${number(turns.length)} ${turns.length === 1 ? "turn" : "turns"}, ended: <b>${outcome}</b>${fault ? html` <span class="bad">${fault}</span>` : null}`;

/** @param {{ turn: Turn, place: number, open: boolean }} props */
function TurnView({ turn, place, open }) {
  return html`<details class="turn" open=${open}>
    <summary><span>turn ${place + 1}</span> <span class="num">reward ${number(turn.reward)}</span>${turn.advantage === null ? null : html` <span class="num">advantage <${Signed} value=${turn.advantage} /></span>`}
      ${turn.calls.map((call) => html` <span class="tag num ${call.error ? "bad" : ""}">${call.name} ${number(call.seconds)} s</span>`)} <span class="preview">${turn.text.slice(0, PREVIEW)}</span></summary>
    <${Folded} text=${turn.text} />
    ${turn.calls.map((call) => html`<p class="call"><code>${call.name} ${call.arguments}</code>${call.error ? html` <span class="bad">${call.error}</span>` : null}</p>`)}
    ${turn.observation ? html`<div class="observation"><${Folded} text=${turn.observation} /></div>` : null}
  </details>`;
}

/** A text of which the rest is shown when it is asked for. @param {{ text: string }} props */
function Folded({ text }) {
  const begin = text.split("\n").slice(0, LINES).join("\n").slice(0, LONG);
  if (begin === text) return html`<pre>${text}</pre>`;
  return html`<pre>${begin}</pre><details><summary>${number(text.length - begin.length)} more characters</summary><pre>${text.slice(begin.length)}</pre></details>`;
}

/** A number with its sign and the colour of it. @param {{ value: import("../types").Num, title?: string }} props */
export function Signed({ value, title }) {
  const sign = typeof value !== "number" || !value ? "dim" : value > 0 ? "up" : "down";
  return html`<span class="num ${sign}" title=${title}>${sign === "up" ? "+" : ""}${number(value)}</span>`;
}
