// Curves of two to four runs over one another, each as new as its run.

import { toast } from "./app.js";
import { Curves } from "./board.js";
import { makeBoard } from "./charts.js";
import { follow, refresh, throttle } from "./live.js";

const board = makeBoard();

if (board) {
  const ids = [...document.querySelectorAll("#runs-compared [data-run]")].map((row) => row.dataset.run);
  const names = [...new Set(board.names.map((name) => name.slice(name.indexOf(":") + 1)))];
  const runs = new Map(ids.map((id) => [id, new Curves(id, names)]));
  const draw = () => board.join(Object.fromEntries(runs));
  const fail = (error) => toast(`The curves are not up to date: ${error.message}`, { error: true });
  const update = async () => {
    await Promise.all([...runs.values()].map((one) => one.load()));
    draw();
  };
  const refreshSoon = throttle(() => refresh().catch(() => {}), 4000);
  update().catch(fail);
  // One stream for all runs: browsers open few connections to a server.
  follow(`/events`, (kind, data) => {
    const run = runs.get(data.run);
    if (!run) return;
    run.load().then(draw).catch(fail);
    refreshSoon();
  }, update);
}
