// The data of a run's curves, kept up to date.

/** JSON of a run's route; raises with the server's own words. */
export async function getData(id, path) {
  const answer = await fetch(`${document.body.dataset.data}/runs/${encodeURIComponent(id)}${path}`, { cache: "no-store" });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body?.error?.message ?? `the server answered ${answer.status}`);
  return body;
}

/**
 * The curves of one run, kept up to date: `load()` asks for everything at first, then for the steps that came since.
 * Calls while one is in progress are made after it.
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

  /** A step that an event brings; false where it does not continue what is known, and has to be requested. */
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
