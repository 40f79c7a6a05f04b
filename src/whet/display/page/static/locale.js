// Imported before uPlot, which formats numbers in the browser's language. Chromium under LANG=C calls it en-US@posix,
// which `Intl` refuses.
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US" });
}
