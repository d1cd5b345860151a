// Draws each figure of the page with plotly: `data-figure` is where its data lie, or the id of an element that holds them
// as JSON. A form with `data-chart-controls` is sent along, and figures with `data-live` are asked for again and again.
"use strict";
(() => {
  const SECONDS_BETWEEN_LOOKS = 4;
  const drawn = new WeakMap();

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const palette = () => Array.from({ length: 8 }, (_, number) => colour(`--series-${number + 1}`));

  function themed(layout) {
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), automargin: true };
    const marks = { resumed: colour("--running"), failure: colour("--failed"), stop: colour("--stopped") };
    const shapes = (layout.shapes || []).map((shape) => ({
      ...shape, line: { color: marks[shape.name] || colour("--line"), width: 1, dash: "dot" },
    }));
    const own = Object.fromEntries(
      Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key)).map((key) => [key, { ...axis, ...layout[key] }]));
    return {
      margin: { l: 56, r: 16, t: 44, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--text"), family: colour("--font"), size: 12 }, colorway: palette(),
      hovermode: "x unified", hoverlabel: { bgcolor: colour("--card"), font: { color: colour("--text") } },
      legend: { orientation: "h", y: -0.22 }, uirevision: "kept", autosize: true,
      xaxis: axis, yaxis: axis, ...layout, ...own, shapes,
    };
  }

  function draw(figure, found) {
    drawn.set(figure, found);
    const place = figure.querySelector("div");
    figure.classList.toggle("empty", found.data.length === 0);
    return Plotly.react(place, found.data, themed(found.layout), { responsive: true, displaylogo: false });
  }

  function address(figure) {
    const url = new URL(figure.dataset.figure, location.href);
    for (const form of document.querySelectorAll("form[data-chart-controls]")) {
      for (const [name, value] of new FormData(form)) url.searchParams.append(name, value);
    }
    return url;
  }

  async function load(figure) {
    const embedded = document.getElementById(figure.dataset.figure);
    if (embedded) return draw(figure, JSON.parse(embedded.textContent));
    const asked = address(figure);
    figure.asked = asked.href;
    const headers = figure.tag && figure.tagged === asked.href ? { "If-None-Match": figure.tag } : {};
    try {
      const answer = await fetch(asked, { headers });
      if (figure.asked !== asked.href || answer.status === 304) return;
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      figure.tag = answer.headers.get("etag");
      figure.tagged = asked.href;
      await draw(figure, await answer.json());
      figure.removeAttribute("data-problem");
    } catch (error) {
      figure.dataset.problem = `not up to date: ${error.message}`;
    }
  }

  const all = (selector = "") => [...document.querySelectorAll(`[data-figure]${selector}`)];

  document.addEventListener("DOMContentLoaded", () => {
    // Those in sight first; the others when they come into it.
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        seen.unobserve(entry.target);
        load(entry.target);
      }
    }, { rootMargin: "300px" });
    all().forEach((figure) => seen.observe(figure));
    let waiting;
    for (const form of document.querySelectorAll("form[data-chart-controls]")) {
      form.addEventListener("submit", (event) => event.preventDefault());
      form.addEventListener("input", () => {
        clearTimeout(waiting);
        waiting = setTimeout(() => all().filter((figure) => drawn.has(figure)).forEach(load), 150);
      });
    }
    setInterval(() => {
      if (!document.hidden) all("[data-live]").filter((figure) => drawn.has(figure)).forEach(load);
    }, SECONDS_BETWEEN_LOOKS * 1000);
    document.addEventListener("theme", () =>
      all().filter((figure) => drawn.has(figure)).forEach((figure) => draw(figure, drawn.get(figure))));
  });
})();
