// The table of runs is replaced as a whole when something has changed. What a person has begun stays as it is: which runs
// are selected (it stands in the address, too), how far the table is scrolled, a text that is being marked.
"use strict";
(() => {
  const table = () => document.querySelector("#compare");
  const boxes = () => [...document.querySelectorAll('#compare input[name="run"]')];
  let isPressed = false;
  let scrolled = 0;

  const selected = () => new Set(new URL(location.href).searchParams.getAll("run"));

  function keep(names) {
    const url = new URL(location.href);
    url.searchParams.delete("run");
    for (const name of names) url.searchParams.append("run", name);
    history.replaceState(history.state, "", url);
  }

  function isBusy() {
    const marked = document.getSelection();
    const within = marked && !marked.isCollapsed && table() && table().contains(marked.anchorNode);
    return isPressed || within || document.hidden;
  }

  document.addEventListener("pointerdown", () => { isPressed = true; });
  for (const ended of ["pointerup", "pointercancel"]) document.addEventListener(ended, () => { isPressed = false; });

  document.addEventListener("change", (event) => {
    if (event.target.name !== "run") return;
    const names = selected();
    if (event.target.checked) names.add(event.target.value);
    else names.delete(event.target.value);
    keep(names);
  });

  // What is selected on another page of the table, or hidden by a filter, is compared all the same.
  document.addEventListener("submit", (event) => {
    if (event.target.id !== "compare") return;
    event.preventDefault();
    const names = [...selected()];
    if (names.length) location.href = `/compare?${new URLSearchParams(names.map((name) => ["run", name]))}`;
  });

  // Links within the table lead to other views of it: the selection goes along.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("#runs a[href^='/?'], #runs a[href='/']");
    if (!link) return;
    const url = new URL(link.href);
    for (const name of selected()) url.searchParams.append("run", name);
    link.href = url.href;
  });

  document.addEventListener("htmx:beforeRequest", (event) => {
    if (event.target.id === "runs" && isBusy()) event.preventDefault();
  });
  document.addEventListener("htmx:configRequest", (event) => {
    if (event.target.id !== "runs") for (const name of selected()) event.detail.parameters.append("run", name);
  });
  document.addEventListener("htmx:beforeSwap", () => { scrolled = table() ? table().scrollLeft : 0; });
  document.addEventListener("htmx:afterSettle", () => {
    if (!table()) return;
    table().scrollLeft = scrolled;
    const names = selected();
    for (const box of boxes()) box.checked = names.has(box.value);
  });
})();
