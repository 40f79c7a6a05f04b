// The curves of a report in a file, from the data in the page.

import { makeBoard } from "./charts.js";

document.documentElement.classList.add("scripted");

const { curves } = document.getElementById("charts")?.dataset ?? {};
if (curves) {
  const { series, marks } = JSON.parse(curves);
  const steps = [...new Set(Object.values(series).flatMap((points) => points.map(([step]) => step)))].sort((a, b) => a - b);
  const columns = Object.entries(series).map(([name, points]) => {
    const at = new Map(points);
    return [name, steps.map((step) => at.get(step) ?? null)];
  });
  makeBoard().set(steps, Object.fromEntries(columns), marks);
}
