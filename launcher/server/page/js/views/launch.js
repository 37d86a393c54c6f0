/** A form that becomes the arguments of `rlrun train`, with the plan of them beside it. */
import { html, useEffect, useMemo, useState } from "../vendor.js";
import { at, call, post, useGet } from "../api.js";
import { nameOf, quoted, remedy, withValue, words } from "../arguments.js";
import { typed } from "../format.js";
import { go, place } from "../router.js";
import { Action, Trouble, nameOf as jobName, useQuiet, useTitle } from "../ui.js";
import { PlanPanel } from "./plan.js";

/** @typedef {import("../types").Job} Job */
/** @typedef {import("../types").Plan} Plan */
/** @typedef {import("../types").Check} Check */
/** @typedef {import("../types").Schema} Schema */
/** @typedef {import("../types").Setting} Setting */

/** What a run is made of. Of those marked, also something of one's own may be named: a folder, a file, an id. @type {[string, string, boolean][]} */
const GROUPS = [["algorithm", "Algorithm", false], ["model", "Model", true], ["data", "Data", true], ["reward", "Reward", true], ["hardware", "Hardware", false], ["engine", "Engine", false]];

/** The settings that most launches set. @type {Record<string, string>} */
const COMMON = {
  "trainer.experiment_name": "Name",
  "trainer.total_training_steps": "Steps",
  "optim.lr": "Learning rate",
  "data.train_batch_size": "Prompts a step",
  "sampler.n": "Answers to a prompt",
  "data.max_response_length": "Longest answer, tokens",
  "trainer.test_freq": "Validate every … steps",
  "trainer.save_freq": "Save every … steps",
};
const BEGIN = ["algorithm=grpo", "model=tiny", "data=reverse"];
const QUIET_MS = 350;
const NAME = "trainer.experiment_name"; // a run that is repeated gets one of its own
const RESUMABLE = ["paused", "stopped", "failed", "finished", "doubtful"];

export function Launch() {
  const query = place.value.query;
  const from = query.get("from");
  const added = query.getAll("set");
  useTitle("Launch");
  const schema = useGet(at("/api/schema"));
  const job = useGet(from ? at("/api/jobs/{uuid}", { uuid: from }) : null);
  const config = useGet(from ? at("/api/jobs/{uuid}/config", { uuid: from }) : null);
  const [args, setArgs] = useState(/** @type {string[] | null} */ (from ? null : [...BEGIN, ...added]));
  const base = useMemo(() => (config.data ? config.data.arguments : null), [config.data]);
  useEffect(() => {
    if (base) setArgs(added.reduce((all, each) => withValue(all, nameOf(each), each.slice(each.indexOf("=") + 1)), withValue(base, NAME, null)));
  }, [base, query.toString()]);
  const error = schema.error ?? job.error ?? config.error;
  if (error && !(schema.data && args)) return html`<h1>Launch</h1><${Trouble} error=${error} />`;
  if (!schema.data || !args) return html`<h1>Launch</h1><p class="dim loading" role="status">Loading…</p>`;
  return html`<div class="head"><div><h1>${from ? "Rerun with changes" : "Launch a run"}</h1>
      ${job.data ? html`<p class="crumbs">from <a href="/run/${from}">${jobName(job.data)}</a></p>` : null}</div></div>
    <${Form} schema=${schema.data} args=${args} setArgs=${setArgs} base=${base} job=${job.data} />`;
}

/** @param {{ schema: Schema, args: string[], setArgs: (args: string[]) => void, base: string[] | null, job: Job | null }} props */
function Form({ schema, args, setArgs, base, job }) {
  const quiet = useQuiet(args.join("\n"), QUIET_MS);
  const [plan, setPlan] = useState(/** @type {Plan | null} */ (null));
  const [good, setGood] = useState(/** @type {Plan | null} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(true);
  const [free, setFree] = useState(() => freeText(args));
  const [description, setDescription] = useState("");
  const key = useMemo(() => crypto.randomUUID?.() ?? String(Math.random()), [quiet]);
  useEffect(() => {
    const stop = new AbortController();
    setBusy(true);
    call(at("/api/jobs", {}, { dry_run: true }), { method: "POST", body: { arguments: quiet.split("\n").filter(Boolean) }, signal: stop.signal }).then(
      (/** @type {any} */ found) => (setPlan(found), found.ok && setGood(found), setError(null), setBusy(false)),
      (refused) => stop.signal.aborted || (setError(refused), setBusy(false)),
    );
    return () => stop.abort();
  }, [quiet]);

  const set = (/** @type {string} */ name, /** @type {string | null} */ value) => change(withValue(args, name, value));
  const change = (/** @type {string[]} */ next) => {
    setArgs(next);
    setFree(freeText(next));
  };
  const typeFree = (/** @type {string} */ text) => {
    setFree(text);
    setArgs([...args.filter(hasField), ...words(text)]);
  };
  const mend = (/** @type {[string, string]} */ [gone, argument]) => {
    const name = nameOf(argument);
    const without = gone === name ? args : withValue(args, gone, null);
    change(withValue(without, name, argument.slice(argument.indexOf("=") + 1)));
  };
  const problems = /** @type {Check[]} */ (plan?.results ?? []).filter((each) => each.level !== "OK");
  const at_ = (/** @type {string} */ name) => problems.filter((each) => each.subject === name || words(each.subject).includes(name));
  const valueOf = (/** @type {string} */ name) => args.find((each) => nameOf(each) === name)?.replace(/^[^=]*=/, "") ?? "";
  const field = (/** @type {string} */ name, /** @type {string} */ label, /** @type {any} */ input) => html`<${Field} key=${name} name=${name} label=${label} problems=${at_(name)} mend=${mend} input=${input} />`;
  const known = new Map(schema.settings.map((each) => [each.name, each]));
  const used = new Map(/** @type {[string, unknown][]} */ ((good?.differs ?? []).map((each) => [each.name, each.value])));
  used.set("trainer.total_training_steps", good?.arithmetic?.steps ?? "").set("trainer.experiment_name", good?.folder?.split("/").at(-1) ?? "");

  const start = async () => {
    const made = await post(at("/api/jobs"), { name: valueOf(NAME), description, arguments: args }, key);
    await post(at("/api/jobs/{uuid}/start", { uuid: made.uuid }));
    go(`/run/${made.uuid}`);
  };
  const resume = async () => {
    const changed = args.filter((each) => !base?.includes(each));
    await post(at("/api/jobs/{uuid}/resume", { uuid: job?.uuid ?? "" }), { arguments: changed });
    go(`/run/${job?.uuid}`);
  };

  return html`<div class="launch">
    <form class="fields" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <div class="grid">${GROUPS.map(([name, label, own]) => {
        const choices = schema.groups.find((each) => each.name === name)?.choices ?? [];
        const value = valueOf(name);
        const help = choices.find((each) => each.name === value)?.help;
        return field(name, label, (/** @type {object} */ more) => own || (value && !choices.some((each) => each.name === value))
          ? html`<input ...${more} list="choices-${name}" value=${value} placeholder=${good?.choices[name] ?? "chosen by itself"} onInput=${(/** @type {any} */ event) => set(name, event.target.value)} />
            <datalist id="choices-${name}">${choices.map((each) => html`<option value=${each.name}>${each.help}</option>`)}</datalist>${help ? html`<small class="dim">${help}</small>` : null}`
          : html`<select ...${more} value=${value} onChange=${(/** @type {any} */ event) => set(name, event.target.value)}>
            <option value="" selected=${!value}>${good?.choices[name] ?? "chosen by itself"}</option>${choices.map((each) => html`<option value=${each.name} selected=${each.name === value}>${each.name}</option>`)}</select>
            ${help ? html`<small class="dim">${help}</small>` : null}`);
      })}</div>
      <div class="grid">${Object.entries(COMMON).map(([name, label]) => {
        const setting = known.get(name);
        const shown = used.get(name) ?? setting?.default ?? "";
        return field(name, label, (/** @type {object} */ more) => html`<input ...${more} class="num" value=${valueOf(name)} title="${name}: ${setting?.help ?? ""}"
          placeholder=${typed(shown)} onInput=${(/** @type {any} */ event) => set(name, event.target.value)} />`);
      })}</div>
      <${Adder} settings=${schema.settings} add=${(/** @type {string} */ word) => typeFree(`${free}${free && !free.endsWith("\n") ? "\n" : ""}${word}`)} />
      <div class="field">
        <label for="free">Other arguments, as after <code>rlrun train</code>; names of verl, TRL and others are understood</label>
        <textarea id="free" rows="4" spellcheck="false" value=${free} onInput=${(/** @type {any} */ event) => typeFree(event.target.value)}></textarea>
        <${Notes} problems=${problems.filter((each) => !hasField(each.subject) && args.some((word) => nameOf(word) === each.subject))} mend=${mend} />
      </div>
      <div class="field"><label for="description">Description</label>
        <input id="description" value=${description} onInput=${(/** @type {any} */ event) => setDescription(event.target.value)} /></div>
      <div class="row start">
        <${Action} kind="main" act=${start} disabled=${busy || !plan?.ok}>${job ? "Start as a new run" : "Start"}<//>
        ${job && RESUMABLE.includes(job.status) ? html`<${Action} act=${resume} title="Go on from the newest checkpoint, with what was changed here">Resume ${jobName(job)} with the changes<//>` : null}
        <span class="dim" role="status">${busy ? "planning…" : plan?.ok ? "ready" : `${problems.filter((each) => each.level === "FAIL").length} to mend first`}</span>
      </div>
    </form>
    <${PlanPanel} plan=${plan} error=${error} busy=${busy} command=${plan?.command ?? `rlrun train ${args.map(quoted).join(" ")}`} mend=${mend} />
  </div>`;
}

/** Whether an argument has a field of its own. @param {string} word */
const hasField = (word) => GROUPS.some(([name]) => name === nameOf(word)) || nameOf(word) in COMMON;

/** @param {string[]} args */
const freeText = (args) => args.filter((each) => !hasField(each)).map(quoted).join("\n");

/** @param {{ name: string, label: string, problems: Check[], mend: (found: [string, string]) => void, input: (more: object) => any }} props */
function Field({ name, label, problems, mend, input }) {
  const id = `field-${name}`;
  const wrong = problems.some((each) => each.level === "FAIL");
  return html`<div class="field ${wrong ? "wrong" : ""}">
    <label for=${id}>${label}</label>
    ${input({ id, "aria-invalid": wrong ? "true" : undefined, "aria-describedby": problems.length ? `${id}-notes` : undefined, spellcheck: false, autocomplete: "off" })}
    <${Notes} id="${id}-notes" problems=${problems} mend=${mend} />
  </div>`;
}

/** @param {{ id?: string, problems: Check[], mend: (found: [string, string]) => void }} props */
export function Notes({ id, problems, mend }) {
  return html`<div class="notes" id=${id}>${problems.map((each) => {
    const found = remedy(each.subject, each.fix);
    return html`<p class=${each.level === "FAIL" ? "bad" : "warning"}>${each.message}${each.fix ? `; ${each.fix}` : ""}
      ${found ? html` <button type="button" class="mend" onClick=${() => mend(found)}>Use ${found[1]}</button>` : null}</p>`;
  })}</div>`;
}

/** Any setting by its name, with its help. @param {{ settings: Setting[], add: (word: string) => void }} props */
function Adder({ settings, add }) {
  const [name, setName] = useState("");
  const found = settings.find((each) => each.name === name);
  const put = () => {
    if (!found) return;
    add(`${name}=${typed(found.default)}`);
    setName("");
  };
  return html`<div class="field adder"><label for="adder">Any other setting</label>
    <span class="row"><input id="adder" list="settings" value=${name} placeholder="optim.weight_decay" autocomplete="off" spellcheck=${false}
      onInput=${(/** @type {any} */ event) => setName(event.target.value)} onKeyDown=${(/** @type {KeyboardEvent} */ event) => event.key === "Enter" && put()} />
      <button type="button" disabled=${!found} onClick=${put}>Add</button></span>
    <datalist id="settings">${settings.map((each) => html`<option value=${each.name}>${each.help?.slice(0, 90)}</option>`)}</datalist>
    ${found ? html`<small class="dim">${found.type}; ${found.help}</small>` : null}</div>`;
}
