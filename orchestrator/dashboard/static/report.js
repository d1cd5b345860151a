// Before a report is printed: light colours, whatever is shown. charts.js draws what was not in sight yet.
"use strict";
(() => {
  const root = document.documentElement;
  let shown;
  addEventListener("beforeprint", () => {
    shown = root.dataset.theme;
    root.dataset.theme = "light";
    document.dispatchEvent(new Event("theme"));
  });
  addEventListener("afterprint", () => {
    if (shown) root.dataset.theme = shown;
    else delete root.dataset.theme;
    document.dispatchEvent(new Event("theme"));
  });
})();
