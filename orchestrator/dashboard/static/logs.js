// The end of a log: new lines are added while one follows it, and it stays at its end unless one has scrolled up.
"use strict";
(() => {
  const SECONDS_BETWEEN_LOOKS = 2;
  const MOST_LINES = 5000;

  function row(place, line) {
    const made = document.createElement("tr");
    made.id = `line-${line.number}`;
    if (line.trouble) made.className = "trouble";
    const where = made.insertCell();
    where.className = "where";
    const link = where.appendChild(document.createElement("a"));
    const url = new URL(place, location.href);
    url.pathname = url.pathname.replace(/\/new$/, "");
    url.searchParams.set("line", line.number);
    url.hash = made.id;
    link.href = url.href;
    link.textContent = line.number;
    made.insertCell().textContent = line.text;  // never as HTML
    return made;
  }

  // Adds what is new; whether there is more already.
  async function look(log) {
    const url = new URL(log.dataset.log, location.href);
    url.searchParams.set("from", log.dataset.end);
    try {
      const answer = await fetch(url);
      if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
      const found = await answer.json();
      log.removeAttribute("data-problem");
      const body = log.querySelector("tbody");
      const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      if (found.begin < Number(log.dataset.end)) body.replaceChildren();  // begun anew
      const unfinished = body.lastElementChild;
      if (found.lines.length && unfinished && unfinished.id === `line-${found.lines[0].number}`) unfinished.remove();
      body.append(...found.lines.map((line) => row(log.dataset.log, line)));
      while (body.childElementCount > MOST_LINES) body.firstElementChild.remove();
      log.dataset.end = found.end;
      if (isAtEnd) log.scrollTop = log.scrollHeight;
      return found.more;
    } catch (error) {
      log.dataset.problem = `not up to date: ${error.message}`;
      return false;
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    const log = document.querySelector("[data-log]");
    document.querySelector("form select[name=file]")?.addEventListener("change", (event) => event.target.form.requestSubmit());
    if (!log) return;
    log.scrollTop = log.scrollHeight;
    const follows = document.querySelector("[data-follow]");
    const again = async () => {
      const isBehind = follows.checked && !document.hidden && await look(log);
      setTimeout(again, isBehind ? 0 : SECONDS_BETWEEN_LOOKS * 1000);
    };
    again();
  });
})();
