// Draws each figure of the page with plotly: `data-figure` is where its data lie, or the id of an element that holds them
// as JSON. A form with `data-chart-controls` is sent along and kept in the page's address; figures with `data-live` are
// asked for again and again; zooming into one of a server asks for the points between.
"use strict";
(() => {
  const SECONDS_BETWEEN_LOOKS = 4;
  // Pixels that fit on A4 and letter, upright and within margins, beside another one and alone.
  const ON_PAPER = { beside: 336, alone: 690 };
  const drawn = new WeakMap();
  let onPaper = false;

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const palette = () => Array.from({ length: 8 }, (_, number) => colour(`--series-${number + 1}`));

  // A figure names a colour of the page (`series-3`) where it means one curve of several charts.
  function coloured(trace) {
    const meant = (part) => part && /^[a-z]+(-\d)?$/.test(part.color || "") && colour(`--${part.color}`)
      ? { ...part, color: colour(`--${part.color}`) } : part;
    return { ...trace, ...(trace.line && { line: meant(trace.line) }), ...(trace.marker && { marker: meant(trace.marker) }) };
  }

  function themed(layout) {
    const axis = { gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), automargin: true };
    const marks = { resumed: colour("--running"), failure: colour("--failed"), stop: colour("--stopped"), plan: colour("--dim") };
    const legend = { orientation: "h", yref: "container", y: 0, yanchor: "bottom" };
    const shapes = (layout.shapes || []).map((shape) => ({
      ...shape, line: { color: marks[shape.name] || colour("--line"), width: 1, dash: shape.name === "plan" ? "dash" : "dot" },
    }));
    const annotations = (layout.annotations || []).map((note) => (note.bgcolor ? { ...note, bgcolor: colour(`--${note.bgcolor}`) } : note));
    const own = Object.fromEntries(
      Object.keys(layout).filter((key) => /^[xy]axis\d*$/.test(key)).map((key) => [key, { ...axis, ...layout[key] }]));
    return {
      margin: { l: 56, r: 16, t: 44, b: 44 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: colour("--text"), family: colour("--font"), size: 12 }, colorway: palette(),
      hovermode: "x unified", hoverlabel: { bgcolor: colour("--card"), font: { color: colour("--text") } },
      uirevision: "kept", autosize: true,
      xaxis: axis, yaxis: axis, ...layout, ...own, shapes, annotations, legend: { ...legend, ...layout.legend },
    };
  }

  const paperSize = (figure) => ({
    width: figure.closest(".charts.wide") ? ON_PAPER.alone : ON_PAPER.beside, height: figure.querySelector("div").clientHeight,
  });

  async function draw(figure, found) {
    drawn.set(figure, found);
    const place = figure.querySelector("div");
    figure.classList.toggle("empty", found.data.length === 0);
    const layout = onPaper ? { ...themed(found.layout), autosize: false, ...paperSize(figure) } : themed(found.layout);
    await Plotly.react(place, found.data.map(coloured), layout, { responsive: true, displaylogo: false });
    if (!figure.zooms && !document.getElementById(figure.dataset.figure)) {
      figure.zooms = true;
      place.on("plotly_relayout", (change) => zoomed(figure, change));
    }
  }

  // What plotly shows as a date is a time without a zone, which the server has written as if it were UTC.
  const plain = (end) => (typeof end === "string" ? Date.parse(`${end.trim().replace(" ", "T")}Z`) : end);

  function zoomed(figure, change) {
    if (change["xaxis.autorange"]) figure.range = null;
    else if (change["xaxis.range[0]"] !== undefined) figure.range = [change["xaxis.range[0]"], change["xaxis.range[1]"]].map(plain);
    else return;
    clearTimeout(figure.waiting);
    figure.waiting = setTimeout(() => load(figure), 150);
  }

  const forms = () => document.querySelectorAll("form[data-chart-controls]");

  function address(figure) {
    const url = new URL(figure.dataset.figure, location.href);
    for (const form of forms()) {
      for (const [name, value] of new FormData(form)) url.searchParams.append(name, value);
    }
    if (figure.range && figure.range.every(Number.isFinite)) {
      url.searchParams.set("from", figure.range[0]);
      url.searchParams.set("to", figure.range[1]);
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
      if (figure.asked !== asked.href) return;
      if (answer.status !== 304) {
        if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
        figure.tag = answer.headers.get("etag");
        figure.tagged = asked.href;
        await draw(figure, await answer.json());
      }
      say(figure, "");
    } catch (error) {
      say(figure, `not up to date: ${error.message}`);
    }
  }

  // A browser that prints waits for no answer: what was never in sight is asked for at once.
  function drawAtOnce(figure) {
    const request = new XMLHttpRequest();
    request.open("GET", address(figure), false);
    try {
      request.send();
    } catch (error) {
      return say(figure, `not up to date: ${error.message}`); // the others are still drawn
    }
    if (request.status === 200) draw(figure, JSON.parse(request.responseText));
  }

  // Beside the curve, and said aloud once: the place for it is there before its text, as readers of screens want it.
  function say(figure, text) {
    const place = figure.querySelector("[role=status]");
    if (place.textContent !== text) place.textContent = text;
  }

  function placeForProblems(figure) {
    const place = document.createElement("figcaption");
    place.setAttribute("role", "status");
    figure.append(place);
  }

  const all = (selector = "") => [...document.querySelectorAll(`[data-figure]${selector}`)];

  // The page's address says how the curves are drawn, so that it can be sent; what is as it was at first is left out.
  function keepInAddress() {
    const url = new URL(location.href);
    for (const form of forms()) {
      for (const field of form.elements) {
        if (!field.name) continue;
        const isFirst = field.type === "checkbox" ? !field.checked
          : field.tagName === "SELECT" ? field.selectedIndex === 0 : field.value === field.dataset.first;
        if (isFirst) url.searchParams.delete(field.name);
        else url.searchParams.set(field.name, field.value);
      }
    }
    history.replaceState(history.state, "", url);
  }

  document.addEventListener("DOMContentLoaded", () => {
    // Those in sight first; the others when they come into it.
    const seen = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        if (!entry.isIntersecting) continue;
        seen.unobserve(entry.target);
        load(entry.target);
      }
    }, { rootMargin: "300px" });
    const known = new WeakSet();
    const look = () => all().filter((figure) => !known.has(figure)).forEach((figure) => {
      known.add(figure);
      placeForProblems(figure);
      seen.observe(figure);
    });
    look();
    document.addEventListener("htmx:afterSettle", look);
    let waiting;
    for (const form of forms()) {
      form.addEventListener("submit", (event) => event.preventDefault());
      form.addEventListener("input", (event) => {
        clearTimeout(waiting);
        waiting = setTimeout(() => {
          keepInAddress();
          for (const figure of all().filter((each) => drawn.has(each))) {
            if (event.target.name === "x" && figure.range) {  // the other axis has other numbers
              figure.range = null;
              Plotly.relayout(figure.querySelector("div"), { "xaxis.autorange": true });
            }
            load(figure);
          }
        }, 150);
      });
    }
    // The answer to what changed is 304 where nothing did: a run that has ended can be resumed.
    setInterval(() => {
      if (!document.hidden) all("[data-live]").filter((figure) => drawn.has(figure)).forEach(load);
    }, SECONDS_BETWEEN_LOOKS * 1000);
    const drawAgain = () => all().filter((figure) => drawn.has(figure)).forEach((figure) => draw(figure, drawn.get(figure)));
    document.addEventListener("theme", drawAgain);
    // On paper everything is in sight, and reports have drawings for it.
    const isEmbedded = (figure) => document.getElementById(figure.dataset.figure);
    addEventListener("beforeprint", () => {
      onPaper = all().some((figure) => !isEmbedded(figure));
      if (!onPaper) return;
      drawAgain();
      all().filter((figure) => !drawn.has(figure)).forEach(drawAtOnce);
    });
    addEventListener("afterprint", () => {
      if (onPaper) {
        onPaper = false;
        drawAgain();
      }
    });
  });
})();
