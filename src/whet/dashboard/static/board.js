// The controls over the curves of a page: smoothing, log scale, zoom. Their state is in the page's address.

import { Board } from "./charts.js";

/** The board of the figures below `#charts`; null where the page has none. */
export function makeBoard() {
  const figures = [...document.querySelectorAll("#charts > figure")];
  if (!figures.length) return null;
  const here = new URL(location.href);
  const smoothing = document.getElementById("smoothing");
  const logScale = document.getElementById("log-scale");
  const zoomOut = document.getElementById("zoom-out");
  const remember = (name, value) => {
    value === null ? here.searchParams.delete(name) : here.searchParams.set(name, value);
    history.replaceState(null, "", here);
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

/** JSON of a run's route; raises with the server's own words. */
export async function getData(id, path) {
  const answer = await fetch(`${document.body.dataset.data}/runs/${encodeURIComponent(id)}${path}`, { cache: "no-store" });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body?.error?.message ?? `the server answered ${answer.status}`);
  return body;
}

/**
 * The curves of one run, kept up to date: `load()` asks for everything at first, then for the steps that came since.
 * Calls while one is under way are made after it.
 */
export class Curves {
  constructor(id, names, points = 500) {
    Object.assign(this, { id, names, points });
    this.reset();
  }

  reset() {
    Object.assign(this, { generation: null, last: 0, steps: [], series: {}, under: null });
  }

  load() {
    this.under = (this.under ?? Promise.resolve()).catch(() => {}).then(() => this.ask());
    return this.under;
  }

  async ask() {
    const after = this.generation === null ? "" : `&after=${this.last}`;
    const names = encodeURIComponent(this.names.join(","));
    const found = await getData(this.id, `/metrics?names=${names}&points=${this.points}${after}`);
    const last = found.last_step ?? 0;
    // A resumed run writes steps again; very many new steps are thinned anew.
    const many = this.steps.length + found.steps.length > 2 * this.points;
    if (after && (many || found.generation !== this.generation || last < this.last)) {
      this.generation = null;
      return this.ask();
    }
    if (after) this.append(this.newer(found)); else Object.assign(this, { steps: found.steps, series: found.series });
    this.generation = found.generation;
    this.last = Math.max(last, this.steps.at(-1) ?? 0);
    return this;
  }

  /** A step that an event brings; false where it does not continue what is known, and has to be asked for. */
  take(step, metrics) {
    if (this.generation === null || step <= this.last || this.steps.length >= 2 * this.points) return false;
    const known = this.names.filter((name) => name in metrics);
    this.append({ steps: [step], series: Object.fromEntries(known.map((name) => [name, [metrics[name]]])) });
    this.last = step;
    return true;
  }

  /** Without steps that events have brought meanwhile. */
  newer({ steps, series }) {
    const first = this.steps.length ? steps.findIndex((step) => step > this.steps.at(-1)) : 0;
    const cut = (values) => (first < 0 ? [] : values.slice(first));
    return { steps: cut(steps), series: Object.fromEntries(Object.entries(series).map(([name, one]) => [name, cut(one)])) };
  }

  append({ steps, series }) {
    const before = this.steps.length;
    this.steps = this.steps.concat(steps);
    for (const name of new Set([...Object.keys(this.series), ...Object.keys(series)])) {
      const known = this.series[name] ?? new Array(before).fill(null);
      this.series[name] = known.concat(series[name] ?? steps.map(() => null));
    }
  }
}
