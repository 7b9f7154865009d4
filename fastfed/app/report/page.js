// Draws the charts of a report from the JSON inside the page. No library, no network.
"use strict";
(() => {
  const SVG = "http" + "://www.w3.org/2000/svg"; // a name, not an address: nothing is fetched
  const { charts, figures } = JSON.parse(document.getElementById("report-data").textContent);
  const DASHES = ["", "7 3", "2 3", "9 3 2 3"]; // solid for the first eight series: their colours and marks tell them apart
  const MARKS = [
    "M-3.2 0a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0z", "M-2.9-2.9h5.8v5.8h-5.8z", "M0-4L3.7 2.8H-3.7z", "M0-4.2L3.4 0L0 4.2L-3.4 0z",
    "M0 4L3.7-2.8H-3.7z", "M-3.4-3.4L3.4 3.4M-3.4 3.4L3.4-3.4", "M-4 0H4M0-4V4", "M-3.6-1.6h7.2v3.2h-7.2z",
  ];
  const live = document.getElementById("live"); // of a page that is served while runs go on
  const hidden = new Set(live ? kept() : []); // keys of series switched off, everywhere
  const views = []; // what can be drawn again
  const tip = document.getElementById("tip");

  // ---- a page that follows its runs -----------------------------------------------------------------------------
  function kept() {
    try { return JSON.parse(sessionStorage.getItem("fastfed-hidden") ?? "[]"); } catch { return []; }
  }
  function follow() { // what was switched off and where one was stay as they were
    let failed = 0;
    const look = async () => {
      if (document.hidden) return setTimeout(look, 2000);
      try {
        const answer = await fetch("version", { cache: "no-store" }), version = await answer.text();
        failed = 0;
        if (answer.ok && version !== live.dataset.version) {
          try { sessionStorage.setItem("fastfed-hidden", JSON.stringify([...hidden])); } catch { /* nothing is kept, then */ }
          return location.reload();
        }
      } catch { if (++failed > 2) { live.classList.add("over"); live.textContent = "no longer served: this is how it ended"; return; } }
      setTimeout(look, 2000);
    };
    setTimeout(look, 2000);
  }

  // ---- small tools ------------------------------------------------------------------------------------------------
  const svg = (name, attributes = {}, ...children) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const html = (name, attributes = {}, ...children) => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const colour = (style) => `var(--s${style % 8})`;
  const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

  function swatch(style, kind = "lines") {
    const shape = svg("svg", { width: 28, height: 12, viewBox: "0 0 28 12", "aria-hidden": "true" });
    if (kind === "lines") {
      shape.append(
        svg("path", { d: "M0 6H28", stroke: colour(style), "stroke-width": 2, "stroke-dasharray": dash(style), fill: "none" }),
        svg("path", { d: MARKS[style % 8], transform: "translate(14 6)", fill: solid(style), stroke: colour(style), "stroke-width": 1.5 }),
      );
    } else shape.append(svg("rect", { x: 6, width: 14, height: 12, rx: 2, fill: kind === "bars" ? fill(style) : colour(style), stroke: colour(style) }));
    return shape;
  }
  const dash = (style) => DASHES[Math.floor(style / 8) % 4] || null;
  const solid = (style) => ([5, 6].includes(style % 8) ? "none" : colour(style));
  const fill = (style) => (style % 4 === 0 ? colour(style) : `url(#hatch${style % 8})`);

  function defineHatches() {
    const defs = svg("defs");
    const strokes = ["", "M0 6L6 0", "M0 0L6 6", "M0 3H6"];
    for (let i = 0; i < 8; i++) {
      defs.append(svg("pattern", { id: `hatch${i}`, width: 6, height: 6, patternUnits: "userSpaceOnUse" },
        svg("rect", { width: 6, height: 6, fill: colour(i), opacity: 0.35 }),
        svg("path", { d: strokes[i % 4], stroke: colour(i), "stroke-width": 2.2 })));
    }
    document.body.append(svg("svg", { width: 0, height: 0, style: "position:absolute", "aria-hidden": "true" }, defs));
  }

  // ---- numbers ----------------------------------------------------------------------------------------------------
  function plain(value, decimals) {
    if (value !== 0 && (Math.abs(value) >= 1e7 || Math.abs(value) < 1e-4)) return value.toExponential(Math.min(2, Math.max(0, decimals ?? 2))).replace("e+", "e");
    return value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals ?? 6 });
  }
  function exact(value, format) { // in a tooltip
    if (value === null || value === undefined) return "not finite";
    if (format === "percent") return `${plain(100 * value, 2)}%`;
    if (format === "whole") return plain(value, Number.isInteger(value) ? 0 : 1);
    if (value === 0) return "0";
    return plain(value, clamp(3 - Math.floor(Math.log10(Math.abs(value))), 0, 6));
  }
  function onAxis(value, format, step) {
    const unit = format === "percent" ? 100 : 1;
    const size = (step || value) * unit, decimals = [0, 1, 2, 3, 4, 5].find((d) => Math.abs(size * 10 ** d - Math.round(size * 10 ** d)) < 1e-6 * 10 ** d * Math.abs(size)) ?? 6;
    return plain(value * unit, decimals) + (format === "percent" ? "%" : "");
  }
  function niceStep(span, wanted, whole) {
    const raw = span / Math.max(1, wanted), unit = 10 ** Math.floor(Math.log10(raw));
    const step = unit * [1, 2, 2.5, 5, 10].find((f) => f * unit >= raw * 0.999);
    return whole ? Math.max(1, Math.round(step)) : step;
  }
  function linearTicks(low, high, wanted, whole) {
    const step = niceStep(high - low || 1, wanted, whole), ticks = [];
    for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step || 0); // no negative zero
    return { ticks, step };
  }
  function logTicks(low, high, wanted) {
    const decades = Math.log10(high / low);
    if (decades < 0.8) return linearTicks(low, high, wanted);
    const factors = decades > 3 ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 5], ticks = [];
    const skip = Math.max(1, Math.ceil(decades / wanted));
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += skip)
      for (const f of factors) { const t = f * 10 ** e; if (t >= low * 0.999 && t <= high * 1.001) ticks.push(t); }
    return { ticks, step: 0 };
  }
  function extent(values, log) {
    let low = Infinity, high = -Infinity;
    for (const v of values) if (v !== null && (!log || v > 0)) { if (v < low) low = v; if (v > high) high = v; }
    return low <= high ? [low, high] : [log ? 0.1 : 0, 1];
  }
  function scaleOf([low, high], log, axis, pad) {
    if (low === high) { const d = Math.abs(low) * 0.1 || 1; low -= log ? low * 0.5 : d; high += d; }
    if (log) { const f = (high / low) ** pad; low /= f; high *= f; }
    else {
      const d = (high - low) * pad, touchesZero = low >= 0 && low < (high - low) * 0.35;
      low = touchesZero && pad ? 0 : low - d; high += d;
      if (axis.format === "percent" && pad) { high = Math.min(high, 1 + (high - low) * 0.01); low = Math.max(low, 0); }
    }
    const from = log ? Math.log(low) : low, to = log ? Math.log(high) : high;
    return { low, high, log, at: (v) => ((log ? Math.log(v) : v) - from) / (to - from), back: (p) => (log ? Math.exp(from + p * (to - from)) : from + p * (to - from)) };
  }
  const ticksOf = (scale, wanted, axis) => (scale.log ? logTicks(scale.low, scale.high, wanted) : linearTicks(scale.low, scale.high, wanted, axis.format === "whole"));

  // ---- tooltips ---------------------------------------------------------------------------------------------------
  function showTip(x, y, at, rows) {
    tip.replaceChildren(html("div", { class: "at" }, at));
    for (const { style, kind, label, value, more } of rows.slice(0, 14)) {
      const number = html("span", {}, value);
      if (more) number.append(" ", html("small", {}, more));
      tip.append(html("div", { class: "row" }, style === undefined ? html("span") : swatch(style, kind), html("span", {}, label), number));
    }
    if (rows.length > 14) tip.append(html("div", { class: "at" }, `and ${rows.length - 14} more`));
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    tip.style.left = `${clamp(x + 16 + box.width > innerWidth ? x - box.width - 16 : x + 16, 4, innerWidth - box.width - 4)}px`;
    tip.style.top = `${clamp(y - box.height / 2, 4, innerHeight - box.height - 4)}px`;
  }
  const hideTip = () => { tip.hidden = true; };

  // ---- frames -----------------------------------------------------------------------------------------------------
  function frame(card, chart, height) {
    const width = Math.max(260, card.clientWidth);
    const canvas = svg("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", tabindex: 0, "aria-label": describe(chart) });
    card.querySelector("svg.plot")?.remove();
    card.querySelector(".caption").after(canvas);
    return { canvas, width, height };
  }
  function describe(chart) {
    if (chart.kind === "partition" || chart.kind === "shades") return `${chart.title}. ${chart.note}`;
    const ends = chart.kind !== "lines" ? "" : chart.series.map((s) => `${s.label} ends at ${exact(s.y[s.y.length - 1], chart.y.format)}`).join("; ");
    return `${chart.title}: ${chart.y.label}${chart.x.label ? " by " + chart.x.label : ""}. ${ends}. Arrow keys read the values.`;
  }
  function yAxis(canvas, area, scale, axis, wanted) {
    const { ticks, step } = ticksOf(scale, wanted, axis);
    for (const tick of ticks) {
      const y = area.bottom - scale.at(tick) * (area.bottom - area.top);
      canvas.append(svg("line", { class: "tick", x1: area.left, x2: area.right, y1: y, y2: y }),
        svg("text", { x: area.left - 7, y: y + 4, "text-anchor": "end" }, onAxis(tick, axis.format, step)));
    }
  }
  function leftMargin(scale, axis, wanted) {
    const { ticks, step } = ticksOf(scale, wanted, axis);
    return 16 + 6.7 * Math.max(2, ...ticks.map((t) => onAxis(t, axis.format, step).length));
  }

  // ---- lines ------------------------------------------------------------------------------------------------------
  function heightsOf(chart, shown, state) { // [low, high] of the vertical axis
    const ends = extent(shown.flatMap((s) => s.x), false), from = state.late ? ends[0] + (ends[1] - ends[0]) / 3 : -Infinity;
    const of = (field) => (field !== "y" && !state.bands ? [] : shown.flatMap((s) => (s[field] ?? []).filter((_, i) => s.x[i] >= from)));
    const [low, high] = extent(of("y"), state.logY), [least, most] = extent([...of("low"), ...of("y"), ...of("high")], state.logY);
    if (chart.band === "min to max") return [least, most];
    // Bands over two seeds are wide: they may double the axis, not more, and nothing is below zero or above one by its band alone.
    const beyond = state.logY ? Math.sqrt(high / low) : (high - low) / 2;
    if (state.logY) return [Math.max(least, low / beyond), Math.min(most, high * beyond)];
    const floor = low >= 0 ? 0 : -Infinity, ceiling = chart.y.format === "percent" ? 1 : Infinity;
    return [Math.max(least, low - beyond, floor), Math.min(most, high + beyond, Math.max(high, ceiling))];
  }
  function drawLines(card, chart, state) {
    const { canvas, width, height } = frame(card, chart, 300);
    const shown = chart.series.filter((s) => !hidden.has(s.key));
    const limits = state.late ? null : chart.y.limits;
    const ys = scaleOf(limits ?? heightsOf(chart, shown, state), state.logY, chart.y, limits ? 0 : 0.05), xs = scaleOf(extent(shown.flatMap((s) => s.x), state.logX), state.logX, chart.x, 0);
    const area = { left: leftMargin(ys, chart.y, 5), right: width - 14, top: 24, bottom: height - 40 };
    const X = (v) => area.left + xs.at(v) * (area.right - area.left), Y = (v) => area.bottom - ys.at(v) * (area.bottom - area.top);
    const drawable = (s, i) => s.y[i] !== null && (!state.logY || s.y[i] > 0) && (!state.logX || s.x[i] > 0);
    yAxis(canvas, area, ys, chart.y, 5);
    const ticks = ticksOf(xs, clamp(Math.floor(width / 90), 3, 8), chart.x);
    for (const tick of ticks.ticks) {
      canvas.append(svg("line", { class: "base", x1: X(tick), x2: X(tick), y1: area.bottom, y2: area.bottom + 4 }),
        svg("text", { x: X(tick), y: area.bottom + 17, "text-anchor": "middle" }, onAxis(tick, chart.x.format, ticks.step)));
    }
    canvas.append(svg("line", { class: "base", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom }),
      svg("text", { class: "title", x: area.right, y: height - 6, "text-anchor": "end" }, chart.x.label + (state.logX ? " (log)" : "")),
      svg("text", { class: "title", x: 0, y: 11 }, chart.y.label + (state.logY ? " (log)" : "")));
    canvas.append(svg("clipPath", { id: `clip-${chart.id}` }, svg("rect", { x: area.left - 6, y: area.top - 4, width: area.right - area.left + 12, height: area.bottom - area.top + 4 })));
    const inside = svg("g", { "clip-path": `url(#clip-${chart.id})` });
    inside.append(...chart.series.map((s) => drawBand(s, X, Y, drawable, state)), ...chart.series.map((s) => drawLine(s, X, Y, drawable)));
    canvas.append(inside);
    const cursor = svg("g", { class: "reading" });
    canvas.append(cursor);
    attachReading(canvas, cursor, chart, shown, { X, Y, xs, area, drawable, width });
  }
  function seriesGroup(s) {
    return svg("g", { class: "series", "data-key": s.key }); // empty while the series is switched off
  }
  function drawBand(s, X, Y, drawable, state) {
    const node = seriesGroup(s);
    if (hidden.has(s.key) || !s.low || !state.bands) return node;
    const low = (i) => Y(state.logY ? Math.max(s.low[i], s.y[i] / 1e6) : s.low[i]);
    for (const [from, to] of stretches(s, drawable)) {
      let d = "";
      for (let i = from; i <= to; i++) d += `${d ? "L" : "M"}${X(s.x[i]).toFixed(1)} ${Y(s.high[i]).toFixed(1)}`;
      for (let i = to; i >= from; i--) d += `L${X(s.x[i]).toFixed(1)} ${low(i).toFixed(1)}`;
      if (to > from) node.append(svg("path", { class: "band", d: `${d}Z`, fill: colour(s.style), opacity: 0.14 }));
    }
    return node;
  }
  function drawLine(s, X, Y, drawable) {
    const node = seriesGroup(s);
    if (hidden.has(s.key)) return node;
    for (const [from, to] of stretches(s, drawable)) {
      let d = "";
      for (let i = from; i <= to; i++) d += `${d ? "L" : "M"}${X(s.x[i]).toFixed(1)} ${Y(s.y[i]).toFixed(1)}`;
      node.append(svg("path", { class: "line", d, fill: "none", stroke: colour(s.style), "stroke-width": 1.9, "stroke-dasharray": dash(s.style), "stroke-linejoin": "round" }));
    }
    const every = Math.max(1, Math.round(s.x.length / 7)), first = Math.floor((every * (s.style % 4)) / 4);
    for (let i = 0; i < s.x.length; i++) {
      if (!drawable(s, i) || (i % every !== first % every && s.x.length > 1)) continue;
      node.append(svg("path", { d: MARKS[s.style % 8], transform: `translate(${X(s.x[i]).toFixed(1)} ${Y(s.y[i]).toFixed(1)})`, fill: solid(s.style), stroke: colour(s.style), "stroke-width": 1.4 }));
    }
    return node;
  }
  function stretches(s, drawable) { // [first, last] of the points without a gap
    const found = [];
    for (let i = 0; i < s.x.length; i++) {
      if (!drawable(s, i)) continue;
      if (i && drawable(s, i - 1) && found.length) found[found.length - 1][1] = i; else found.push([i, i]);
    }
    return found;
  }
  function nearest(xs, x) { // positions ascend
    let low = 0, high = xs.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (xs[middle] < x) low = middle; else high = middle; }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  }
  function attachReading(canvas, cursor, chart, shown, { X, Y, xs, area, drawable, width }) {
    const stops = [...new Set(shown.flatMap((s) => s.x))].filter((x) => !xs.log || x > 0).sort((a, b) => a - b);
    let place = -1;
    const read = (x, clientX, clientY) => {
      const reach = (xs.high - xs.low) * 0.03;
      const points = shown.filter((s) => s.x.length).map((s) => ({ s, i: nearest(s.x, x) }))
        .filter(({ s, i }) => x <= s.x[s.x.length - 1] + reach && x >= s.x[0] - reach);
      cursor.replaceChildren(svg("line", { class: "cursor", x1: X(x), x2: X(x), y1: area.top, y2: area.bottom }));
      for (const { s, i } of points) if (drawable(s, i))
        cursor.append(svg("circle", { cx: X(s.x[i]), cy: Y(s.y[i]), r: 5, fill: "none", stroke: colour(s.style), "stroke-width": 2 }));
      points.sort((a, b) => (b.s.y[b.i] ?? -Infinity) - (a.s.y[a.i] ?? -Infinity));
      const rows = points.map(({ s, i }) => ({ style: s.style, label: s.label, value: exact(s.y[i], chart.y.format), more: details(chart, s, i, x) }));
      showTip(clientX, clientY, `${chart.x.label} ${exact(x, chart.x.format)}`, rows);
    };
    const leave = () => { cursor.replaceChildren(); hideTip(); };
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const share = clamp(((event.clientX - box.left) * (width / box.width) - area.left) / (area.right - area.left), 0, 1);
      if (!stops.length) return;
      place = nearest(stops, xs.back(share));
      read(stops[place], event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerleave", leave);
    canvas.addEventListener("blur", leave);
    canvas.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity };
      if (event.key === "Escape") return leave();
      if (!(event.key in steps) || !stops.length) return;
      event.preventDefault();
      place = clamp(place + steps[event.key], 0, stops.length - 1);
      const box = canvas.getBoundingClientRect();
      read(stops[place], box.left + X(stops[place]) * (box.width / width), box.top + box.height / 3);
    });
  }
  function details(chart, s, i, x) {
    const words = [];
    if (s.low && s.y[i] !== null) {
      const half = Math.abs((s.high[i] - s.low[i]) / 2);
      words.push(chart.band === "min to max" ? `${exact(s.low[i], chart.y.format)} to ${exact(s.high[i], chart.y.format)}` : `± ${exact(half, chart.y.format)}, n = ${s.n}`);
    }
    if (Math.abs(s.x[i] - x) > 1e-9 * Math.abs(x)) words.push(`at ${exact(s.x[i], chart.x.format)}`);
    return words.join(" ");
  }

  // ---- bars -------------------------------------------------------------------------------------------------------
  function drawBars(card, chart) {
    const { canvas, width, height } = frame(card, chart, 300);
    const shown = chart.series.filter((s) => !hidden.has(s.key));
    const top = Math.max(1e-9, ...shown.flatMap((s) => s.y)) * 1.05;
    const ys = { low: 0, high: top, log: false, at: (v) => v / top };
    const area = { left: leftMargin(ys, chart.y, 5), right: width - 14, top: 24, bottom: height - 40 };
    yAxis(canvas, area, ys, chart.y, 5);
    const slot = (area.right - area.left) / chart.categories.length, bar = (slot * 0.82) / Math.max(1, shown.length);
    const every = Math.ceil((chart.categories.reduce((most, c) => Math.max(most, c.length), 1) * 7 + 8) / slot);
    chart.categories.forEach((name, i) => {
      if (i % every === 0) canvas.append(svg("text", { x: area.left + slot * (i + 0.5), y: area.bottom + 17, "text-anchor": "middle" }, name));
    });
    for (const s of chart.series) {
      const order = shown.indexOf(s), node = seriesGroup(s);
      if (order >= 0) s.y.forEach((value, i) => node.append(svg("rect", {
        x: area.left + slot * (i + 0.09) + bar * order, width: Math.max(0.8, Math.min(bar - 0.6, 46)), y: area.bottom - ys.at(value) * (area.bottom - area.top),
        height: ys.at(value) * (area.bottom - area.top), fill: fill(s.style), stroke: colour(s.style), "stroke-width": value ? 0.8 : 0,
      })));
      canvas.append(node);
    }
    canvas.append(svg("line", { class: "base", x1: area.left, x2: area.right, y1: area.bottom, y2: area.bottom }),
      svg("text", { class: "title", x: area.right, y: height - 6, "text-anchor": "end" }, chart.x.label), svg("text", { class: "title", x: 0, y: 11 }, chart.y.label));
    attachSlots(canvas, chart.categories.length, (i) => ({ x: area.left + slot * (i + 0.5), y: area.top + 60 }), (px) => Math.floor((px - area.left) / slot), (i) => ({
      at: `${chart.x.label}: ${chart.categories[i]}`,
      rows: shown.map((s) => ({ style: s.style, kind: "bars", label: s.label, value: exact(s.y[i], chart.y.format) })),
    }));
  }
  function drawStacked(card, chart, state) {
    const line = 34, { canvas, width, height } = frame(card, chart, 58 + line * chart.categories.length);
    const shown = chart.series.filter((s) => !hidden.has(s.key));
    const totals = chart.categories.map((_, i) => shown.reduce((sum, s) => sum + s.y[i], 0));
    const top = state.share ? 1 : Math.max(1e-9, ...totals) * 1.02, axis = state.share ? { label: "share of a round", format: "percent" } : chart.y;
    const longest = chart.categories.reduce((most, c) => Math.max(most, c.length), 4);
    const area = { left: Math.min(width * 0.34, 14 + 6.6 * longest), right: width - 20, top: 8, bottom: height - 42 };
    const X = (v) => area.left + (v / top) * (area.right - area.left);
    const { ticks, step } = linearTicks(0, top, clamp(Math.floor(width / 110), 3, 8));
    for (const tick of ticks) canvas.append(svg("line", { class: "tick", x1: X(tick), x2: X(tick), y1: area.top, y2: area.bottom }),
      svg("text", { x: X(tick), y: area.bottom + 17, "text-anchor": "middle" }, onAxis(tick, axis.format, step)));
    const from = chart.categories.map(() => 0);
    for (const s of chart.series) {
      const off = hidden.has(s.key), node = seriesGroup(s);
      if (!off) s.y.forEach((value, i) => {
        const size = state.share ? value / (totals[i] || 1) : value, wide = X(size) - X(0), y = area.top + line * i + 5;
        node.append(svg("rect", { x: X(from[i]), y, width: Math.max(0, wide), height: line - 11, fill: colour(s.style), stroke: "var(--paper)", "stroke-width": 1 }));
        if (wide > 8 * s.label.length) node.append(svg("text", { class: "inside", x: X(from[i]) + wide / 2, y: y + (line - 11) / 2 + 4, "text-anchor": "middle" }, s.label));
        from[i] += size;
      });
      canvas.append(node);
    }
    chart.categories.forEach((name, i) => {
      const room = Math.max(3, Math.floor((area.left - 10) / 6.4));
      canvas.append(svg("text", { x: area.left - 8, y: area.top + line * i + line / 2 + 3, "text-anchor": "end" }, svg("title", {}, name), name.length > room ? `${name.slice(0, room - 1)}…` : name));
    });
    canvas.append(svg("text", { class: "title", x: area.right, y: height - 8, "text-anchor": "end" }, axis.label));
    attachSlots(canvas, chart.categories.length, (i) => ({ x: X(0) + 80, y: area.top + line * (i + 0.5) }), (_, py) => Math.floor((py - area.top) / line), (i) => ({
      at: `${chart.categories[i]}: ${exact(totals[i])} ms per round`,
      rows: shown.map((s) => ({ style: s.style, kind: "stacked", label: s.label, value: `${exact(s.y[i])} ms`, more: exact(s.y[i] / (totals[i] || 1), "percent") })),
    }));
  }
  function attachSlots(canvas, number, where, find, tell) { // pointer and keys move over slots
    let place = -1;
    const show = (i, x, y) => { const { at, rows } = tell(i); showTip(x, y, at, rows); };
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect(), zoom = canvas.viewBox.baseVal.width / box.width;
      const i = find((event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom);
      if (i < 0 || i >= number) return hideTip();
      place = i;
      show(i, event.clientX, event.clientY);
    });
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("blur", hideTip);
    canvas.addEventListener("keydown", (event) => {
      const steps = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1 };
      if (event.key === "Escape") return hideTip();
      if (!(event.key in steps)) return;
      event.preventDefault();
      place = clamp(place + steps[event.key], 0, number - 1);
      const box = canvas.getBoundingClientRect(), at = where(place), zoom = box.width / canvas.viewBox.baseVal.width;
      show(place, box.left + at.x * zoom, box.top + at.y * zoom);
    });
  }

  // ---- partitions -------------------------------------------------------------------------------------------------
  function drawPartition(card, chart) {
    const kinds = chart.classes.length, n = chart.clients.length, wide = Math.max(260, card.clientWidth);
    const left = kinds ? 18 + 6.6 * Math.min(16, chart.classes.reduce((most, c) => Math.max(most, c.length), 1)) : 48;
    const cell = Math.min(26, (wide - left - 12) / n), row = kinds ? clamp(420 / kinds, 5, 22) : 0, bars = kinds ? 56 : 150;
    const { canvas, height } = frame(card, chart, bars + kinds * row + 48);
    const most = Math.max(1, ...chart.counts.flat()), largest = Math.max(1, ...chart.sizes);
    const X = (i) => left + cell * (i + 0.5), top = bars + 14;
    chart.sizes.forEach((size, i) => {
      const tall = (size / largest) * (bars - 8);
      canvas.append(svg("rect", { x: X(i) - cell * 0.36, width: cell * 0.72, y: bars - tall, height: tall, fill: "var(--faint)", opacity: 0.55 }));
    });
    canvas.append(svg("line", { class: "tick", x1: left, x2: left + cell * n, y1: bars, y2: bars }), svg("text", { x: left - 8, y: 16, "text-anchor": "end" }, largest.toLocaleString("en")));
    const each = Math.ceil(13 / (row || 13));
    for (let k = 0; k < kinds; k++) {
      const y = top + row * (kinds - 1 - k + 0.5);
      canvas.append(svg("line", { class: "tick", x1: left, x2: left + cell * n, y1: y, y2: y }));
      if (k % each === 0) canvas.append(svg("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, chart.classes[k].length > 16 ? `${chart.classes[k].slice(0, 15)}…` : chart.classes[k]));
      chart.counts.forEach((counts, i) => {
        if (!counts[k]) return;
        const share = Math.sqrt(counts[k] / most), r = (Math.min(cell, row) / 2) * 0.96;
        canvas.append(r >= 4 ? svg("circle", { cx: X(i), cy: y, r: Math.max(0.9, r * share), fill: "var(--s0)" })
          : svg("rect", { x: X(i) - cell / 2, width: cell, y: y - row / 2, height: row, fill: "var(--s0)", opacity: 0.12 + 0.88 * share }));
      });
    }
    const every = Math.ceil(34 / cell);
    chart.clients.forEach((id, i) => { if (i % every === 0) canvas.append(svg("text", { x: X(i), y: height - 24, "text-anchor": "middle" }, String(id))); });
    canvas.append(svg("text", { class: "title", x: left + cell * n, y: height - 6, "text-anchor": "end" }, "client"));
    attachSlots(canvas, n, (i) => ({ x: X(i), y: top }), (px) => Math.floor((px - left) / cell), (i) => ({
      at: `client ${chart.clients[i]}: ${chart.sizes[i].toLocaleString("en")} examples`,
      rows: (chart.counts[i] ?? []).map((value, k) => ({ label: `class ${chart.classes[k]}`, value: value.toLocaleString("en"), number: value })).filter((r) => r.number).sort((a, b) => b.number - a.number),
    }));
  }

  // ---- heat maps --------------------------------------------------------------------------------------------------
  const VIRIDIS = [[68, 1, 84], [65, 68, 135], [42, 120, 142], [34, 168, 132], [122, 209, 81], [253, 231, 37]];
  function shade(share) { // light is good, also in grey
    const place = clamp(share, 0, 1) * (VIRIDIS.length - 1), i = Math.min(VIRIDIS.length - 2, Math.floor(place));
    return VIRIDIS[i].map((from, k) => Math.round(from + (place - i) * (VIRIDIS[i + 1][k] - from)));
  }
  function drawShades(card, chart) {
    const wide = Math.max(260, card.clientWidth), known = chart.panels.flatMap((p) => p.values.flat()).filter((v) => v !== null);
    const low = Math.min(...known), high = Math.max(...known), log = chart.format !== "percent" && low > 0 && high > 20 * low;
    const share = (v) => { const s = high > low ? (log ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low)) : 1; return chart.rising ? s : 1 - s; };
    const left = 22 + 6.6 * Math.max(...chart.panels.flatMap((p) => p.up.map((t) => t.length))), key = 74;
    const most = Math.max(...chart.panels.map((p) => p.across.length)), room = wide - key;
    const beside = clamp(Math.floor(room / (left + 34 * most)), 1, chart.panels.length);
    const cell = clamp((room / beside - left - 10) / most, 14, 46), block = left + cell * most + 10;
    const lines = Math.ceil(chart.panels.length / beside), tallest = Math.max(...chart.panels.map((p) => p.up.length)) * cell, line = tallest + 62;
    const { canvas } = frame(card, chart, lines * line + 30);
    const places = [];
    canvas.append(svg("text", { class: "title", x: 0, y: 12 }, chart.y));
    chart.panels.forEach((panel, n) => {
      const x0 = (n % beside) * block + left, y0 = Math.floor(n / beside) * line + 40, tall = panel.up.length * cell;
      canvas.append(svg("text", { x: x0, y: y0 - 8 }, panel.title));
      panel.values.forEach((row, i) => row.forEach((value, j) => {
        const x = x0 + cell * j, y = y0 + tall - cell * (i + 1), rgb = value === null ? null : shade(share(value));
        canvas.append(svg("rect", { x, y, width: cell - 1, height: cell - 1, fill: rgb ? `rgb(${rgb})` : "var(--rule)" }));
        if (value !== null && cell >= 30) canvas.append(svg("text", { x: x + cell / 2, y: y + cell / 2 + 4, "text-anchor": "middle", style: `fill:${0.3 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2] > 128 ? "#1c2024" : "#fff"};font-size:11px` },
          chart.format === "percent" ? (100 * value).toFixed(0) : plain(value, clamp(1 - Math.floor(Math.log10(Math.abs(value) || 1)), 0, 4))));
        places.push({ x, y, panel, i, j, value });
      }));
      if (panel.chosen) canvas.append(svg("rect", { x: x0 + cell * panel.chosen[1] - 0.5, y: y0 + tall - cell * (panel.chosen[0] + 1) - 0.5, width: cell, height: cell, fill: "none", stroke: "var(--s1)", "stroke-width": 2.5 }));
      const every = Math.ceil((Math.max(...panel.across.map((t) => t.length)) * 6.8 + 6) / cell), up = Math.ceil(13 / cell);
      panel.up.forEach((t, i) => { if (i % up === 0) canvas.append(svg("text", { x: x0 - 6, y: y0 + tall - cell * (i + 0.5) + 4, "text-anchor": "end" }, t)); });
      panel.across.forEach((t, j) => { if (j % every === 0) canvas.append(svg("text", { x: x0 + cell * (j + 0.5), y: y0 + tall + 15, "text-anchor": "middle" }, t)); });
    });
    const end = Math.min(wide - key, beside * block) + 14, tall = Math.min(tallest, 180);
    for (let i = 0; i < 24; i++) canvas.append(svg("rect", { x: end, y: 40 + (tall / 24) * i, width: 12, height: tall / 24 + 0.6, fill: `rgb(${shade(chart.rising ? 1 - i / 23 : i / 23)})` }));
    for (const [value, y] of [[high, 48], [low, 40 + tall]]) canvas.append(svg("text", { x: end + 17, y }, chart.format === "percent" ? `${(100 * value).toFixed(0)}%` : exact(value)));
    canvas.append(svg("text", { class: "title", x: Math.min(end, wide - 6.4 * chart.z.length), y: 26 }, chart.z), svg("text", { class: "title", x: beside * block - 10, y: lines * line + 26, "text-anchor": "end" }, chart.x));
    const find = (px, py) => places.findIndex((p) => px >= p.x && px < p.x + cell && py >= p.y && py < p.y + cell);
    attachSlots(canvas, places.length, (i) => ({ x: places[i].x, y: places[i].y }), find, (i) => {
      const { panel, i: row, j, value } = places[i];
      return { at: panel.title || chart.title, rows: [{ label: chart.y, value: panel.up[row] }, { label: chart.x, value: panel.across[j] }, { label: chart.z, value: value === null ? "no finite value" : exact(value, chart.format) }] };
    });
  }

  // ---- cards and legends ------------------------------------------------------------------------------------------
  const DRAW = { lines: drawLines, bars: drawBars, stacked: drawStacked, partition: drawPartition, shades: drawShades };

  function makeCard(card) {
    const chart = charts[card.dataset.chart], state = { logX: chart.x?.log === "on", logY: chart.y?.log === "on", share: false, late: false, bands: true };
    const tools = html("span", { class: "tools" });
    const draw = () => DRAW[chart.kind](card, chart, state);
    const offer = (name, field, label) => {
      const button = html("button", { type: "button", "aria-pressed": String(state[field]), "aria-label": `${label}: ${chart.title}` }, name);
      button.addEventListener("click", () => { state[field] = !state[field]; button.setAttribute("aria-pressed", String(state[field])); draw(); });
      tools.append(button);
    };
    if (chart.kind === "lines" && chart.band !== "min to max") offer("zoom", "late", "fit the vertical axis to the last two thirds");
    if (chart.kind === "lines" && chart.series.some((s) => s.low)) offer("bands", "bands", "show the bands");
    if (chart.x?.log && chart.x.log !== "no") offer("log x", "logX", "logarithmic horizontal axis");
    if (chart.y?.log && chart.y.log !== "no") offer("log y", "logY", "logarithmic vertical axis");
    if (chart.kind === "stacked") offer("shares", "share", "shares instead of times");
    const save = html("button", { type: "button", "aria-label": `numbers as CSV: ${chart.title}` }, "CSV");
    save.addEventListener("click", () => download(chart));
    tools.append(save);
    for (const file of figures[chart.id] ?? []) tools.append(html("a", { href: file }, file.split(".").pop().toUpperCase()));
    card.append(html("div", { class: "caption" }, html("b", {}, chart.title), tools));
    if (chart.note) card.append(html("p", { class: "note" }, chart.note));
    views.push({ card, chart, draw, keys: new Set((chart.series ?? []).map((s) => s.key)) });
    draw();
    let width = card.clientWidth;
    new ResizeObserver(() => { if (card.clientWidth !== width) { width = card.clientWidth; draw(); } }).observe(card);
  }
  function download(chart) {
    const quote = (value) => `"${String(value).replaceAll('"', '""')}"`;
    const lines = chart.kind === "shades"
      ? [["method", chart.y, chart.x, chart.z].map(quote), ...chart.panels.flatMap((p) => p.values.flatMap((row, i) => row.map((v, j) => [quote(p.title), p.up[i], p.across[j], v ?? ""])))]
      : chart.kind === "partition"
      ? [["client", "examples", ...chart.classes].map(quote), ...chart.clients.map((id, i) => [id, chart.sizes[i], ...(chart.counts[i] ?? [])])]
      : [["series", chart.x.label || "category", chart.y.label, "low", "high"].map(quote),
        ...chart.series.flatMap((s) => s.x.map((x, i) => [quote(s.label), chart.categories.length ? quote(chart.categories[i]) : x, s.y[i] ?? "", s.low?.[i] ?? "", s.high?.[i] ?? ""]))];
    const link = html("a", { href: URL.createObjectURL(new Blob([lines.map((l) => l.join(",")).join("\n") + "\n"], { type: "text/csv" })), download: `${chart.id}.csv` });
    link.click();
    URL.revokeObjectURL(link.href);
  }
  function makeLegend(legend) {
    const series = new Map();
    for (const card of legend.parentElement.querySelectorAll("[data-chart]")) {
      const chart = charts[card.dataset.chart];
      for (const s of chart.series ?? []) if (!series.has(s.key)) series.set(s.key, { ...s, kind: chart.kind });
    }
    for (const s of series.values()) {
      const button = html("button", { type: "button", "aria-pressed": String(!hidden.has(s.key)), "data-key": s.key }, swatch(s.style, s.kind === "stacked" ? "stacked" : "lines"), s.label);
      if (s.n > 1) button.append(html("span", { class: "n" }, `n = ${s.n}`));
      button.addEventListener("click", (event) => toggle(s.key, event.shiftKey ? [...series.keys()] : null));
      button.addEventListener("pointerenter", () => dimOthers(s.key));
      button.addEventListener("pointerleave", () => dimOthers(null));
      legend.append(button);
    }
  }
  function toggle(key, alone) {
    const before = new Set(hidden);
    if (alone) {
      const already = alone.every((other) => hidden.has(other) === (other !== key));
      for (const other of alone) if (already || other === key) hidden.delete(other); else hidden.add(other);
    } else if (!hidden.delete(key)) hidden.add(key);
    for (const button of document.querySelectorAll(".legend button")) button.setAttribute("aria-pressed", String(!hidden.has(button.dataset.key)));
    for (const view of views) if ([...view.keys].some((k) => hidden.has(k) !== before.has(k))) view.draw();
  }
  function dimOthers(key) {
    for (const view of views) for (const node of view.card.querySelectorAll(".series")) node.classList.toggle("dim", key !== null && view.keys.has(key) && node.dataset.key !== key);
  }

  // ---- tables and theme -------------------------------------------------------------------------------------------
  function makeSortable(table) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    heads.forEach((head, column) => {
      const button = html("button", { type: "button" }, head.textContent);
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") === "descending" || (column === 0 && !head.hasAttribute("aria-sort"));
        for (const other of heads) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        body.append(...[...body.rows].sort((a, b) => compare(a.cells[column], b.cells[column], up ? 1 : -1)));
      });
    });
  }
  function compare(a, b, sign) {
    const [x, y] = [a, b].map((cell) => (cell.dataset.value === undefined ? null : Number(cell.dataset.value)));
    if (x === null && y === null) return sign * a.textContent.localeCompare(b.textContent);
    if (x === null || y === null) return x === null ? 1 : -1; // nothing comes last either way
    return sign * (x - y);
  }
  function makeTheme() {
    const button = document.getElementById("theme"), root = document.documentElement, system = matchMedia("(prefers-color-scheme: dark)");
    const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
    const tell = () => { button.setAttribute("aria-pressed", String(dark())); };
    try { const kept = localStorage.getItem("fastfed-theme"); if (kept) root.dataset.theme = kept; } catch { /* a page from a file may keep nothing */ }
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem("fastfed-theme", root.dataset.theme); } catch { /* likewise */ }
      tell();
    });
    system.addEventListener("change", tell);
    tell();
  }

  makeTheme();
  defineHatches();
  for (const place of document.querySelectorAll(".swatch")) place.append(swatch(Number(place.dataset.style)));
  document.querySelectorAll("figure[data-chart]").forEach(makeCard);
  document.querySelectorAll(".legend").forEach(makeLegend);
  document.querySelectorAll("table.sortable").forEach(makeSortable);
  if (live) follow();
})();
