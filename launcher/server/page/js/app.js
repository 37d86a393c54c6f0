/** The page: which view an address shows, the bar above it, and what keys do. */
import { html, render, signal, useEffect, useRef } from "./vendor.js";
import { token, useToken, wantsToken } from "./api.js";
import { connection } from "./live.js";
import { go, match, place } from "./router.js";
import { Answer } from "./views/answer.js";
import { Checkpoints } from "./views/checkpoints.js";
import { Compare } from "./views/compare.js";
import { GroupView, Groups } from "./views/groups.js";
import { Launch } from "./views/launch.js";
import { Logs } from "./views/logs.js";
import { Machines } from "./views/machines.js";
import { Prompts } from "./views/prompts.js";
import { RunFrame } from "./views/frame.js";
import { Overview } from "./views/overview.js";
import { Runs } from "./views/runs.js";
import { Settings } from "./views/settings.js";
import { Step } from "./views/step.js";

/** @type {[string, any][]} */
const VIEWS = [
  ["", Runs],
  ["/runs", Runs],
  ["/compare", Compare],
  ["/launch", Launch],
];

/** Views of one run; each is given its job. @type {[string, any][]} */
const OF_A_RUN = [
  ["/run/:uuid", Overview],
  ["/run/:uuid/step/:step", Step],
  ["/run/:uuid/answers", Groups],
  ["/run/:uuid/group/:step/:group", GroupView],
  ["/run/:uuid/answer/:step/:group/:answer", Answer],
  ["/run/:uuid/prompts", Prompts],
  ["/run/:uuid/machines", Machines],
  ["/run/:uuid/checkpoints", Checkpoints],
  ["/run/:uuid/logs", Logs],
  ["/run/:uuid/settings", Settings],
];

function View() {
  const path = place.value.path;
  for (const [pattern, view] of VIEWS) {
    if (match(pattern, path)) return html`<${view} />`;
  }
  for (const [pattern, view] of OF_A_RUN) {
    const found = match(pattern, path);
    if (found) return html`<${RunFrame} key=${found.uuid} uuid=${found.uuid} view=${view} parameters=${found} />`;
  }
  return html`<h1>No such page</h1><p>${path} is none of the page's addresses; <a href="/runs">all runs</a></p>`;
}

// ---- the theme

const THEMES = ["auto", "light", "dark"];
const theme = signal(localStorage.getItem("rlrun-theme") ?? "auto");

function showTheme() {
  document.documentElement.dataset.theme = theme.value;
  localStorage.setItem("rlrun-theme", theme.value);
  dispatchEvent(new Event("theme"));
}

function ThemeSwitch() {
  const next = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length];
  const turn = () => {
    theme.value = next;
    showTheme();
  };
  return html`<button type="button" class="quiet" onClick=${turn} title="Colours: ${theme.value}; switch to ${next}">
    <span class="hidden">Colours: </span>${theme.value}
  </button>`;
}

// ---- keys

const KEYS = [
  ["/", "search or filter"],
  ["j k", "next and previous row"],
  ["Enter", "open the row"],
  ["x", "mark the row for a comparison"],
  ["g r", "runs"],
  ["g l", "launch"],
  ["[ ]", "previous and next step"],
  ["?", "these keys"],
];
const help = signal(false);
let before = "";

/** @param {KeyboardEvent} event */
function onKey(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.key === "Escape") {
    help.value = false;
    return target.blur();
  }
  if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input:not([type=checkbox]), textarea, select")) return;
  const typed = before === "g" ? `g ${event.key}` : event.key;
  before = event.key;
  /** @type {Record<string, () => void>} */
  const acts = {
    "/": () => /** @type {HTMLElement | null} */ (document.querySelector("[data-search]"))?.focus(),
    j: () => moveRow(1),
    k: () => moveRow(-1),
    x: () => /** @type {HTMLElement | null} */ (target.closest("[data-row]")?.querySelector("input[type=checkbox]"))?.click(),
    "g r": () => go("/runs"),
    "g l": () => go("/launch"),
    "[": () => /** @type {HTMLElement | null} */ (document.querySelector("[rel=prev]"))?.click(),
    "]": () => /** @type {HTMLElement | null} */ (document.querySelector("[rel=next]"))?.click(),
    "?": () => (help.value = !help.value),
  };
  if (!acts[typed]) return;
  event.preventDefault();
  acts[typed]();
}

/** The link of the next row has the focus, so Enter opens it. @param {number} by */
function moveRow(by) {
  const rows = [...document.querySelectorAll("[data-row]")];
  const now = rows.findIndex((row) => row.contains(document.activeElement));
  const row = rows[Math.max(0, Math.min(rows.length - 1, now + by))];
  /** @type {HTMLElement | null | undefined} */ (row?.querySelector("a"))?.focus();
  row?.scrollIntoView({ block: "nearest" });
}

function Help() {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  useEffect(() => {
    if (help.value) dialog.current?.showModal();
    else dialog.current?.close();
  }, [help.value]);
  return html`<dialog ref=${dialog} aria-label="Keys" onClose=${() => (help.value = false)}>
    <h2>Keys</h2>
    <dl class="keys">${KEYS.map(([key, does]) => html`<dt><kbd>${key}</kbd></dt><dd>${does}</dd>`)}</dl>
    <button type="button" onClick=${() => (help.value = false)}>Close</button>
  </dialog>`;
}

// ---- the frame

function TokenForm() {
  const submit = (/** @type {any} */ event) => {
    event.preventDefault();
    useToken(event.target.elements.token.value.trim());
  };
  return html`<form class="token" onSubmit=${submit}>
    <h1>Token</h1>
    <p>${token.value ? "The server does not accept that token." : "The server wants a token."} It printed one of each scope when it was started. It is kept until this tab is closed.</p>
    <label>Token <input name="token" type="password" autocomplete="off" required autofocus /></label>
    <button class="main">Continue</button>
  </form>`;
}

function Page() {
  const here = place.value.path;
  const current = (/** @type {string} */ path) => (here === path || (path === "/runs" && here === "/") ? "page" : undefined);
  return html`<a class="skip" href="#main">Skip to the content</a>
    <header class="bar">
      <a class="home" href="/runs">rlrun</a>
      <nav aria-label="Main">
        <a href="/runs" aria-current=${current("/runs")}>Runs</a>
        <a href="/launch" aria-current=${current("/launch")}>Launch</a>
      </nav>
      <span class="connection ${connection.value}" role="status">${connection.value === "retrying" ? "connecting again…" : connection.value}</span>
      <a class="quiet" href="/docs">API</a>
      <button type="button" class="quiet" onClick=${() => (help.value = true)}>Keys</button>
      <${ThemeSwitch} />
    </header>
    <main id="main" tabindex="-1">${wantsToken.value ? html`<${TokenForm} />` : html`<${View} />`}</main>
    <${Help} />`;
}

showTheme();
document.addEventListener("keydown", onKey);
const app = /** @type {HTMLElement} */ (document.getElementById("app"));
app.replaceChildren();
render(html`<${Page} />`, app);
