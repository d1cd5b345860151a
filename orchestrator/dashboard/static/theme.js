// Before anything is drawn: the colours that were chosen here last, or the system's.
"use strict";
(() => {
  const root = document.documentElement;
  const chosen = localStorage.getItem("theme");
  if (chosen) root.dataset.theme = chosen;
  const isDark = () =>
    (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  document.addEventListener("click", (event) => {
    if (!event.target.closest("#theme")) return;
    root.dataset.theme = isDark() ? "light" : "dark";
    localStorage.setItem("theme", root.dataset.theme);
    document.dispatchEvent(new Event("theme"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("theme")));
})();
