// The page of `fedlga watch`: asks for what is new, keeps it, and draws it. All text is put in as text, never as HTML.
"use strict";

(() => {
  const {element, formatNumber} = Charts;
  const $ = (id) => document.getElementById(id);
  const BUSY = 1000; // milliseconds between two questions while a run is going on
  const CALM = 2000; // and while none is
  const AXES = {
    rounds: "rounds", seconds: "seconds on this machine", simulated_seconds: "simulated seconds",
    work_seconds: "device seconds", megabytes: "megabytes sent",
  };

  const runs = new Map(); // number -> {about, rows: {column -> values}}
  let at = {epoch: "", position: 0, revision: 0};
  let columns = [];
  let quantiles = [];
  let selected = null;
  let axis = "rounds";
  let part = 1;
  const hidden = new Set();
  const charts = new Map(); // measure -> {chart, place}
  let legend = "";
  let shownDevices = "";

  // Asking

  async function ask(path) {
    const answer = await fetch(path, {cache: "no-store"});
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    return answer.json();
  }

  async function follow() {
    let wait = CALM;
    try {
      const news = await ask(`updates?epoch=${at.epoch}&position=${at.position}&revision=${at.revision}`);
      take(news);
      draw();
      await showDevices();
      const running = [...runs.values()].some((run) => run.about.state === "running");
      wait = news.more ? 0 : running ? BUSY : CALM;
      setStatus("following", running ? "following" : "up to date");
    } catch (error) {
      setStatus("lost", `no answer; trying again (${error.message})`);
    }
    setTimeout(follow, wait);
  }

  function setStatus(state, text) {
    $("status").dataset.state = state;
    if ($("status").textContent !== text) $("status").textContent = text;
  }

  function take(news) {
    if (news.epoch !== at.epoch) runs.clear(); // another server: it sent all from the beginning
    at = {epoch: news.epoch, position: news.position, revision: news.revision};
    columns = news.columns;
    quantiles = news.quantiles || quantiles;
    for (const about of news.runs) {
      const run = runs.get(about.number);
      if (run) run.about = about;
      else runs.set(about.number, {about, rows: newRows()});
    }
    for (const number of [...runs.keys()]) if (!news.numbers.includes(number)) runs.delete(number);
    for (const [number, row] of news.rows) {
      const run = runs.get(number);
      if (!run) continue;
      if (row === null) run.rows = newRows();
      else addRow(run.rows, row);
    }
    const folders = news.folders.join(", ");
    if ($("folders").textContent !== folders) $("folders").textContent = folders;
    $("unreadable").replaceChildren(...news.unreadable.map((text) => element("li", text)));
    $("unreadable").hidden = news.unreadable.length === 0;
  }

  const newRows = () => ({fields: [], totals: {}, count: 0});

  // A row becomes a value in each column; what is spent in a round becomes what is spent so far.
  function addRow(rows, row) {
    row.forEach((value, index) => {
      rows.fields[index] = rows.fields[index] || new Array(rows.count).fill(null);
      const name = columns[index];
      const spent = name in AXES && name !== "rounds";
      if (spent) rows.totals[name] = (rows.totals[name] || 0) + (value || 0);
      rows.fields[index].push(spent ? rows.totals[name] : value);
    });
    rows.count += 1;
    for (const field of rows.fields) if (field.length < rows.count) field.push(null);
  }

  function column(run, name) {
    const own = columns.indexOf(name);
    if (own >= 0) return run.rows.fields[own] || [];
    const metric = run.about.metrics.indexOf(name);
    return metric < 0 ? [] : run.rows.fields[columns.length + metric] || [];
  }

  // Curves

  function listGroups() {
    const groups = new Map();
    for (const run of runs.values()) {
      const group = groups.get(run.about.group) || {...run.about, runs: []};
      group.runs.push(run);
      groups.set(run.about.group, group);
    }
    return [...groups.values()].sort((a, b) => a.group - b.group);
  }

  // The mean over the seeds where all were measured, with its interval; then each seed that goes on.
  function makeCurve(group, name) {
    const seeds = group.runs.map((run) => ({x: column(run, axis === "rounds" ? "round" : axis), y: column(run, name), n: run.rows.count}));
    const known = seeds.filter((seed) => seed.y.some((value) => value !== null));
    const curve = {label: group.label, colour: group.colour, dash: group.dash, x: [], y: [], low: null, high: null, seeds: []};
    if (!known.length) return curve;
    const shortest = Math.min(...known.map((seed) => seed.n));
    const quantile = quantiles[known.length] ?? null;
    if (quantile !== null) [curve.low, curve.high] = [[], []];
    for (let i = 0; i < shortest; i++) {
      if (!known.every((seed) => seed.y[i] !== null && seed.y[i] !== undefined)) continue;
      let [sum, place] = [0, 0];
      for (const seed of known) {
        sum += seed.y[i];
        place += seed.x[i];
      }
      const mean = sum / known.length;
      curve.x.push(place / known.length);
      curve.y.push(mean);
      if (quantile !== null) {
        const squares = known.reduce((total, seed) => total + (seed.y[i] - mean) ** 2, 0);
        const half = (quantile * Math.sqrt(squares / (known.length - 1))) / Math.sqrt(known.length);
        curve.low.push(mean - half);
        curve.high.push(mean + half);
      }
    }
    for (const seed of known) {
      if (seed.n <= shortest) continue;
      const rest = {x: [], y: []};
      for (let i = shortest - 1; i < seed.n; i++)
        if (seed.y[i] !== null && seed.y[i] !== undefined) {
          rest.x.push(seed.x[i]);
          rest.y.push(seed.y[i]);
        }
      curve.seeds.push(rest);
    }
    return curve;
  }

  const hasValues = (name) => [...runs.values()].some((run) => column(run, name).some((value) => value !== null));

  function listMeasures() {
    const targets = [...new Set([...runs.values()].map((run) => run.about.metric))];
    const measures = new Map();
    for (const metric of targets) measures.set(metric, `test ${metric}`);
    measures.set("train_loss", "training loss");
    for (const metric of targets) measures.set(`${metric}_slow`, `${metric} on the slow devices' data`);
    return new Map([...measures].filter(([name]) => hasValues(name)));
  }

  function drawCharts(place, measures, groups) {
    for (const [name, title] of measures) {
      const percent = groups.some((group) => group.percent.includes(name));
      const goals = [...new Set(groups.filter((group) => group.metric === name).map((group) => group.target))];
      const target = goals.length === 1 ? goals[0] : null;
      const about = {
        axis: AXES[axis], percent, target, whole: axis === "rounds",
        target_text: target === null ? "" : `target ${formatNumber(target, percent, 0)}`,
      };
      const key = JSON.stringify(about);
      let known = charts.get(name);
      if (known && known.key !== key) {
        known.figure.remove();
        known = null;
      }
      if (!known) {
        const figure = element("figure");
        figure.append(element("figcaption", title));
        known = {key, figure, chart: new Charts.Chart(figure, about)};
        known.chart.setHidden(hidden);
        charts.set(name, known);
      }
      place.append(known.figure);
      const curves = groups.map((group) => makeCurve(group, name));
      const ends = curves.filter((c) => c.y.length).map((c) => `${c.label}: ${formatNumber(c.y[c.y.length - 1], percent)}`);
      known.chart.update(curves, `${title} over ${AXES[axis]}. ${ends.join("; ")}`);
      followEnd(known.chart, curves);
    }
    for (const [name, {figure}] of charts)
      if (figure.parentElement === place && !measures.has(name)) {
        figure.remove();
        charts.delete(name);
      }
  }

  // "Last half", "last tenth": the range moves on with the run. A range that was dragged stays where it is.
  function followEnd(chart, curves) {
    if (part === 1) return;
    const end = Math.max(...curves.flatMap((c) => [c, ...c.seeds]).map((c) => c.x[c.x.length - 1] ?? 0));
    chart.setZoom([end * (1 - part), end]);
  }

  function draw() {
    const groups = listGroups();
    const known = [...runs.values()];
    const count = (state) => known.filter((run) => run.about.state === state).length;
    const words = ["running", "finished", "stopped", "diverged", "not started", "damaged"];
    const states = words.filter(count).map((state) => `${count(state)} ${state}`);
    const headline = known.length ? `${known.length} run${known.length === 1 ? "" : "s"}: ${states.join(", ")}` : "No run yet";
    if ($("headline").textContent !== headline) {
      $("headline").textContent = headline;
      document.title = `${headline} – fedlga watch`;
    }
    const begun = known.some((run) => run.rows.count);
    $("learning").hidden = !begun;
    $("runs").hidden = !known.length;
    if (begun) {
      drawLegend(groups);
      drawCharts($("charts"), listMeasures(), groups);
    }
    const done = new Map([["growth", "exponent"], ["scale_median", "scale of completed updates"]].filter(([name]) => hasValues(name)));
    $("completing").hidden = !done.size;
    drawCharts($("completing-charts"), done, groups);
    drawTable(known);
  }

  function drawLegend(groups) {
    const key = JSON.stringify(groups.map((group) => [group.label, group.colour, group.dash]));
    if (key === legend) return;
    legend = key;
    for (const index of [...hidden]) if (index >= groups.length) hidden.delete(index);
    Charts.makeLegend($("legend"), groups, () => [...charts.values()].map(({chart}) => chart), hidden);
  }

  // Tables

  function formatSeconds(seconds) {
    if (seconds === null || seconds === undefined) return "–";
    if (seconds < 90) return `${Math.round(seconds)} s`;
    if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
    return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} days`;
  }

  const formatBytes = (bytes) => (bytes >= 1e9 ? `${(bytes / 1e9).toFixed(2)} GB` : `${(bytes / 1e6).toFixed(bytes >= 1e8 ? 0 : 1)} MB`);
  const lastOf = (run, name) => column(run, name).findLast((value) => value !== null) ?? null;
  const isPercent = (about, name) => about.percent.includes(name);

  // A table whose titles sort it. `fields`: {title, value (to sort by), cell (text or an element), number}. Rows and
  // titles stay the same elements as long as they are there: a click must not fall between two of them.
  class SortedTable {
    constructor(table, fields, keyOf, onClick) {
      Object.assign(this, {table, fields, keyOf, onClick, by: null, down: false, rows: new Map(), titles: ""});
    }

    draw(items, chosen) {
      [this.items, this.chosen] = [items, chosen];
      const shown = this.fields().filter((field) => !field.when || field.when(items));
      const titles = JSON.stringify(shown.map((field) => field.title));
      if (titles !== this.titles) {
        this.titles = titles;
        this.rows.clear();
        const line = element("tr");
        line.append(...shown.map((field) => this.makeHead(field)));
        this.table.tHead.replaceChildren(line);
      }
      for (const head of this.table.tHead.rows[0].cells) {
        if (head.textContent === this.by) head.setAttribute("aria-sort", this.down ? "descending" : "ascending");
        else head.removeAttribute("aria-sort");
      }
      const sorted = [...items];
      const field = shown.find((one) => one.title === this.by);
      if (field) {
        const sign = this.down ? -1 : 1;
        sorted.sort((a, b) => {
          const [x, y] = [field.value(a), field.value(b)];
          if (x === null || y === null) return (x === null) - (y === null); // what is not known comes last
          return sign * (typeof x === "string" ? x.localeCompare(y) : x - y);
        });
      }
      const rows = sorted.map((item) => this.updateRow(item, shown, chosen));
      const body = this.table.tBodies[0];
      if (rows.length !== body.rows.length || rows.some((row, index) => row !== body.rows[index])) body.replaceChildren(...rows);
    }

    makeHead(field) {
      const head = element("th", null, field.number ? "number" : "");
      head.scope = "col";
      const button = element("button", field.title);
      button.type = "button";
      button.addEventListener("click", () => {
        this.down = this.by === field.title ? !this.down : Boolean(field.number);
        this.by = field.title;
        this.draw(this.items, this.chosen);
      });
      head.append(button);
      return head;
    }

    updateRow(item, shown, chosen) {
      const key = this.keyOf(item);
      let row = this.rows.get(key);
      if (!row) {
        row = element("tr");
        row.append(...shown.map((field, index) => {
          const cell = element(index ? "td" : "th", null, field.number ? "number" : "");
          if (!index) cell.scope = "row";
          return cell;
        }));
        if (this.onClick) row.addEventListener("click", () => this.onClick(key));
        this.rows.set(key, row);
      }
      shown.forEach((field, index) => {
        const content = field.cell(item);
        const made = typeof content === "string" ? document.createTextNode(content) : content;
        const cell = row.cells[index];
        if (!cell.firstChild || !cell.firstChild.isEqualNode(made)) cell.replaceChildren(made);
      });
      if (this.onClick) row.setAttribute("aria-selected", String(item === chosen));
      return row;
    }
  }

  const about = (name) => (run) => run.about[name];
  const fields = () => [
    {title: "run", value: nameOf, cell: (run) => {
      const button = element("button", nameOf(run));
      button.type = "button";
      return button;
    }},
    {title: "state", value: about("state"), cell: (run) => {
      const word = element("span", run.about.state, "state");
      word.dataset.state = run.about.state;
      return word;
    }},
    {title: "round", number: true, value: about("round"), cell: (run) => {
      const cell = element("span", `${run.about.round} of ${run.about.rounds}`);
      if (run.about.state !== "running") return cell;
      const bar = element("progress");
      bar.setAttribute("max", run.about.rounds);
      bar.setAttribute("value", run.about.round);
      cell.append(bar);
      return cell;
    }},
    {title: "time left", number: true, value: about("left"), cell: (run) => formatSeconds(run.about.left)},
    {title: "now", number: true, value: (run) => lastOf(run, run.about.metric),
     cell: (run) => formatNumber(lastOf(run, run.about.metric), isPercent(run.about, run.about.metric))},
    {title: "best", number: true, value: about("best"), cell: (run) => formatNumber(run.about.best, isPercent(run.about, run.about.metric))},
    {title: "slow devices' data", number: true, when: (items) => items.some((run) => lastOf(run, `${run.about.metric}_slow`) !== null),
     value: (run) => lastOf(run, `${run.about.metric}_slow`),
     cell: (run) => formatNumber(lastOf(run, `${run.about.metric}_slow`), isPercent(run.about, run.about.metric))},
    {title: "target after", number: true, when: (items) => items.some((run) => run.about.target !== null), value: about("reached"),
     cell: (run) => (run.about.reached === null ? "–" : `${run.about.reached} rounds`)},
    {title: "unfinished", number: true, value: (run) => (run.about.asked ? run.about.unfinished / run.about.asked : null),
     cell: (run) => (run.about.asked ? `${Math.round((100 * run.about.unfinished) / run.about.asked)}%` : "–")},
    {title: "exponent", number: true, when: (items) => items.some((run) => lastOf(run, "growth") !== null),
     value: (run) => lastOf(run, "growth"), cell: (run) => lastOf(run, "growth")?.toFixed(2) ?? "–"},
    {title: "scale", number: true, when: (items) => items.some((run) => lastOf(run, "scale_median") !== null),
     value: (run) => lastOf(run, "scale_median"), cell: (run) => formatScale(run)},
    {title: "simulated", number: true, value: about("simulated_seconds"), cell: (run) => formatSeconds(run.about.simulated_seconds)},
    {title: "device time", number: true, value: about("work_seconds"), cell: (run) => formatSeconds(run.about.work_seconds)},
    {title: "down", number: true, value: about("bytes_down"), cell: (run) => formatBytes(run.about.bytes_down)},
    {title: "up", number: true, value: about("bytes_up"), cell: (run) => formatBytes(run.about.bytes_up)},
    {title: "took", number: true, value: about("seconds"), cell: (run) => formatSeconds(run.about.seconds)},
  ];

  const nameOf = (run) => `${run.about.label}, seed ${run.about.seed}`;

  function formatScale(run) {
    const [low, middle, high] = ["scale_low", "scale_median", "scale_high"].map((name) => lastOf(run, name));
    if (middle === null) return "–";
    const digits = (value) => value.toFixed(2);
    return low === high ? digits(middle) : `${digits(middle)} (${digits(low)} to ${digits(high)})`;
  }

  const table = new SortedTable($("table"), fields, about("number"), (number) => {
    selected = number;
    drawTable([...runs.values()]);
    showDevices().catch(() => {});
    $("details").scrollIntoView({behavior: "smooth", block: "nearest"});
  });

  function drawTable(known) {
    table.draw(known, runs.get(selected));
  }

  // Who was slow

  async function showDevices() {
    if (!runs.has(selected)) selected = runs.size === 1 ? [...runs.keys()][0] : null;
    const run = runs.get(selected);
    $("details").hidden = !run;
    if (!run) return;
    const key = JSON.stringify([selected, run.about]);
    if (key === shownDevices) return;
    const told = await ask(`devices?run=${selected}`);
    if (told.number !== selected) return; // another run was chosen meanwhile
    shownDevices = key;
    $("details-name").textContent = nameOf(run);
    $("details-folder").textContent = run.about.folder;
    $("details-resume").textContent = run.about.resume;
    $("resume-row").hidden = run.about.state !== "stopped" && run.about.state !== "running";
    $("resume-when").textContent = run.about.state === "running" ? "if it stops" : "to go on";
    $("details-repeat").textContent = run.about.repeat;
    $("problem-row").hidden = !run.about.problem;
    $("details-problem").textContent = run.about.problem;
    drawPicture(told);
    drawDevices(told);
    $("messages-title").hidden = !told.messages.length;
    $("messages").replaceChildren(...told.messages.map(({round, text}) => element("li", `round ${round}: ${text}`)));
  }

  function drawPicture(told) {
    const devices = [...new Set(told.recent.flatMap(([, states]) => states.map(([device]) => device)))].sort((a, b) => a - b).slice(0, 100);
    const rowOf = new Map(devices.map((device, row) => [device, row]));
    const canvas = $("picture");
    const [wide, high] = [8, Math.max(3, Math.min(10, Math.floor(400 / Math.max(1, devices.length))))];
    canvas.width = Math.max(1, told.recent.length) * wide;
    canvas.height = Math.max(1, devices.length) * high;
    canvas.style.maxWidth = `${canvas.width * 1.5}px`;
    const context = canvas.getContext("2d");
    const colours = new Map(told.states.map(({state, colour}) => [state, colour]));
    const counts = new Map();
    told.recent.forEach(([, states], index) => {
      for (const [device, state] of states) {
        counts.set(state, (counts.get(state) || 0) + 1);
        if (!rowOf.has(device)) continue;
        context.fillStyle = colours.get(state);
        context.fillRect(index * wide, rowOf.get(device) * high, wide - 1, Math.max(1, high - 1));
      }
    });
    const present = told.states.filter(({state}) => counts.get(state));
    $("states").replaceChildren(...present.map(({name, colour}) => {
      const item = element("li");
      const box = element("span", null, "box");
      box.style.background = colour;
      item.append(box, element("span", name));
      return item;
    }));
    if (!told.recent.length) return;
    const [first, last] = [told.recent[0][0], told.recent[told.recent.length - 1][0]];
    const words = present.map(({state, name}) => `${counts.get(state)} times ${name}`).join(", ");
    const text = `A row a device, a column a round: rounds ${first} to ${last}, ${devices.length} devices: ${words}.`;
    $("picture-text").textContent = text;
    canvas.setAttribute("aria-label", text);
  }

  let deviceTable = null;

  function drawDevices(told) {
    const counted = told.states.map(({name}, index) => ({
      title: name, number: true, value: (d) => d.counts[index], cell: (d) => String(d.counts[index]),
      when: (items) => items.some((d) => d.counts[index]),
    }));
    const all = [
      {title: "device", value: (d) => d.device, cell: (d) => String(d.device)},
      {title: "asked", number: true, value: (d) => d.asked, cell: (d) => String(d.asked)},
      ...counted,
      {title: "mean scale", number: true, value: (d) => d.scale, cell: (d) => (d.scale === null ? "–" : d.scale.toFixed(2)),
       when: (items) => items.some((d) => d.scale !== null)},
    ];
    deviceTable = deviceTable || new SortedTable($("devices"), () => deviceTable.all, (d) => d.device, null);
    deviceTable.all = all;
    deviceTable.draw(told.devices, null);
  }

  // Choices

  for (const choice of document.querySelectorAll("input[name=axis]"))
    choice.addEventListener("change", () => {
      axis = choice.value;
      for (const {figure} of charts.values()) figure.remove();
      charts.clear();
      draw();
    });
  for (const choice of document.querySelectorAll("input[name=part]"))
    choice.addEventListener("change", () => {
      part = Number(choice.value);
      if (part === 1) for (const {chart} of charts.values()) chart.setZoom(null);
      draw();
    });

  follow();
})();
