// The list of runs: rows change as their runs do; two to four of them can be compared.

import { toast } from "./app.js";
import { follow, refresh, throttle } from "./live.js";

const MOST = 4;
const soon = throttle(() => refresh().catch(() => {}), 1000);

function chosen() {
  return document.querySelectorAll("#runs input[name=run]:checked").length;
}

function settle() {
  const button = document.getElementById("compare");
  if (button) {
    const count = chosen();
    button.disabled = count < 2 || count > MOST;
    button.textContent = count ? `Compare ${count} runs` : "Choose runs to compare";
  }
}

document.addEventListener("change", (event) => {
  if (event.target.name !== "run") return;
  if (chosen() > MOST) {
    event.target.checked = false;
    toast(`At most ${MOST} runs can be compared.`);
  }
  settle();
});
document.addEventListener("refreshed", settle);
settle();
setInterval(() => { if (!document.hidden) soon(); }, 15_000); // a folder that was copied here is no event
follow("/events", soon, refresh);
