// Curves that can be pointed at, hidden and zoomed, drawn by uPlot. Reports and `fedlga watch` share this file.
//
// A curve is {label, colour, dash, x, y, low, high, seeds}: low and high are its interval or null, seeds thinner lines
// that belong to it. Text enters the page as text only, never as HTML: labels and notes may come from strangers.
"use strict";

const Charts = (() => {
  const MOST_POINTS = 1500; // of a curve in a figure: more than it has pixels for; zooming in shows the others
  const MOST_IN_TIP = 12;
  const MOST_BANDS = 4; // curves whose intervals are shaded: those of more would hide the curves
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const paint = (colour) => (colour === "ink" ? css("ink") : colour);

  function element(tag, text, className) {
    const made = document.createElement(tag);
    if (text !== undefined && text !== null) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  function makeSwatch(colour, dash) {
    const space = "http://www.w3.org/2000/svg";
    const picture = document.createElementNS(space, "svg");
    const line = document.createElementNS(space, "line");
    const place = {x1: 0, y1: 5, x2: 34, y2: 5, "stroke-width": 2};
    for (const [name, value] of Object.entries(place)) line.setAttribute(name, value);
    line.setAttribute("stroke", colour === "ink" ? "currentColor" : colour);
    line.setAttribute("stroke-dasharray", (dash || []).join(" "));
    picture.setAttribute("viewBox", "0 0 34 10");
    picture.setAttribute("class", "swatch");
    picture.setAttribute("aria-hidden", "true");
    picture.append(line);
    return picture;
  }

  // Numbers

  function formatNumber(value, percent, digits) {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    if (percent) return `${(100 * value).toFixed(digits ?? 1)}%`;
    if (value !== 0 && (Math.abs(value) >= 1e6 || Math.abs(value) < 1e-3)) return value.toExponential(2);
    return Number(value.toPrecision(4)).toLocaleString("en", {maximumFractionDigits: 6});
  }

  // The first value that is not below `wanted`.
  function bisect(values, wanted) {
    let low = 0;
    let high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] < wanted) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // Which points of a long curve to draw between two places: the lowest and highest of every stretch.
  function thinOut(x, y, from, to, most) {
    let first = from === null ? 0 : Math.max(0, bisect(x, from) - 1);
    let last = to === null ? x.length : Math.min(x.length, bisect(x, to) + 1);
    const indices = [];
    if (last - first <= most) {
      for (let i = first; i < last; i++) indices.push(i);
      return indices;
    }
    const stretch = (last - first) / (most / 2);
    indices.push(first);
    for (let start = first; start < last; start += stretch) {
      const end = Math.min(last, Math.ceil(start + stretch));
      let least = Math.floor(start);
      let most = least;
      for (let i = least; i < end; i++) {
        if (y[i] < y[least]) least = i;
        if (y[i] > y[most]) most = i;
      }
      const pair = least < most ? [least, most] : [most, least];
      for (const i of pair) if (i > indices[indices.length - 1]) indices.push(i);
    }
    if (indices[indices.length - 1] < last - 1) indices.push(last - 1);
    return indices;
  }

  const pick = (values, indices) => indices.map((i) => values[i]);

  class Chart {
    // `about`: {title, axis, percent, target, target_text, whole (x counts something)}; `hidden`: the curves not shown.
    constructor(place, about) {
      this.about = about;
      this.hidden = new Set();
      this.curves = [];
      this.zoom = null;
      this.place = element("div", null, "chart");
      this.place.setAttribute("role", "img");
      this.tip = element("div", null, "tip");
      this.tip.hidden = true;
      this.back = element("button", "show all", "unzoom");
      this.back.type = "button";
      this.back.hidden = true;
      this.back.addEventListener("click", () => this.setZoom(null));
      place.append(this.place);
      new ResizeObserver(() => this.resize()).observe(this.place);
      dark.addEventListener("change", () => this.rebuild());
    }

    update(curves, text) {
      this.curves = curves;
      if (text) this.place.setAttribute("aria-label", text);
      const shape = curves.map((c) => [c.label, c.colour, c.low !== null, c.seeds.length]);
      const key = JSON.stringify(shape);
      if (!this.plot || key !== this.shape) {
        this.shape = key;
        this.rebuild();
      } else {
        this.refresh();
      }
    }

    setHidden(hidden) {
      this.hidden = hidden;
      if (!this.plot) return;
      this.plot.batch(() => {
        this.plot.series.forEach((series, index) => {
          if (index > 0) this.plot.setSeries(index, {show: this.shows(series)});
        });
      });
    }

    shows(series) {
      const few = this.curves.length - this.hidden.size <= MOST_BANDS;
      return !this.hidden.has(series.curve) && (!series.edge || few);
    }

    size() {
      const width = Math.max(200, Math.floor(this.place.clientWidth));
      return {width, height: Math.round(Math.min(320, Math.max(220, width * 0.55)))};
    }

    resize() {
      if (!this.place.clientWidth) return;
      if (!this.plot) {
        if (this.curves.length) this.rebuild();
        return;
      }
      const size = this.size();
      if (size.width !== this.plot.width) this.plot.setSize(size);
    }

    setZoom(range) {
      this.zoom = range;
      this.back.hidden = range === null;
      this.refresh();
    }

    // Curves have their points at places of their own; uPlot wants all values over the same places, with gaps.
    table() {
      const [from, to] = this.zoom || [null, null];
      const tables = [];
      for (const curve of this.curves) {
        const kept = thinOut(curve.x, curve.y, from, to, MOST_POINTS);
        const columns = [pick(curve.x, kept), pick(curve.y, kept)];
        if (curve.low !== null) columns.push(pick(curve.low, kept), pick(curve.high, kept));
        tables.push(columns);
        for (const seed of curve.seeds) {
          const some = thinOut(seed.x, seed.y, from, to, MOST_POINTS);
          tables.push([pick(seed.x, some), pick(seed.y, some)]);
        }
      }
      return tables.length ? uPlot.join(tables) : [[]];
    }

    refresh() {
      if (!this.plot) return;
      const data = this.table();
      this.plot.setData(data, false);
      this.setRange(data);
    }

    setRange(data) {
      const x = data[0];
      const [from, to] = this.zoom || [x[0] ?? 0, x[x.length - 1] ?? 1];
      this.plot.setScale("x", from === to ? {min: from - 0.5, max: to + 0.5} : {min: from, max: to});
    }

    rebuild() {
      if (this.plot) this.plot.destroy();
      this.plot = null;
      if (!this.place.clientWidth || !this.curves.length) return;
      const series = [{}];
      const bands = [];
      this.curves.forEach((curve, number) => {
        const stroke = paint(curve.colour);
        const line = {curve: number, label: curve.label, stroke, width: 2, dash: curve.dash, spanGaps: true};
        series.push({...line, main: true, points: {size: 5, show: (u, s) => this.isSparse(u, s)}});
        const edge = {...line, edge: true, width: 0, stroke: "transparent", points: {show: false}};
        if (curve.low !== null) {
          series.push(edge, edge);
          bands.push({series: [series.length - 1, series.length - 2], fill: fade(stroke)});
        }
        for (const _ of curve.seeds) series.push({...line, width: 0.75, alpha: 0.6, dash: [], points: {show: false}});
      });
      for (const one of series.slice(1)) one.show = this.shows(one);
      const axis = {
        stroke: () => css("faint"), grid: {stroke: () => css("line"), width: 1}, ticks: {stroke: () => css("line"), width: 1, size: 5},
        font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif",
      };
      const about = this.about;
      const data = this.table();
      this.plot = new uPlot(
        {
          ...this.size(), series, bands, legend: {show: false}, padding: [10, 14, 0, 0],
          scales: {x: {time: false, auto: false}, y: {range: (u, low, high) => this.fit(low, high)}},
          axes: [
            {...axis, label: about.axis, labelSize: 18, size: 34, incrs: about.whole ? WHOLE : undefined},
            {...axis, size: (u, values) => 16 + 7 * Math.max(3, ...(values || []).map((v) => (v || "").length)),
             values: (u, ticks) => ticks.map((v, i) => formatTick(v, ticks, about.percent))},
          ],
          cursor: {
            y: false,
            drag: {x: true, y: false, setScale: false, dist: 8},
            dataIdx: (u, number, index) => nearest(u.data[number], u.data[0], index, u.posToVal(u.cursor.left, "x")),
            points: {size: 7, show: (u, number) => (u.series[number].main ? undefined : false)},
          },
          hooks: {
            setSelect: [(u) => {
              if (u.select.width < 8) return;
              this.setZoom([u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")]);
              u.setSelect({left: 0, top: 0, width: 0, height: 0}, false);
            }],
            setCursor: [(u) => this.point(u)],
            drawClear: [(u) => this.drawTarget(u)],
          },
        },
        data,
        this.place,
      );
      this.plot.over.addEventListener("dblclick", () => this.setZoom(null));
      this.plot.over.append(this.tip);
      this.plot.root.append(this.back);
      this.setRange(data);
    }

    isSparse(u, number) {
      return u.data[number].reduce((count, value) => count + (value !== null && value !== undefined), 0) < 3;
    }

    // The axis fits the lines, not their intervals, which can be much wider; and the target, if there is one.
    fit(low, high) {
      let [least, most] = [Infinity, -Infinity];
      const [from, to] = this.zoom || [-Infinity, Infinity];
      this.curves.forEach((curve, number) => {
        if (this.hidden.has(number)) return;
        for (const {x, y} of [curve, ...curve.seeds])
          for (let i = 0; i < x.length; i++)
            if (x[i] >= from && x[i] <= to && Number.isFinite(y[i])) {
              least = Math.min(least, y[i]);
              most = Math.max(most, y[i]);
            }
      });
      if (least > most) return [low ?? 0, high ?? 1];
      const target = this.about.target;
      if (target !== null && target !== undefined && !this.zoom) [least, most] = [Math.min(least, target), Math.max(most, target)];
      const room = 0.1 * (most - least) || Math.abs(most) * 0.1 || 0.1;
      const top = this.about.percent && most <= 1 ? Math.min(1, most + room) : most + room;
      return [least >= 0 ? Math.max(0, least - room) : least - room, top];
    }

    drawTarget(u) {
      const target = this.about.target;
      if (target === null || target === undefined) return;
      const y = Math.round(u.valToPos(target, "y", true));
      const {left, top, width, height} = u.bbox;
      if (y < top || y > top + height) return;
      const context = u.ctx;
      const ratio = devicePixelRatio;
      context.save();
      context.strokeStyle = css("faint");
      context.fillStyle = css("faint");
      context.lineWidth = ratio;
      context.setLineDash([]);
      context.beginPath();
      context.moveTo(left, y);
      context.lineTo(left + width, y);
      context.stroke();
      context.font = `${11 * ratio}px system-ui, sans-serif`;
      context.textAlign = "right";
      context.fillText(this.about.target_text, left + width - 4 * ratio, y + 13 * ratio);
      context.restore();
    }

    // Show the values at the cursor, the highest first.
    point(u) {
      const {left, top, idxs} = u.cursor;
      const rows = [];
      if (left >= 0)
        u.series.forEach((series, number) => {
          if (!series.main || !series.show) return;
          const index = idxs[number];
          const value = index === null || index === undefined ? null : u.data[number][index];
          if (value !== null && value !== undefined) rows.push({series, value, x: u.data[0][index]});
        });
      this.tip.hidden = rows.length === 0;
      if (!rows.length) return;
      rows.sort((a, b) => b.value - a.value);
      const wanted = u.posToVal(left, "x");
      const at = rows.reduce((a, b) => (Math.abs(a.x - wanted) <= Math.abs(b.x - wanted) ? a : b)).x;
      this.tip.replaceChildren(element("b", `${this.about.axis} ${formatNumber(at)}`));
      for (const {series, value} of rows.slice(0, MOST_IN_TIP)) {
        const row = element("div");
        const dot = element("i", null, "dot");
        dot.style.background = series.stroke(u);
        const name = element("span", series.label);
        row.append(dot, name, element("span", formatNumber(value, this.about.percent, 2), "value"));
        this.tip.append(row);
      }
      if (rows.length > MOST_IN_TIP) this.tip.append(element("div", `and ${rows.length - MOST_IN_TIP} more`));
      const {width, height} = u.over.getBoundingClientRect();
      const box = this.tip.getBoundingClientRect();
      const right = left + 14 + box.width <= width ? left + 14 : Math.max(0, left - 14 - box.width);
      this.tip.style.left = `${right}px`;
      this.tip.style.top = `${Math.max(0, Math.min(top + 10, height - box.height))}px`;
    }
  }

  const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6];

  function formatTick(value, ticks, percent) {
    if (value === null) return "";
    const step = ticks.length > 1 ? Math.abs(ticks[1] - ticks[0]) : Math.abs(value) || 1;
    if (percent) return `${(100 * value).toFixed(countDecimals(100 * step))}%`;
    if (Math.abs(value) >= 1e6) return value.toExponential(1);
    return value.toLocaleString("en", {maximumFractionDigits: countDecimals(step)});
  }

  // The decimals that tell ticks apart and round none: 3 for steps of 0.025.
  function countDecimals(step) {
    let decimals = 0;
    while (decimals < 8 && Math.abs(step * 10 ** decimals - Math.round(step * 10 ** decimals)) > 1e-6) decimals++;
    return decimals;
  }

  function fade(colour) {
    return /^#[0-9a-f]{6}$/i.test(colour) ? `${colour}26` : "rgb(128 128 128 / 15%)";
  }

  // The place nearest to the cursor at which a curve has a value: its own, not another curve's.
  function nearest(values, places, index, wanted) {
    if (values[index] !== null && values[index] !== undefined) return index;
    let [before, after] = [index, index];
    while (before >= 0 && (values[before] === null || values[before] === undefined)) before--;
    while (after < values.length && (values[after] === null || values[after] === undefined)) after++;
    if (before < 0) return after < values.length ? after : null;
    if (after >= values.length) return before;
    return wanted - places[before] <= places[after] - wanted ? before : after;
  }

  // A list of names, each a button that hides and shows its curve in all charts. Double-click shows one alone.
  function makeLegend(list, curves, charts, hidden) {
    const items = curves.map((curve, number) => {
      const item = element("li");
      const button = element("button");
      button.type = "button";
      button.append(makeSwatch(curve.colour, curve.dash), element("span", curve.label));
      const apply = () => {
        for (const chart of charts()) chart.setHidden(hidden);
        [...list.querySelectorAll("button")].forEach((b, i) => b.setAttribute("aria-pressed", String(!hidden.has(i))));
      };
      button.setAttribute("aria-pressed", String(!hidden.has(number)));
      button.addEventListener("click", (event) => {
        if (event.detail > 1) return; // the second click of a double-click
        if (hidden.has(number)) hidden.delete(number);
        else hidden.add(number);
        apply();
      });
      button.addEventListener("dblclick", () => {
        const alone = curves.every((_, i) => i === number || hidden.has(i));
        hidden.clear();
        if (!alone) curves.forEach((_, i) => i !== number && hidden.add(i));
        apply();
      });
      item.append(button);
      return item;
    });
    list.replaceChildren(...items);
  }

  return {Chart, element, formatNumber, formatTick, makeLegend, makeSwatch, paint};
})();
