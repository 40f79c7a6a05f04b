// What keeps a page as new as its run, without layout jumps.
//
// The server's events say that something is new. Numbers and curves take it from the events themselves; everything else
// is requested as the page that it is: `refresh` fetches the page again and changes, element by element, what differs
// below [data-live]. So a page has one rendering, the server's. A hidden tab does neither; where events do not
// come through, the page is requested every few seconds.

import { root, toast, updateTimes } from "./app.js";

const POLL_MS = 2000;
const EVENTS = ["step", "state", "evaluation", "log", "finding", "run", "reset"];

/** Make the element `old` equal to `fresh`, keeping elements that stay, with their focus, scroll and selection. */
export function patch(old, fresh) {
  if (old.hasAttribute("data-keep")) return;
  for (const { name } of [...old.attributes]) {
    if (!fresh.hasAttribute(name) && name !== "aria-current" && name !== "open") old.removeAttribute(name);
  }
  for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  const known = new Map();
  for (const child of old.children) if (child.id) known.set(child.id, child);
  let here = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const kept = child.id ? known.get(child.id) : undefined;
    if (kept && kept !== here) old.insertBefore(kept, here);
    const match = kept ?? here;
    if (match && same(match, child)) {
      here = match.nextSibling;
      if (match.nodeType === Node.ELEMENT_NODE) patch(match, child);
      else if (match.nodeValue !== child.nodeValue) match.nodeValue = child.nodeValue;
    } else {
      old.insertBefore(child, here);
    }
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}

function same(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && (one.id ?? "") === (other.id ?? "");
}

let asking = null;

/** Fetch this page again and put in what is new. Calls while one is in progress wait for it, and for one more. */
export async function refresh() {
  if (asking) { asking.again = true; return; }
  asking = { again: false };
  try {
    do {
      asking.again = false;
      const headers = { Accept: "text/html", "X-Whet-Refresh": "1" };
      const answer = await fetch(location.href, { headers, cache: "no-store" });
      if (new URL(answer.url).pathname !== location.pathname) { location.reload(); return; } // the session has ended
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const old of document.querySelectorAll("[data-live]")) {
        const fresh = page.getElementById(old.id);
        if (!fresh) { location.reload(); return; } // the page has another shape now: curves, say, with the first step
        patch(old, fresh);
      }
      updateTimes();
      document.dispatchEvent(new Event("refreshed"));
    } while (asking.again);
  } finally {
    asking = null;
  }
}

/** At most one call in `ms`, the last one never lost. */
export function throttle(act, ms) {
  let last = 0, timer = 0;
  return () => {
    if (timer) return;
    timer = setTimeout(() => { timer = 0; last = Date.now(); act(); }, Math.max(0, last + ms - Date.now()));
  };
}

/**
 * Follow the events of `path` (below the data's routes) while the page is seen.
 * `on(kind, data)` is called for each; `poll()` where events do not come through, and after a pause.
 */
export function follow(path, on, poll) {
  const url = document.body.dataset.data + path;
  const light = document.getElementById("live-state");
  let source = null, polling = 0, lost = 0, ended = false;

  const say = (state, text) => {
    if (!light) return;
    light.dataset.live = state;
    light.textContent = text;
    light.hidden = false;
  };
  const ask = () => Promise.resolve(poll()).then(
    () => { if (polling) say("on", "live"); },
    () => say("lost", "no connection"),
  );
  const open = () => {
    if (source || ended || document.hidden) return;
    source = new EventSource(url);
    source.addEventListener("open", () => {
      lost = 0;
      clearInterval(polling);
      polling = 0;
      say("on", "live");
      ask(); // for what came between the page and its events
    });
    source.addEventListener("error", () => {
      lost += 1;
      if (source?.readyState !== EventSource.CLOSED && lost <= 2) { say("lost", "reconnecting"); return; }
      close();
      startPolling();
    });
    for (const kind of EVENTS) {
      source.addEventListener(kind, (event) => {
        let data;
        try { data = JSON.parse(event.data); } catch { return; }
        on(kind, data);
      });
    }
    source.addEventListener("end", () => { ended = true; close(); say("off", "ended"); ask(); });
  };
  const startPolling = () => {
    if (polling || ended) return;
    polling = setInterval(() => { if (!document.hidden) ask(); }, POLL_MS);
    ask();
  };
  const close = () => { source?.close(); source = null; };

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { close(); return; }
    if (!ended) ask();
    if (!polling) open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", (event) => { if (event.persisted) { ask(); open(); } });
  open();
}

export { root, toast };
