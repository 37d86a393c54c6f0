/** Curves of one metric, of one or several runs, drawn when they come into view. */
import { effect, html, signal, uPlot, useEffect, useRef, useState } from "./vendor.js";
import { add, curve, smoothed } from "./curves.js";
import { duration, number, tick } from "./format.js";
import { atMostEvery } from "./live.js";
import { newest } from "./views/frame.js";

/** @typedef {import("./curves").Drawn} Drawn */
/** @typedef {import("./types").Finding} Finding */
/** @typedef {{ axis: string, log: boolean, smooth: number, from: number | null, to: number | null }} Look */

/** What all charts of the page have in common. */
export const look = signal(/** @type {Look} */ ({ axis: "step", log: false, smooth: 0, from: null, to: null }));

/** @param {Partial<Look>} values */
export const setLook = (values) => (look.value = { ...look.value, ...values });

export const COLOURS = 10;
const HEIGHT = 168;
const MOST_BUCKETS = 600;
const REDRAW_MS = 250;

/** The colour that a CSS variable stands for now. @param {string} name */
export function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** @param {string} axis @param {number} x */
export const axisText = (axis, x) => (axis === "time" ? duration(x) : number(x));

/** @param {HTMLElement | null} element @param {() => void} act once, when it comes near the window */
function whenSeen(element, act) {
  if (!element) return () => {};
  const observer = new IntersectionObserver(([entry]) => {
    if (!entry.isIntersecting) return;
    observer.disconnect();
    act();
  }, { rootMargin: "200px" });
  observer.observe(element);
  return () => observer.disconnect();
}

/**
 * @param {{ runs: { uuid: string, label: string, colour?: number }[], name: string, label?: string, unit?: string,
 *   meaning?: string, better?: string | null, findings?: Finding[], live?: boolean }} props
 */
export function Chart({ runs, name, label, unit = "", meaning = "", better = null, findings = [], live = false }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const readout = useRef(/** @type {HTMLElement | null} */ (null));
  const [seen, setSeen] = useState(false);
  const [state, setState] = useState("");
  const { axis, log, smooth, from, to } = look.value;
  const known = runs.map((run) => run.uuid).join();
  const marks = findings.map((each) => `${each.since}${each.level}`).join();

  useEffect(() => whenSeen(box.current, () => setSeen(true)), []);
  useEffect(() => {
    const element = box.current;
    if (!seen || !element) return;
    /** @type {Drawn[]} */
    let curves = [];
    /** @type {uPlot | null} */
    let plot = null;
    let ended = false;

    const draw = () => {
      if (ended) return;
      const data = table(curves, smooth, log);
      if (plot) plot.setData(data, from === null);
      else plot = new uPlot(options(element, { runs, axis, log, smooth, findings, label: label ?? name, show }), data, element);
      show(null);
    };
    const show = (/** @type {number | null} */ at) => {
      if (readout.current) readout.current.replaceChildren(...readings(curves, at, axis, runs));
    };
    const fetchAll = async () => {
      const buckets = Math.min(MOST_BUCKETS, Math.max(60, Math.round(element.clientWidth)));
      const ranged = axis === "step" ? { from, to } : { from: null, to: null };
      try {
        const found = await Promise.all(runs.map((run) => curve({ uuid: run.uuid, name, axis, ...ranged, buckets })));
        if (ended) return;
        curves = found;
        setState(curves.some((each) => each.x.length) ? "" : "no values yet");
        draw();
        if (plot && axis !== "step" && from !== null && to !== null) plot.setScale("x", { min: from, max: to });
      } catch (error) {
        if (!ended) setState(String(/** @type {Error} */ (error).message));
      }
    };
    fetchAll();

    const soon = atMostEvery(draw, REDRAW_MS);
    const anew = atMostEvery(fetchAll, 5000);
    const deaf = !live ? () => {} : effect(() => {
      const event = newest.value;
      if (event?.kind === "Open" && curves.length) anew();
      if (event?.kind !== "Step" || !(name in event.metrics) || !curves[0]) return;
      if (axis !== "step" || curves[0].x.length > 3 * MOST_BUCKETS) return anew();
      if (to !== null) return;
      add(curves[0], event.step, event.metrics[name]);
      setState("");
      soon();
    });
    const resize = new ResizeObserver(() => plot?.setSize({ width: element.clientWidth, height: HEIGHT }));
    resize.observe(element);
    const repaint = () => {
      plot?.destroy();
      plot = null;
      draw();
    };
    addEventListener("theme", repaint);
    return () => {
      ended = true;
      deaf();
      resize.disconnect();
      removeEventListener("theme", repaint);
      plot?.destroy();
    };
  }, [seen, known, name, axis, log, smooth, from, to, marks]);

  return html`<figure class="chart">
    <figcaption title=${meaning}>
      <span class="label">${label ?? name}${unit ? html` <span class="dim">${unit}</span>` : null}${better ? html`<span class="dim" title="${better === "up" ? "higher" : "lower"} is better"> ${better === "up" ? "↑" : "↓"}</span>` : null}</span>
      <span class="readout num" ref=${readout}></span>
    </figcaption>
    <div class="plot" ref=${box} onDblClick=${() => setLook({ from: null, to: null })}></div>
    ${state ? html`<p class="dim state">${state}</p>` : null}
  </figure>`;
}

/** Columns of all runs over one axis: of each run its mean, least, greatest and smoothed values. @param {Drawn[]} curves @param {number} smooth @param {boolean} log @returns {any} */
function table(curves, smooth, log) {
  const positive = (/** @type {(number | null)[]} */ values) => (log ? values.map((value) => (value !== null && value > 0 ? value : null)) : values);
  const tables = curves.map((each) => [each.x, positive(smooth ? smoothed(each.mean, smooth) : each.mean), positive(each.min), positive(each.max), positive(each.mean)]);
  return tables.length === 1 ? tables[0] : uPlot.join(/** @type {any} */ (tables));
}

/** What stands beside a chart's name: the values under the pointer, else the last ones. @param {Drawn[]} curves @param {number | null} at @param {string} axis @param {{ colour?: number }[]} runs */
function readings(curves, at, axis, runs) {
  /** @type {Node[]} */
  const parts = [];
  for (const [place, each] of curves.entries()) {
    const index = at === null ? each.x.length - 1 : nearest(each.x, at);
    if (index < 0) continue;
    const value = document.createElement("span");
    value.textContent = number(each.mean[index]);
    if (curves.length > 1) value.className = `c${runs[place].colour ?? place}`;
    if (at !== null && !parts.length) parts.push(Object.assign(document.createElement("span"), { className: "dim", textContent: axisText(axis, each.x[index]) }));
    parts.push(value);
  }
  return parts.slice(0, 7);
}

/** @param {number[]} xs sorted @param {number} x */
function nearest(xs, x) {
  let [low, high] = [0, xs.length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle;
    else high = middle;
  }
  return high >= 0 && Math.abs(xs[high] - x) < Math.abs(xs[low] - x) ? high : low;
}

/**
 * @param {HTMLElement} element
 * @param {{ runs: { colour?: number }[], axis: string, log: boolean, smooth: number, findings: Finding[], label: string, show: (at: number | null) => void }} what
 * @returns {uPlot.Options}
 */
function options(element, { runs, axis, log, smooth, findings, label, show }) {
  const [line, faint, grid] = [colour("--text"), colour("--dim"), colour("--grid")];
  const several = runs.length > 1;
  /** @type {uPlot.Series[]} */
  const series = [{}];
  /** @type {uPlot.Band[]} */
  const bands = [];
  for (const [place, run] of runs.entries()) {
    const stroke = several ? colour(`--c${(run.colour ?? place) % COLOURS}`) : colour("--curve");
    const at = series.length;
    const soft = stroke.replace("rgb(", "rgba(").replace(")", ", 0.18)");
    series.push({ stroke, width: 1.5, spanGaps: true, points: { size: 4 } });
    series.push({ stroke: "transparent", points: { show: false }, spanGaps: true }, { stroke: "transparent", points: { show: false }, spanGaps: true });
    series.push({ stroke: soft, width: 1, show: smooth > 0, points: { show: false }, spanGaps: true });
    if (!several) bands.push({ series: [at + 2, at + 1], fill: soft });
  }
  const font = `11px ${getComputedStyle(document.body).fontFamily}`;
  const axes = { stroke: faint, font, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
  return {
    width: element.clientWidth, height: HEIGHT, series, bands,
    legend: { show: false },
    padding: [8, 14, 0, 0],
    scales: { x: { time: false }, y: log ? { distr: 3 } : { range: (_, low, high) => spread(low, high) } },
    axes: [
      { ...axes, size: 22, gap: 2, space: 70, values: (_, splits) => splits.map((x) => axisText(axis, x)) },
      { ...axes, size: 48, gap: 4, space: 28, values: (_, splits, axis, space, step) => splits.map((y) => (y === null ? "" : log ? number(y) : tick(y, step))) },
    ],
    cursor: { sync: { key: "x" }, y: false, points: { size: 5 }, drag: { x: true, y: false, setScale: false } },
    select: { show: true, left: 0, top: 0, width: 0, height: 0 },
    hooks: {
      ready: [(plot) => {
        plot.ctx.canvas.setAttribute("role", "img");
        plot.ctx.canvas.setAttribute("aria-label", `curve of ${label}`);
      }],
      setCursor: [(plot) => show(plot.cursor.left != null && plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : null)],
      setSelect: [(plot) => {
        if (plot.select.width < 8) return;
        const [from, to] = [plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x")];
        setLook(axis === "step" ? { from: Math.floor(from), to: Math.ceil(to) } : { from, to });
      }],
      draw: [(plot) => mark(plot, findings, axis, line)],
    },
  };
}

/** A little room above and below; a constant stands in the middle. @param {number} low @param {number} high @returns {[number, number]} */
function spread(low, high) {
  if (low == null || high == null) return [0, 1];
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low - room, high + room];
}

/** A line and a triangle where each finding begins. @param {uPlot} plot @param {Finding[]} findings @param {string} axis @param {string} text */
function mark(plot, findings, axis, text) {
  if (axis !== "step") return;
  const { ctx, bbox } = plot;
  for (const each of findings) {
    const x = Math.round(plot.valToPos(each.since ?? each.step, "x", true));
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = colour(each.level === "critical" ? "--bad" : each.level === "warn" ? "--warn" : "--dim") || text;
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.beginPath();
    const size = 5 * devicePixelRatio;
    ctx.moveTo(x - size, bbox.top - size);
    ctx.lineTo(x + size, bbox.top - size);
    ctx.lineTo(x, bbox.top + size);
    ctx.fill();
    ctx.restore();
  }
}
