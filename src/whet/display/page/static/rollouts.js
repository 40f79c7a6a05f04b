// Pages of rollouts, groups, tokens and logs. Without this script they work by links and forms alone.

/** Whether a key belongs to what is being typed, or to the browser. */
function isTyping(event) {
  return event.ctrlKey || event.metaKey || event.altKey
    || event.target.closest?.("input, select, textarea, [contenteditable], dialog[open]");
}

// j and k: next and previous where there is no list to walk (app.js walks lists); links may have a key of their own.
document.addEventListener("keydown", (event) => {
  if (isTyping(event) || event.defaultPrevented) return;
  const near = { j: "a[rel=next]", k: "a[rel=prev]" }[event.key];
  const link = near && !document.querySelector("[data-list]")
    ? document.querySelector(near)
    : /^[a-z]$/.test(event.key) ? document.querySelector(`a[data-key="${event.key}"]`) : null;
  if (link) {
    event.preventDefault();
    link.click();
  }
});

const tokens = document.getElementById("token-list");
if (tokens) followTokens(tokens);

/** Facts of the token under the pointer or with the focus; arrow keys move, `n` goes to the next unlikely one. */
function followTokens(list) {
  const facts = document.getElementById("token-facts");
  const all = [...list.querySelectorAll(".t")];
  const unlikely = ".p-unlikely, .p-rare, .p-rarest";
  const words = new Map(all.map((token) => [token, token.title]));
  for (const token of all) token.removeAttribute("title");  // the line above says it, without a delay
  const stop = () => list.querySelector(".t[tabindex='0']") ?? all[0];

  function show(token) { if (words.has(token)) facts.textContent = words.get(token); }
  function select(token) {
    for (const one of list.querySelectorAll(".t[aria-current]")) one.removeAttribute("aria-current");
    stop().tabIndex = -1;
    token.tabIndex = 0;
    token.setAttribute("aria-current", "true");
    show(token);
    const url = new URL(location.href);
    url.searchParams.set("token", token.id.slice(1));
    url.hash = "tokens";
    history.replaceState(null, "", url);
  }
  list.addEventListener("pointerover", (event) => show(event.target));
  list.addEventListener("pointerleave", () => { const chosen = list.querySelector("[aria-current]"); if (chosen) show(chosen); });
  list.addEventListener("focusin", (event) => show(event.target));
  list.addEventListener("click", (event) => {
    const token = event.target.closest(".t");
    if (!token || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
    event.preventDefault();
    select(token);
    token.focus({ preventScroll: true });
  });
  list.addEventListener("keydown", (event) => {
    if (isTyping(event)) return;
    const at = all.indexOf(document.activeElement);
    if (at < 0) return;
    const next = {
      ArrowRight: () => all[at + 1],
      ArrowLeft: () => all[at - 1],
      ArrowDown: () => below(at, 1),
      ArrowUp: () => below(at, -1),
      Home: () => all[0],
      End: () => all.at(-1),
      n: () => all.slice(at + 1).find((token) => token.matches(unlikely)),
      N: () => all.slice(0, at).findLast((token) => token.matches(unlikely)),
    }[event.key];
    if (!next) return;
    event.preventDefault();
    event.stopPropagation();
    const token = next();
    if (token) {
      select(token);
      token.focus();
    }
  });
  /** The token in the line below (or above) that is nearest to this one. */
  function below(at, way) {
    const here = all[at].getClientRects()[0];
    let best, distance = Infinity, line;
    for (let index = at + way; index >= 0 && index < all.length; index += way) {
      const there = all[index].getClientRects()[0];
      if (!there || Math.abs(there.top - here.top) < 4) continue;
      line ??= there.top;
      if (Math.abs(there.top - line) >= 4) break;
      if (Math.abs(there.left - here.left) < distance) [best, distance] = [all[index], Math.abs(there.left - here.left)];
    }
    return best;
  }
  for (const link of document.querySelectorAll("a[data-shade]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      for (const other of document.querySelectorAll("a[data-shade]")) other.removeAttribute("aria-current");
      link.setAttribute("aria-current", "true");
      list.className = `tokens by-${link.dataset.shade}`;
      const url = new URL(location.href);
      url.searchParams.set("shade", link.dataset.shade);
      history.replaceState(null, "", url);
    });
  }
}

const log = document.querySelector("pre.log[data-follow]");
if (log) followLog(log);

/** Adds lines as they are written, as long as the box is checked; stays at the end unless scrolled up. */
function followLog(log) {
  const label = document.querySelector("[data-follow-switch]");
  const box = label.querySelector("input");
  label.hidden = false;
  log.scrollTop = log.scrollHeight;
  let next = log.dataset.follow;
  const most = 5000;
  async function look() {
    if (box.checked && !document.hidden) {
      try {
        const answer = await fetch(next, { headers: { Accept: "application/json" } });
        if (answer.ok) {
          const { lines, next: cursor } = await answer.json();
          const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
          for (const line of lines) {
            const entry = document.createElement("span");
            entry.className = `entry level-${/^[A-Z]+$/.test(line.level) ? line.level.toLowerCase() : "none"}`;
            const time = document.createElement("time");
            const headed = line.at && line.text.startsWith(line.at);
            if (headed) {
              time.title = line.at;
              time.textContent = line.at.slice(11, 19);
              entry.append(time);
            }
            entry.append(headed ? line.text.slice(line.at.length) : line.text);
            log.append(entry);
          }
          while (log.childElementCount > most) log.firstElementChild.remove();
          if (cursor) {
            const url = new URL(next, location.href);
            url.searchParams.delete("tail");
            url.searchParams.set("cursor", cursor);
            next = url.href;
          }
          if (atEnd && lines.length) log.scrollTop = log.scrollHeight;
        }
      } catch { /* the server is away for a moment: requested again below */ }
    }
    setTimeout(look, 1000);
  }
  setTimeout(look, 1000);
}
