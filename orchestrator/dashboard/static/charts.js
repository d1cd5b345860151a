// Draws each figure of the page with plotly: `data-figure` is where its data lie, or the id of an element that holds them
// as JSON. The curves' settings in a form with `data-chart-controls` are sent along and kept in the page's address; figures
// with `data-live` are asked for again and again; for the others within `data-changes` that address is asked what is new,
// for all that are in sight at once. Zooming into a figure of a server asks for the points between.
"use strict";
(() => {
  const SECONDS_BETWEEN_LOOKS = 4;
  const SETTINGS = ["x", "smoothing", "log", "perplexity"];
  const MOST_FOLLOWED = 30, MOST_POINTS = 3000, MOST_KEPT = 100;
  // Pixels that fit on A4 and letter, upright and within margins, beside another one and alone.
  const ON_PAPER = { beside: 336, alone: 690 };
  const drawn = new WeakMap();
  const inSight = new Set();
  const kept = new Map(); // figures by their address: those of a page whose charts are arranged anew are there at once
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

  // Of one value plotly shows what lies within 1 of it, whatever its size: a learning rate would be 0.
  function around(found, letter) {
    const axis = found.layout[`${letter}axis`] || {};
    const lines = (found.layout.shapes || []).some((shape) => shape[`${letter}ref`] === letter && shape.name === "plan");
    if (lines || axis.range || axis.rangemode || !["linear", "log", undefined].includes(axis.type)) return {};
    const own = found.data.filter((trace) => trace.type === "scatter" && !trace.yaxis && !trace.stackgroup);
    const values = own.flatMap((trace) => trace[letter]).filter((value) => value !== null);
    if (!values.length || !values.every(Number.isFinite)) return {};
    const least = values.reduce((one, other) => Math.min(one, other)), most = values.reduce((one, other) => Math.max(one, other));
    if (most - least > 1e-9 * Math.max(Math.abs(least), Math.abs(most))) return {};
    if (axis.type === "log") return least > 0 ? { [`${letter}axis`]: { ...axis, range: [Math.log10(least) - 0.5, Math.log10(least) + 0.5] } } : {};
    const room = Math.abs(least) / 10 || 1;
    return { [`${letter}axis`]: { ...axis, range: [least - room, most + room] } };
  }

  const paperSize = (figure) => ({
    width: figure.closest(".charts.wide") ? ON_PAPER.alone : ON_PAPER.beside, height: figure.querySelector("div").clientHeight,
  });

  async function draw(figure, found) {
    drawn.set(figure, found);
    const place = figure.querySelector("div");
    figure.classList.toggle("empty", found.data.length === 0);
    const themedLayout = themed({ ...found.layout, ...around(found, "x"), ...around(found, "y") });
    const layout = onPaper ? { ...themedLayout, autosize: false, ...paperSize(figure) } : themedLayout;
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

  function withSettings(url) {
    for (const form of forms()) {
      for (const [name, value] of new FormData(form)) if (SETTINGS.includes(name)) url.searchParams.append(name, value);
    }
    return url;
  }

  function address(figure) {
    const url = withSettings(new URL(figure.dataset.figure, location.href));
    const all = figure.closest("[data-query]"); // what the addresses of several figures have in common
    for (const [name, value] of new URLSearchParams(all ? all.dataset.query : "")) url.searchParams.append(name, value);
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
    const known = kept.get(asked.href);
    if (known && drawn.get(figure) !== known.found) draw(figure, known.found);
    try {
      const answer = await fetch(asked, { headers: known && known.tag ? { "If-None-Match": known.tag } : {} });
      if (figure.asked !== asked.href) return;
      if (answer.status !== 304) {
        if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
        const found = await answer.json();
        if (found.problem && !drawn.has(figure)) await draw(figure, found);
        if (found.problem) throw new Error(found.problem);
        keep(asked.href, { found, tag: answer.headers.get("etag") });
        await draw(figure, found);
        listAnew(figure, found.now);
      }
      say(figure, "");
    } catch (error) {
      say(figure, `not up to date: ${error.message}`);
    }
  }

  function keep(href, made) {
    kept.delete(href);
    kept.set(href, made);
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  }

  // A run has measured something that the page did not know of: its charts are listed anew.
  function listAnew(element, now) {
    const section = element.closest("[data-known]");
    if (!section || !now || now.keys <= Number(section.dataset.known)) return;
    section.dataset.known = now.keys;
    section.closest("form").requestSubmit();
  }

  // What was measured since the figures in sight were drawn, in one answer; it has no content where nothing was.
  async function follow(section) {
    const followed = [...inSight].filter((each) => section.contains(each) && drawn.has(each) && drawn.get(each).now)
      .slice(0, MOST_FOLLOWED);
    if (!followed.length || section.isAsking) return;
    section.isAsking = true;
    const oldest = followed.map((each) => drawn.get(each).now).sort((one, other) => one.offset - other.offset)[0];
    const url = withSettings(new URL(section.dataset.changes, location.href));
    for (const [name, value] of Object.entries(oldest)) url.searchParams.set(name, value);
    for (const each of followed) url.searchParams.append("chart", each.dataset.chart);
    try {
      const answer = await fetch(url);
      if (answer.status === 204) return followed.forEach((each) => say(each, ""));
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const { now, figures, problem } = await answer.json();
      if (problem) throw new Error(problem);
      for (const figure of followed) {
        const added = figures && figures[figure.dataset.chart];
        if (added && !figure.range && append(figure, added, now)) say(figure, "");
        else load(figure);
      }
      listAnew(section, now);
    } catch (error) {
      for (const each of followed) say(each, `not up to date: ${error.message}`);
    } finally {
      section.isAsking = false;
    }
  }

  // New points stand behind those that a figure has; what they repeat is replaced. False where they do not fit.
  function append(figure, added, now) {
    const found = drawn.get(figure);
    const curves = found.data.filter((trace) => !trace.meta);
    if (curves.length !== added.length || address(figure).href !== figure.asked) return false;
    if (curves.some((trace) => trace.x.length > MOST_POINTS)) return false;
    curves.forEach((trace, number) => {
      const { x, y } = added[number];
      let end = trace.x.length;
      while (x.length && end && trace.x[end - 1] >= x[0]) end -= 1;
      trace.x = [...trace.x.slice(0, end), ...x];
      trace.y = [...trace.y.slice(0, end), ...y];
      if (trace.mode === "markers" && trace.x.length > 1) trace.mode = "lines";
    });
    found.now = now;
    keep(figure.asked, { found });
    draw(figure, found);
    return true;
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
    if (request.status !== 200) return;
    const found = JSON.parse(request.responseText);
    draw(figure, found);
    if (found.problem) say(figure, `not up to date: ${found.problem}`);
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

  // Buttons of the form around the charts: where they stand among the others, and whether they are shown.
  function addTools(figure) {
    const { chart, pinned } = figure.dataset;
    const title = figure.getAttribute("aria-label");
    const pins = [...document.querySelectorAll("[data-pinned]")];
    const tools = document.createElement("p");
    tools.className = "tools";
    const add = (verb, sign, words, id = verb, disabled = false) => {
      const button = document.createElement("button");
      Object.assign(button, { name: "do", value: `${verb}:${chart}`, id: `${id}-${chart}`, textContent: sign, title: words, disabled });
      button.setAttribute("aria-label", words.replace(/^\w+/, (word) => `${word} ${title}`));
      tools.append(button);
    };
    if (pinned !== undefined && pins.length > 1) {
      add("earlier", "←", "Move earlier", "earlier", figure === pins[0]);
      add("later", "→", "Move later", "later", figure === pins[pins.length - 1]);
    }
    if (pinned === undefined) add("pin", "☆", "Pin: show first");
    else add("unpin", "★", "Unpin", "pin");
    add("hide", "✕", "Hide");
    figure.append(tools);
  }

  const all = (selector = "") => [...document.querySelectorAll(`[data-figure]${selector}`)];

  // The page's address says how the curves are drawn, so that it can be sent; what is as it was at first is left out.
  function keepInAddress() {
    const url = new URL(location.href);
    for (const form of forms()) {
      for (const field of form.elements) {
        if (!SETTINGS.includes(field.name)) continue;
        const isFirst = field.type === "checkbox" ? !field.checked
          : field.tagName === "SELECT" ? field.selectedIndex === 0 : Number(field.value) === 0;
        if (isFirst) url.searchParams.delete(field.name);
        else url.searchParams.set(field.name, field.value);
      }
    }
    history.replaceState(history.state, "", url);
  }

  document.addEventListener("DOMContentLoaded", () => {
    // Those in sight first; the others when they come into it.
    const seen = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (!isIntersecting || !target.isConnected) inSight.delete(target);
        else {
          inSight.add(target);
          if (!target.asked) load(target);
        }
      }
    }, { rootMargin: "300px" });
    const known = new WeakSet();
    const look = () => all().filter((figure) => !known.has(figure)).forEach((figure) => {
      known.add(figure);
      placeForProblems(figure);
      if (figure.dataset.chart) addTools(figure);
      seen.observe(figure);
    });
    look();
    // A button counts where it was pressed; htmx sends the one that has the focus, too. The answer's address is the shortest.
    document.addEventListener("htmx:configRequest", (event) => {
      const { parameters, triggeringEvent } = event.detail;
      if (event.target.matches("[data-chart-controls]") && !triggeringEvent?.submitter) parameters.set("do", "");
    });
    let focused = "";
    document.addEventListener("htmx:beforeSwap", (event) => {
      focused = document.activeElement.id;
      if (event.detail.target.id === "charts") all().filter((figure) => drawn.has(figure)).forEach((figure) => Plotly.purge(figure.querySelector("div")));
    });
    document.addEventListener("htmx:afterSettle", (event) => {
      look();
      // Where what had the focus is gone, a keyboard goes on from the charts.
      if (event.target.id !== "charts" || document.activeElement !== document.body) return;
      const before = document.getElementById(focused);
      (before && !before.disabled ? before : event.target).focus({ preventScroll: true });
    });
    let waiting;
    for (const form of forms()) {
      form.addEventListener("input", (event) => {
        if (!SETTINGS.includes(event.target.name)) return;
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
      if (document.hidden) return;
      all("[data-live]").filter((figure) => inSight.has(figure) && drawn.has(figure)).forEach(load);
      document.querySelectorAll("[data-changes]").forEach(follow);
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
