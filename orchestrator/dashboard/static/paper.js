// A page that is printed is light, and nothing of it is folded up; charts hear of it afterwards (charts.js).
"use strict";
(() => {
  const root = document.documentElement;
  let chosen, folded = [];
  addEventListener("beforeprint", () => {
    chosen = root.dataset.theme;
    root.dataset.theme = "light";
    folded = [...document.querySelectorAll("main details:not([open], .help, .picker)")];
    for (const part of folded) part.open = true;
  });
  addEventListener("afterprint", () => {
    if (chosen) root.dataset.theme = chosen;
    else delete root.dataset.theme;
    for (const part of folded) part.open = false;
  });
})();
