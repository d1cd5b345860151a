// What a browser shows of an element, as an SVG of boxes, words and charts: ([selector, height]) => text.
([selector, most]) => {
  const root = document.querySelector(selector);
  const frame = root.getBoundingClientRect();
  const width = Math.round(frame.width), height = Math.round(Math.min(frame.height, most));
  const parts = [];
  const round = number => Math.round(number * 10) / 10;
  const escaped = text => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/"/g, "&quot;");
  const seen = colour => !/^rgba\(.*, 0\)$|^transparent$/.test(colour);
  const inside = box => box.width > 0 && box.height > 0 && box.bottom > frame.top && box.top < frame.top + height;

  const attributes = (style, font) =>
    `font-size="${style.fontSize}"${+style.fontWeight > 500 ? ` font-weight="${style.fontWeight}"` : ""}` +
    ` font-family="${/mono/i.test(font) ? "monospace" : "sans-serif"}"`;

  // Words of one line, as long as the browser made them, whatever font draws them here.
  const words = (text, box, style) => {
    const size = parseFloat(style.fontSize);
    const baseline = round(box.top - frame.top + (box.height + size * 0.7) / 2);
    parts.push(
      `<text x="${round(box.left - frame.left)}" y="${baseline}" textLength="${round(box.width)}"` +
      ` lengthAdjust="spacingAndGlyphs" fill="${style.color}" ${attributes(style, style.fontFamily)}>${escaped(text)}</text>`);
  };

  const lines = (node, style) => {
    const range = document.createRange();
    let line = "", box = null;
    const end = () => { if (box && line.trim()) words(line.trim(), box, style); line = ""; box = null; };
    for (const found of node.data.matchAll(/\S+\s*/g)) {
      range.setStart(node, found.index);
      range.setEnd(node, found.index + found[0].trimEnd().length);
      const next = range.getClientRects()[0];
      if (!next || !inside(next)) continue;
      if (box && Math.abs(next.top - box.top) > 3) end();
      line += found[0].replace(/\s+/g, " ");
      box = box ? new DOMRect(box.left, box.top, next.right - box.left, box.height) : next;
    }
    end();
  };

  const chart = svg => {
    const box = svg.getBoundingClientRect();
    if (!inside(box)) return;
    const kept = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "opacity", "font-size", "text-anchor"];
    const copy = svg.cloneNode(true);
    const originals = svg.querySelectorAll("*"), copies = copy.querySelectorAll("*");
    originals.forEach((original, index) => {
      const style = getComputedStyle(original), made = copies[index];
      const initial = { fill: "rgb(0, 0, 0)", stroke: "none", "stroke-width": "1px", "stroke-dasharray": "none", "text-anchor": "start" };
      for (const name of [...made.attributes].map(each => each.name)) {
        if (name === "class" || name === "style" || name.startsWith("data-") || name === "pointer-events") made.removeAttribute(name);
      }
      if (["g", "defs", "clipPath"].includes(original.localName)) {
        if (style.opacity !== "1") made.setAttribute("opacity", style.opacity);
        if (style.display === "none" || style.visibility === "hidden") made.setAttribute("display", "none");
        return;
      }
      for (const name of kept) {
        const value = style.getPropertyValue(name);
        if (name === "font-size" || name === "text-anchor") {
          if (["text", "tspan"].includes(original.localName)) made.setAttribute(name, value);
        } else if (value && value !== "1" && value !== initial[name]) {
          made.setAttribute(name, value);
        }
      }
      if (original.localName === "text") made.setAttribute("font-family", "sans-serif");
    });
    copy.querySelectorAll(".draglayer, .hoverlayer, .zoomlayer, .modebar").forEach(each => each.remove());
    for (const each of copy.querySelectorAll("[d]")) each.setAttribute("d", each.getAttribute("d").replace(/\d+\.\d+/g, number => round(+number)));
    // Empty groups and what is nowhere drawn.
    for (let empty = [0]; empty.length;) {
      empty = [...copy.querySelectorAll("g:empty, rect[fill='rgba(0, 0, 0, 0)'], path:not([d]), defs:empty")];
      empty.forEach(each => each.remove());
    }
    parts.push(
      `<svg x="${round(box.left - frame.left)}" y="${round(box.top - frame.top)}" width="${round(box.width)}" height="${round(box.height)}"` +
      `${svg.getAttribute("viewBox") ? ` viewBox="${svg.getAttribute("viewBox")}"` : ""} fill="${getComputedStyle(svg).fill}">` +
      copy.innerHTML.replace(/ xmlns="[^"]*"/g, "") + "</svg>");
  };

  const draw = element => {
    const style = getComputedStyle(element);
    if (style.display === "none" || style.visibility === "hidden" || style.opacity === "0") return;
    if (element.classList.contains("modebar") || element.classList.contains("modebar-container")) return;
    if (element instanceof SVGSVGElement) return chart(element);
    const box = element.getBoundingClientRect();
    if (inside(box)) {
      const filled = seen(style.backgroundColor), top = parseFloat(style.borderTopWidth), bottom = parseFloat(style.borderBottomWidth);
      const framed = top && bottom && parseFloat(style.borderLeftWidth) && seen(style.borderTopColor);
      if (filled || framed) {
        parts.push(
          `<rect x="${round(box.left - frame.left)}" y="${round(box.top - frame.top)}" width="${round(box.width)}" height="${round(box.height)}"` +
          ` rx="${Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.height / 2)}" fill="${filled ? style.backgroundColor : "none"}"` +
          `${framed ? ` stroke="${style.borderTopColor}"` : ""}/>`);
      } else if (bottom && seen(style.borderBottomColor)) {
        const y = round(box.bottom - frame.top);
        parts.push(`<path d="M${round(box.left - frame.left)} ${y}h${round(box.width)}" stroke="${style.borderBottomColor}"/>`);
      }
      if (element.matches("progress, [type=checkbox]")) {
        const part = element.matches("progress") ? element.value / element.max : 0;
        parts.push(
          `<rect x="${round(box.left - frame.left)}" y="${round(box.top - frame.top)}" width="${round(box.width * (part || 1))}" height="${round(box.height)}"` +
          ` rx="${element.matches("progress") ? box.height / 2 : 2}" ${part ? `fill="${style.accentColor === "auto" ? style.color : style.accentColor}"` : 'fill="#fff" stroke="#767676"'}/>`);
        return;
      }
      if (element.matches("select, input:not([type=checkbox]):not([type=hidden])")) {
        const shown = element.matches("select") ? element.selectedOptions[0]?.text : element.value || element.placeholder;
        const left = box.left + parseFloat(style.paddingLeft) + 2;
        if (shown) {
          const baseline = round(box.top - frame.top + box.height / 2 + parseFloat(style.fontSize) * 0.35);
          parts.push(`<text x="${round(left - frame.left)}" y="${baseline}" fill="${style.color}" ${attributes(style, style.fontFamily)}>${escaped(shown)}</text>`);
        }
        return;
      }
    }
    for (const child of element.childNodes) {
      if (child.nodeType === Node.TEXT_NODE) lines(child, style);
      else if (child.nodeType === Node.ELEMENT_NODE) draw(child);
    }
  };

  draw(root);
  return `<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}">\n` +
    `<rect width="${width}" height="${height}" fill="#fff"/>\n${parts.join("\n")}\n</svg>\n`;
}
