// Loaded before the page is drawn, so that a chosen theme never flashes. Without a choice the system's counts.
"use strict";
try {
  const chosen = localStorage.getItem("whet-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* storage is refused: the system's theme */ }
document.documentElement.classList.add("scripted");
