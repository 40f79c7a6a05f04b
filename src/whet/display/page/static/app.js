// On every page: the switch of themes, the keyboard, relative times, and messages. Text is only ever set as text.
// Other modules import `toast`; a theme that changed is announced by the event "themechange" on the document.

const root = document.body.dataset.root;

// Messages

export function toast(text, { error = false, seconds = 6 } = {}) {
  const area = document.getElementById("toasts");
  const box = document.createElement("div");
  box.className = error ? "toast error" : "toast";
  box.textContent = text;
  area.append(box);
  setTimeout(() => box.remove(), seconds * 1000);
}

// Theme

const dark = matchMedia("(prefers-color-scheme: dark)");

export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : dark.matches;
}

function switchTheme() {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("whet-theme", theme); } catch { /* for this page alone */ }
  announceTheme();
}

function announceTheme() {
  document.getElementById("theme")?.setAttribute("aria-pressed", String(isDark()));
  document.dispatchEvent(new Event("themechange"));
}

document.getElementById("theme")?.addEventListener("click", switchTheme);
dark.addEventListener("change", announceTheme);
announceTheme();

// Times: the server writes them whole; here they become "3 min ago", with the whole time as the title

function ago(seconds) {
  if (seconds < 5) return "now";
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]]) {
    if (seconds >= length) return `${Math.floor(seconds / length)} ${unit} ago`;
  }
}

export function updateTimes() {
  for (const time of document.querySelectorAll("time[data-ago]")) {
    const at = Date.parse(time.dateTime);
    if (Number.isNaN(at)) continue;
    if (!time.title) time.title = new Date(at).toLocaleString();
    const text = ago(Math.max(0, (Date.now() - at) / 1000));
    if (time.textContent !== text) time.textContent = text;
  }
}

updateTimes();
setInterval(() => { if (!document.hidden) updateTimes(); }, 10_000);

// On a narrow screen the links at the top scroll: the one of this page is in sight

for (const link of document.querySelectorAll(".nav a[aria-current], .tabs a[aria-current]")) {
  const bar = link.parentElement;
  bar.scrollLeft = link.offsetLeft - bar.offsetLeft - (bar.clientWidth - link.clientWidth) / 2;
}

// Lists: j and k walk the items of [data-list]; Enter opens one, x selects it

function items() {
  return [...document.querySelectorAll("[data-list] [data-item]")].filter((one) => one.checkVisibility());
}

function walk(by) {
  const all = items();
  if (!all.length) return;
  const now = all.findIndex((one) => one.hasAttribute("aria-current"));
  const next = all[Math.min(all.length - 1, Math.max(0, now < 0 ? (by > 0 ? 0 : all.length - 1) : now + by))];
  for (const one of all) one.removeAttribute("aria-current");
  next.setAttribute("aria-current", "true");
  next.scrollIntoView({ block: "nearest" });
  (next.querySelector("[data-open]") ?? next).focus({ preventScroll: true });
}

const current = () => document.querySelector("[data-list] [data-item][aria-current]");

// Keys

const HELP = document.getElementById("help");
const GO = new Map([...document.querySelectorAll("[data-go]")].map((link) => [link.dataset.go, link.href]));
const KEYS = {
  "?": () => HELP?.showModal(),
  "/": () => document.querySelector("[data-search]")?.focus(),
  "j": () => walk(1),
  "k": () => walk(-1),
  "x": () => current()?.querySelector("input[type=checkbox]")?.click(),
  "t": switchTheme,
  "u": () => document.querySelector("a[rel~=up]")?.click(),
  "ArrowLeft": () => document.querySelector("a[rel~=prev]")?.click(),
  "ArrowRight": () => document.querySelector("a[rel~=next]")?.click(),
};
let waitsForPlace = 0; // until when the key after g is one

function typed(target) {
  return target.closest?.("textarea, select, [contenteditable], input:not([type=checkbox], [type=radio])") ?? null;
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || HELP?.open) return;
  const field = typed(event.target);
  if (field) {
    if (event.key === "Escape") field.blur();
    return;
  }
  if (event.key.startsWith("Arrow") && event.target.closest("[data-arrows], .table-wrap, pre")) return;
  if (waitsForPlace > Date.now()) {
    waitsForPlace = 0;
    const target = GO.get(event.key);
    if (target) { event.preventDefault(); location.assign(target); }
    return;
  }
  if (event.key === "g") { waitsForPlace = Date.now() + 1500; return; }
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
});

document.getElementById("help-button")?.addEventListener("click", () => HELP?.showModal());
for (const button of document.querySelectorAll("[data-close]")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}

// Forms: a filter is applied as soon as it is chosen; what cannot be undone asks first; commands are copied by a button

for (const form of document.querySelectorAll("form[data-auto]")) {
  form.addEventListener("change", (event) => { if (event.target.type !== "search") form.requestSubmit(); });
  // Fields that are empty are no part of the URL; what the form has no field for can stay in it.
  form.addEventListener("formdata", (event) => {
    for (const [name, value] of [...event.formData]) if (value === "") event.formData.delete(name);
    if (!("keepQuery" in form.dataset)) return;
    for (const [name, value] of new URL(location.href).searchParams) {
      if (!form.elements.namedItem(name)) event.formData.append(name, value);
    }
  });
}

document.addEventListener("submit", (event) => {
  const question = event.submitter?.dataset.confirm ?? event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});

for (const block of document.querySelectorAll("pre[data-copy]")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "button quiet";
  button.dataset.copy = "";
  button.textContent = "Copy";
  block.after(button);
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) return;
  try {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent.trim());
    toast("Copied.");
  } catch {
    toast("This browser does not let pages copy here. Select the text.", { error: true });
  }
});

export { root };
