// A run's page: its curves move with its steps. What a curve shows comes from the route of metrics, all else from the page.

import { toast } from "./app.js";
import { Curves, getData } from "./board.js";
import { formatted, makeBoard } from "./charts.js";
import { follow, refresh, throttle } from "./live.js";

const id = location.pathname.slice(document.body.dataset.root.length).split("/")[2];
const board = makeBoard();
const shown = [...document.querySelectorAll("#run-state [data-metric]")].map((place) => place.dataset.metric);
const curves = board && new Curves(id, [...new Set([...board.names, ...shown])]);
const fail = (error) => toast(`The curves are not up to date: ${error.message}`, { error: true });

/** Numbers of the page that are metrics, and how far the run is. */
function show() {
  for (const place of document.querySelectorAll("[data-metric]")) {
    const value = curves.series[place.dataset.metric]?.findLast((one) => one !== null);
    if (value !== undefined) place.textContent = formatted(value, Number(place.dataset.digits ?? 3));
  }
  if (!curves.last) return;
  for (const place of document.querySelectorAll("[data-step]")) place.textContent = curves.last;
  const bar = document.querySelector("#run-state progress");
  if (bar) bar.value = curves.last;
}

function draw() {
  board.set(curves.steps, curves.series);
  show();
}

async function update() {
  await curves.load();
  draw();
}

/** The events of a moment are drawn once, and not while a request for all steps is in progress. */
let waits = false;
function take({ step, metrics }) {
  if (!metrics || !curves.take(step, metrics)) { update().catch(fail); return; }
  if (waits) return;
  waits = true;
  requestAnimationFrame(() => { waits = false; draw(); });
}

/** Held-out scores, as circles over the curves of their environments. */
async function loadMarks() {
  const { items } = await getData(id, "/evaluations");
  const marks = {};
  for (const report of items) {
    for (const score of report.scores) {
      if (score.sampling === "greedy" || typeof score.reward !== "number") continue;
      (marks[`reward/${score.environment}/mean`] ??= []).push([report.step, score.reward]);
    }
  }
  board.set(curves.steps, curves.series, marks);
}

const quiet = (promise) => promise.catch(() => {}); // the next event asks again; the light says when none comes
const refreshSoon = throttle(() => quiet(refresh()), 4000);
const refreshNow = throttle(() => quiet(refresh()), 300);

function on(kind, data) {
  if (kind === "step" && board) { take(data); refreshSoon(); return; }
  if (kind === "reset" && board) { curves.reset(); update().catch(fail); }
  if (kind === "evaluation" && board) loadMarks().catch(fail);
  kind === "log" ? refreshSoon() : refreshNow();
}

const log = document.getElementById("log-lines");
let atEnd = true;
const toEnd = () => { if (log && atEnd) log.scrollTop = log.scrollHeight; };
log?.addEventListener("scroll", () => { atEnd = log.scrollTop + log.clientHeight > log.scrollHeight - 24; });
/** Polls for what the server had not finished when it answered. */
const settle = () => { toEnd(); if (document.querySelector("[data-unfinished]")) refreshSoon(); };
document.addEventListener("refreshed", () => { settle(); if (curves) show(); });
settle();

if (board) update().then(loadMarks).catch(fail);
follow(`/runs/${id}/events`, on, async () => {
  if (board) await update();
  await refresh();
});
