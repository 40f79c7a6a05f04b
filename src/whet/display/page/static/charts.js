// Curves with uPlot: raw and smoothed, zoomed and hovered together, readable with the keyboard, redrawn in either theme.
//
// A board holds the figures of one page. Its data are steps and series by name, as the route of metrics answers; each
// <figure class="chart" data-names='["reward/a/mean", ...]' data-labels='["a", ...]'> shows some of them. `.plot` holds
// the server's drawing until the first one made here.

import "./locale.js";
import uPlot from "./vendor/uplot/uPlot.esm.js";

const COLOURS = 8;
const WHOLE_STEPS = [1, 10, 100, 1e3, 1e4, 1e5, 1e6].flatMap((size) => [size, 2 * size, 5 * size]);
/** The labels of an axis, with as many digits as tell its ticks apart. */
function labels(ticks) {
  const known = ticks.filter((tick) => tick !== null);
  const step = known.length > 1 ? Math.abs(known[1] - known[0]) : 0;
  const size = Math.max(...known.map(Math.abs), 0);
  const digits = step && size ? Math.min(12, Math.max(3, Math.ceil(Math.log10(size / step)) + 2)) : 3;
  return ticks.map((tick) => (tick === null ? "" : formatted(tick, digits)));
}

const FONT = '11px "Inter", system-ui, sans-serif';

/** A colour of the style sheet as the page has it now: light-dark() is resolved by the browser. */
function colour(name) {
  const probe = document.createElement("span");
  probe.hidden = true;
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

export function formatted(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "-";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(digits - 2);
  if (size < 1000) return Number(value.toPrecision(digits)).toString();
  return value.toLocaleString("en", { maximumSignificantDigits: Math.max(digits, Math.floor(size).toString().length) });
}

/** An exponential mean over steps; `weight` is how much of the past stays, 0 none. */
export function smoothed(values, weight) {
  let mean = 0, total = 0;
  return values.map((value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return value;
    mean = mean * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return mean / total;
  });
}

export class Board {
  constructor(figures, { smoothing = 0, log = false, onZoom = () => {} } = {}) {
    this.smoothing = smoothing;
    this.log = log;
    this.onZoom = onZoom;
    this.range = null; // [first, last] step that are shown; null is all
    this.step = null; // the step that was chosen with the keyboard
    this.data = { steps: [], series: {}, marks: {} };
    this.charts = figures.map((figure) => new Chart(this, figure));
    document.addEventListener("themechange", () => this.redraw());
    document.fonts?.ready.then(() => this.redraw());
  }

  get names() {
    return [...new Set(this.charts.flatMap((chart) => chart.names))];
  }

  /** Show these data instead of what was. `marks` are held-out scores: {name: [[step, score], ...]}. */
  set(steps, series, marks = this.data.marks) {
    this.data = { steps, series, marks };
    for (const chart of this.charts) chart.update();
  }

  /** Curves of several runs, each with steps of its own: {prefix: {steps, series}}; names become "prefix:name". */
  join(runs) {
    const steps = [...new Set(Object.values(runs).flatMap((one) => one.steps))].sort((a, b) => a - b);
    const series = {};
    for (const [prefix, one] of Object.entries(runs)) {
      const at = new Map(one.steps.map((step, index) => [step, index]));
      for (const [name, values] of Object.entries(one.series)) {
        series[`${prefix}:${name}`] = steps.map((step) => values[at.get(step)] ?? null);
      }
    }
    this.set(steps, series);
  }

  zoom(range) {
    this.range = range;
    for (const chart of this.charts) chart.zoom();
    this.onZoom(range);
  }

  hover(step, from) {
    for (const chart of this.charts) chart.hover(step, chart !== from);
  }

  /** Show a step that stays chosen when new ones come, until a pointer moves over a chart; null is none. */
  choose(step) {
    this.step = step;
    this.hover(step, null);
  }

  redraw() {
    for (const chart of this.charts) chart.draw();
  }
}

class Chart {
  constructor(board, figure) {
    this.board = board;
    this.figure = figure;
    this.place = figure.querySelector(".plot");
    this.names = JSON.parse(figure.dataset.names);
    this.labels = JSON.parse(figure.dataset.labels ?? figure.dataset.names);
    this.share = "share" in figure.dataset;
    this.hidden = new Set();
    this.plot = null;
    this.place.tabIndex = 0;
    this.place.dataset.arrows = "";
    this.place.setAttribute("role", "group");
    this.place.addEventListener("keydown", (event) => this.key(event));
    this.place.addEventListener("pointermove", () => { board.step = null; });
    this.width = this.place.clientWidth;
    new ResizeObserver(() => {
      const width = this.place.clientWidth;
      if (!width || width === this.width) return;
      this.width = width;
      this.plot?.setSize({ width, height: this.height });
    }).observe(this.place);
    this.makeLegend();
  }

  get height() {
    return this.figure.classList.contains("wide") ? 300 : 170;
  }

  makeLegend() {
    const legend = document.createElement("ul");
    legend.className = "legend";
    this.outputs = this.names.map((name, index) => {
      const item = document.createElement("li");
      const button = document.createElement("button");
      const value = document.createElement("span");
      button.type = "button";
      button.className = `c${index % COLOURS}`;
      button.setAttribute("aria-pressed", "true");
      value.className = "value num";
      button.append(document.createTextNode(this.labels[index]), value);
      button.addEventListener("click", () => {
        this.hidden.has(name) ? this.hidden.delete(name) : this.hidden.add(name);
        button.setAttribute("aria-pressed", String(!this.hidden.has(name)));
        this.draw();
      });
      item.append(button);
      legend.append(item);
      return value;
    });
    this.stepOutput = document.createElement("li");
    this.stepOutput.className = "at num";
    legend.append(this.stepOutput);
    this.figure.querySelector(".legend")?.remove();
    this.figure.querySelector("figcaption").after(legend);
  }

  /** Columns for uPlot: steps, then for each name raw, smoothed and held-out values. */
  columns() {
    const { steps, series, marks } = this.board.data;
    const marked = this.names.flatMap((name) => (marks[name] ?? []).map(([step]) => step));
    const all = marked.length ? [...new Set([...steps, ...marked])].sort((a, b) => a - b) : steps;
    const at = new Map(all.map((step, index) => [step, index]));
    const spread = (values) => {
      if (all === steps) return values;
      const out = new Array(all.length).fill(null);
      steps.forEach((step, index) => { out[at.get(step)] = values[index] ?? null; });
      return out;
    };
    const usable = this.board.log
      ? (value) => (value > 0 ? value : null)
      : (value) => (value === undefined || !Number.isFinite(value) ? null : value);
    return [all, ...this.names.flatMap((name) => {
      const raw = spread(series[name] ?? steps.map(() => null)).map((v) => (v === null ? null : usable(v)));
      const points = new Array(all.length).fill(null);
      for (const [step, value] of marks[name] ?? []) points[at.get(step)] = usable(value);
      return [raw, smoothed(raw, this.board.smoothing), points];
    })];
  }

  update() {
    if (!this.plot) { this.draw(); return; }
    this.plot.setData(this.columns(), false);
    this.zoom();
    this.settle(this.chosen);
  }

  zoom() {
    if (!this.plot) return;
    const steps = this.plot.data[0];
    const [low, high] = this.board.range ?? [steps[0] ?? 0, steps.at(-1) ?? 1];
    this.plot.setScale("x", { min: low, max: high > low ? high : low + 1 });
    // The step that was chosen is elsewhere once uPlot has this scale.
    if (this.board.step !== null) queueMicrotask(() => this.hover(this.board.step, true));
  }

  draw() {
    this.width = this.place.clientWidth;
    if (!this.width || !this.board.data.steps.length && !Object.keys(this.board.data.marks).length) return;
    this.plot?.destroy();
    this.place.replaceChildren();
    this.plot = new uPlot(this.options(), this.columns(), this.place);
    this.zoom();
    this.settle(this.chosen);
  }

  options() {
    const grid = { stroke: colour("line"), width: 1 };
    const lines = { stroke: colour("muted"), font: FONT, grid, ticks: { show: false } };
    const y = this.board.log ? { distr: 3 } : { distr: 1, range: (plot, low, high) => this.bounds(low, high) };
    const few = this.board.data.steps.length < 3;
    const smooth = this.board.smoothing > 0 && !few;
    const series = this.names.flatMap((name, index) => {
      const stroke = colour(`c${index % COLOURS}`);
      const show = !this.hidden.has(name);
      return [
        { label: name, show, stroke, width: smooth ? 1 : 2, alpha: smooth ? 0.3 : 1, spanGaps: true,
          points: { show: few, size: 5 } },
        { label: `${name} smoothed`, show: show && smooth, stroke, width: 2, spanGaps: true, points: { show: false } },
        { label: `${name} held-out`, show, stroke, paths: () => null,
          points: { show: true, size: 9, width: 2, stroke, fill: colour("surface") } },
      ];
    });
    return {
      width: this.width,
      height: this.height,
      padding: [8, 10, 0, 0],
      legend: { show: false },
      scales: { x: { time: false }, y },
      axes: [
        { ...lines, size: 26, gap: 4, space: 60, incrs: WHOLE_STEPS },
        { ...lines, gap: 8, values: (plot, ticks) => (this.board.log ? ticks.map((tick) => (tick === null ? "" : formatted(tick))) : labels(ticks)),
          size: (plot, values) => Math.max(46, 16 + 6.5 * Math.max(0, ...(values ?? []).map((one) => one.length))) },
      ],
      series: [{}, ...series],
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false },
        points: { size: 7 },
        bind: { dblclick: () => () => this.board.zoom(null) },
      },
      hooks: {
        setSelect: [(plot) => {
          if (plot.select.width < 4) return;
          const low = Math.floor(plot.posToVal(plot.select.left, "x"));
          const high = Math.ceil(plot.posToVal(plot.select.left + plot.select.width, "x"));
          plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          if (high > low) this.board.zoom([low, high]);
        }],
        setCursor: [(plot) => {
          if (this.moved || this.board.step !== null) return; // by another chart, or the keyboard
          const index = plot.cursor.idx;
          this.board.hover(plot.cursor.left < 0 || index === null ? null : plot.data[0][index], this);
        }],
      },
    };
  }

  bounds(low, high) {
    if (low === null || high === null) return [0, 1];
    if (this.share && low >= 0 && high <= 1) return [0, 1];
    const size = Math.max(Math.abs(low), Math.abs(high));
    // What rounding leaves of a constant is no curve; the least range has ticks that differ.
    const room = high - low > size * 1e-9 ? (high - low) * 0.06 : size * 0.1 || 1;
    return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
  }

  /** Show the values at a step, or the newest; where another chart is hovered over, its line here too. */
  hover(step, move) {
    if (!this.plot) return;
    const index = step === null ? null : this.indexOf(step);
    if (move) {
      this.moved = true;
      const left = index === null ? -10 : this.plot.valToPos(this.plot.data[0][index], "x");
      this.plot.setCursor({ left, top: index === null ? -10 : 0 });
      this.moved = false;
    }
    this.settle(index);
  }

  /** Where the step is that was chosen with the keyboard; null where none was. */
  get chosen() {
    return this.board.step === null ? null : this.indexOf(this.board.step);
  }

  indexOf(step) {
    const steps = this.plot.data[0];
    let low = 0, high = steps.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle + 1; else high = middle;
    }
    return low;
  }

  settle(index = null) {
    const [steps, ...columns] = this.plot.data;
    const values = this.names.map((name, at) => {
      const column = columns[at * 3];
      const value = index === null ? column.findLast((one) => one !== null) : column[index] ?? columns[at * 3 + 2][index];
      return formatted(value);
    });
    values.forEach((value, at) => { this.outputs[at].textContent = value; });
    const step = steps[index ?? steps.length - 1];
    this.stepOutput.textContent = index === null ? "" : `step ${step}`;
    const said = this.labels.map((label, at) => `${label} ${values[at]}`).join(", ");
    this.place.setAttribute("aria-label", `${this.figure.dataset.title}, step ${step ?? 0}: ${said}`);
    this.at = index;
  }

  key(event) {
    if (!this.plot) return;
    const steps = this.plot.data[0];
    const [low, high] = this.board.range ?? [steps[0], steps.at(-1)];
    const at = this.at ?? steps.length - 1;
    const by = event.shiftKey ? 10 : 1;
    const act = {
      ArrowLeft: () => this.board.choose(steps[Math.max(0, at - by)]),
      ArrowRight: () => this.board.choose(steps[Math.min(steps.length - 1, at + by)]),
      Home: () => this.board.choose(steps[0]),
      End: () => this.board.choose(steps.at(-1)),
      "+": () => this.board.zoom(around(steps[at], low, high, 0.5, steps)),
      "-": () => this.board.zoom(around(steps[at], low, high, 2, steps)),
      0: () => this.board.zoom(null),
      Escape: () => { this.board.zoom(null); this.board.choose(null); },
    }[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }
}

/** A range `factor` as wide around a step; null where that is everything. */
function around(step, low, high, factor, steps) {
  const half = Math.max(2, ((high - low) * factor) / 2);
  const range = [Math.max(steps[0], Math.round(step - half)), Math.min(steps.at(-1), Math.round(step + half))];
  return range[0] <= steps[0] && range[1] >= steps.at(-1) ? null : range;
}

/** The board of the figures below `#charts`, with the controls over them, whose state is in the page's address; null where
 * the page has none. */
export function makeBoard() {
  const figures = [...document.querySelectorAll("#charts > figure")];
  if (!figures.length) return null;
  const here = new URL(location.href);
  const smoothing = document.getElementById("smoothing");
  const logScale = document.getElementById("log-scale");
  const zoomOut = document.getElementById("zoom-out");
  const remember = (name, value) => {
    value === null ? here.searchParams.delete(name) : here.searchParams.set(name, value);
    try { history.replaceState(null, "", here); } catch { /* a browser may refuse it to a file */ }
  };
  smoothing.value = here.searchParams.get("smoothing") ?? smoothing.value;
  logScale.checked = here.searchParams.has("log");
  const board = new Board(figures, {
    smoothing: Number(smoothing.value),
    log: logScale.checked,
    onZoom: (range) => { zoomOut.hidden = !range; remember("steps", range ? range.join("-") : null); },
  });
  const range = /^(\d+)-(\d+)$/.exec(here.searchParams.get("steps") ?? "");
  if (range) { board.range = [Number(range[1]), Number(range[2])]; zoomOut.hidden = false; }
  smoothing.addEventListener("input", () => {
    board.smoothing = Number(smoothing.value);
    remember("smoothing", smoothing.value);
    board.redraw();
  });
  logScale.addEventListener("change", () => {
    board.log = logScale.checked;
    remember("log", logScale.checked ? "1" : null);
    board.redraw();
  });
  zoomOut.addEventListener("click", () => board.zoom(null));
  return board;
}
