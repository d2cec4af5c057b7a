// Fills the sources of the charts from PAGE when something is chosen, and links them by client. Bokeh draws.
const {people, runs, rules} = PAGE, $ = id => document.getElementById(id);
const METHODS = [...new Set(runs.map(r => r.method))], SEEDS = [...new Set(runs.map(r => String(r.seed)))];
// Apart for people with any colour-blindness: lines by colour, or else by dash; labels by colour, or else by shape and
// hatching. tests/runs/page/test_colours.py simulates it.
const LINES = {light: ["#006AC6","#DB6922","#195F5E","#AF678F","#885900","#1095D4","#51410E"],
              dark: ["#659AB8","#F9843E","#38C898","#C6A0FC","#FFBC35","#9FDEFF","#DEE0B6"]};
const LABELS = {light: ["#302188","#3997B8","#709B84","#267216","#8C8501","#C09009","#D37763","#872154","#AB429E","#786878"],
               dark: ["#8E78EB","#92CDEF","#3BCEBB","#35B045","#B8BC4D","#E7CE73","#F88E97","#D9629C","#C17BD1","#D1D6D6"]};
const DASHES = [[], [8,4], [2,3]], DASHED = ["solid", "dashed", "dotted"], SHAPES = ["circle","square","triangle"], GLYPHS = "●■▲", MARKS = ["circle","square","diamond","triangle","inverted_triangle","hex","star"];
const AXES = {round: ["round", 1], bytes: ["MB sent, both ways", 1e6], operations: ["forward multiply-adds of training, 10⁹", 1e9], seconds: ["seconds", 1]};
const S = {method: METHODS[0], seed: SEEDS[0], rule: runs[0].tested, at: Infinity, filter: "all", against: "round", layer: 0, off: [], picked: null, sort: ["acc", 1], theme: null, open: [], y: 0};
const STATE = "pa3dfl " + location.pathname;  // a tab may show several pages
const best = r => { const v = r.chosen[r.tested].filter(x => x !== null); return v.length ? v.reduce((a, b) => a + b) / v.length : -1; };
S.method = runs.reduce((a, b) => best(b) > best(a) ? b : a).method;
try { Object.assign(S, JSON.parse(sessionStorage.getItem(STATE) || "{}")); } catch {}
if (!METHODS.includes(S.method)) S.method = METHODS[0];
if (!SEEDS.includes(S.seed)) S.seed = SEEDS[0];
if (!rules.includes(S.rule)) S.rule = runs[0].tested;
if (!runs.some(r => r.curve[S.against]?.some(v => v !== null))) S.against = "round";
const short = (s, n = 40) => s.length > n ? s.slice(0, n - 1) + "…" : s;
const node = (tag, text, more = {}) => Object.assign(document.createElement(tag), {textContent: text ?? ""}, more);
const num = (v, digits = 1) => v === null || v === undefined || Number.isNaN(v) ? "–" : v.toFixed(digits);
const amount = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;
const nan = v => v === null || v === undefined ? NaN : v;
const size = b => b === null ? "–" : b === 0 ? "0" : b >= 1e9 ? num(b / 1e9, 2) + " GB" : b >= 1e6 ? num(b / 1e6, 1) + " MB" : num(b / 1e3, 1) + " kB";
const theme = () => on_paper ? "light" : S.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
const drawn = k => { const c = LINES[theme()], d = Math.floor(k / c.length) % DASHES.length; return {colour: c[k % c.length], dash: DASHES[d], border: `3px ${DASHED[d]} ${c[k % c.length]}`, marker: MARKS[k % MARKS.length]}; };
const style = m => drawn(METHODS.indexOf(m));
const stroke = style => { const i = node("i", "", {className: "line"}); i.style.borderTop = style.border; return i; };
let doc, order = [], hover = null, rows = [], on_paper = false;
const model = name => doc.get_model_by_name(name);
const set = (name, data) => { model(name).data = data; };
const table = list => { const keys = list.length ? Object.keys(list[0]) : []; const cols = {}; for (const k of keys) cols[k] = list.map(r => r[k]); return cols; };
// An earlier evaluation that tested a client, where the one that is shown did not.
const last = (r, k, until) => r.evaluations.findLast(e => e.round <= until && (e[S.rule]?.[k] ?? null) !== null);
const run = (method = S.method) => runs.find(r => r.method === method && String(r.seed) === S.seed) || runs.find(r => r.method === method);
const at = r => S.at < r.evaluations.length ? r.evaluations[S.at] : {loss: r.evaluations.find(e => e.round === r.best_round)?.loss, ...r.chosen, round: r.best_round};

function gather() {
  const r = run(), who = people[r.people], e = at(r), groups = Math.min(10, who.classes || 1);
  const group = k => who.dominant[k] === null ? 9 : Math.floor(who.dominant[k] * groups / who.classes);
  const pos = new Map(), moves = r.network?.map;
  if (moves?.length) (moves.findLast(m => m.round <= (e.round ?? Infinity)) || moves[0]).xy.forEach((p, k) => p && pos.set(k, p));
  const byLabel = who.id.map((_, k) => k).sort((a, b) => group(a) - group(b) || a - b), rank = [];
  byLabel.forEach((k, i) => { rank[k] = i; });
  const events = new Map();
  for (const [, i] of [...r.rejected, ...r.missing]) events.set(i, (events.get(i) || 0) + 1);
  const until = S.at < r.evaluations.length ? e.round : Infinity, some = (e[S.rule] || []).some(v => v !== null);
  rows = who.id.map((id, k) => {
    const away = some && (e[S.rule]?.[k] ?? null) === null, before = away ? last(r, k, until) : null, of = before || e;
    const row = {k, id, away, since: before ? before.round : away ? null : e.round, name: who.names ? who.names[k] : "", r: 100 * who.r[k], acc: nan(of[S.rule]?.[k]) / 100, alpha: nan(of.alpha?.[k]) / 100, loss: nan(of.loss?.[k]) / 1000,
      width: r.width[k], n: who.n[k], main: who.dominant[k], trained: r.trained[k], bytes: r.bytes[k], events: events.get(id) || 0,
      ex: pos.has(k) ? pos.get(k)[0] / 1000 : NaN, ey: pos.has(k) ? pos.get(k)[1] / 1000 : NaN, rank: rank[k], colour: LABELS[theme()][group(k)]};
    row.mark = SHAPES[group(k) % SHAPES.length];
    row.fill = away ? "#00000000" : row.colour;
    const counts = who.labels[k] || [], total = counts.reduce((a, b) => a + b, 0) || 1;
    for (let g = 0; g < 10; g++) row["c" + g] = 100 * (counts[g] || 0) / total;
    return row;
  });
  order = rows.filter(keeps());
}
// A client's number and, in a deployment, the name of its node.
const called = id => { const who = people[run().people], name = who.names?.[who.id.indexOf(id)]; return name ? `${id} ${short(name)}` : String(id); };
function keeps() {
  const [kind, n] = S.filter.split(":");
  if (kind === "worst") { const w = rows.filter(r => r.acc === r.acc).sort((a, b) => a.acc - b.acc); const in_ = new Set(w.slice(0, Math.ceil(w.length / 10))); return r => in_.has(r); }
  if (kind === "fifth") { const w = [...rows].sort((a, b) => a.r - b.r || a.k - b.k); return r => Math.floor(w.indexOf(r) * 5 / w.length) === +n; }
  if (kind === "class") return r => r.main === +n;
  if (kind === "events") return r => r.events > 0;
  return () => true;
}
function charts() {
  const r = run(), who = people[r.people];
  const chosen = S.picked !== null ? order.findIndex(x => x.id === S.picked) : -1;
  const COLUMNS = ["id","r","acc","alpha","loss","ex","ey","rank","colour","fill","mark", ...Array.from({length: 10}, (_, g) => "c" + g)];
  set("clients", Object.fromEntries(COLUMNS.map(c => [c, order.map(x => x[c])])));
  model("clients").selected.indices = chosen >= 0 ? [chosen] : [];
  $("key").replaceChildren(...keyOf(who, true)); $("bar-key").replaceChildren(...keyOf(who, false));
  for (const s of document.querySelectorAll(".network")) s.hidden = !r.network;
  for (const [id, has] of [["s-labels", who.classes > 0], ["s-alpha", new Set(rows.map(x => x.alpha).filter(x => x === x)).size > 1]]) $(id).hidden = !has;
  const away = order.filter(x => x.away), never = away.filter(x => x.since === null).length;
  $("away").textContent = (away.length > never ? `Hollow: ${amount(away.length - never, "client")} not tested here, as last tested. ` : "") + (never ? `Without a dot: ${amount(never, "client")} not tested yet.` : "");
  const list = [...r.rejected.map(([x, y, why]) => ({x, y, marker: "x", kind: "update refused", reason: why})), ...r.missing.map(([x, y]) => ({x, y, marker: "circle", kind: "no answer", reason: ""}))].filter(e => order.some(o => o.id === e.y) || S.filter === "all");
  set("events", list.length ? table(list.map(e => ({...e, who: called(e.y), size: e.marker === "x" ? 13 : 9, colour: e.marker === "x" ? LINES[theme()][1] : LINES[theme()][0]}))) : {x: [], y: [], who: [], marker: [], size: [], colour: [], kind: [], reason: []});
  Object.assign(model("timeline").x_range, {start: 0, end: r.rounds + 1});
  $("timeline-none").textContent = r.events[0] + r.events[1] ? `${amount(r.events[0], "update")} refused, ${amount(r.events[1], "answer")} missing, in ${amount(r.rounds, "round")}.` + (list.length ? "" : " None of the clients shown.") : "None: every client answered, and every update was taken.";
  $("timeline-none").nextElementSibling.hidden = $("table-timeline").hidden = !list.length;
  $("evaluation").max = r.evaluations.length; $("evaluation").value = Math.min(S.at, r.evaluations.length);
  $("evaluation-text").textContent = S.at < r.evaluations.length ? `round ${r.evaluations[S.at].round}` : `chosen by validation${r.best_round ? `, round ${r.best_round}` : ""}`;
  if (r.network) { matrix(r); taus(r); }
  joined(r); learning(); ring();
}
function joined(r) {
  $("s-newcomers").hidden = !r.newcomers.length;
  const ks = [...new Set(r.newcomers.flatMap(n => n.after.map(a => a[0])))].sort((a, b) => a - b), line = (cells, kind) => { const tr = node("tr"); tr.append(...cells.map(c => node(kind, c))); return tr; };
  const found = r.newcomers.map(n => [n.rule, n.clients, ...ks.map(k => num(nan(n.after.find(a => a[0] === k)?.[1]) / 100)), num(nan(n.others) / 100)]);
  $("newcomers").replaceChildren(line(["tested", "newcomers", ...ks.map(k => k === 0 ? "on arrival" : `after ${amount(k, "round")}`), "trained in"], "th"), ...found.map(f => line(f, "td")));
}
// The labels that share a colour.
function groups(who) {
  const n = Math.min(10, who.classes || 0), per = (who.classes || 1) / (n || 1);
  return Array.from({length: n}, (_, g) => { const first = Math.ceil(g * per), last = Math.ceil((g + 1) * per) - 1; return first === last ? `label ${first}` : `${first}–${last}`; });
}
const keyOf = (who, mark) => groups(who).map((name, g) => { const s = node("span", "", {className: "key"}), b = node("b", GLYPHS[g % SHAPES.length]), i = node("i", "", {className: `hatch${g % SHAPES.length}`}); b.style.color = i.style.backgroundColor = LABELS[theme()][g]; s.append(mark ? b : i, " ", name); return s; });
function learning() {
  const lines = [], bands = [], points = [], [name, unit] = AXES[S.against];
  for (const method of METHODS.filter(m => !S.off.includes(m))) {
    const own = runs.filter(r => r.method === method && r.curve.round.length), st = style(method); if (!own.length) continue;
    const common = own[0].curve.round.filter(x => own.every(r => r.curve.round.includes(x)));
    const dots = common.map(x => { const ks = own.map(r => r.curve.round.indexOf(x)), ys = own.map((r, i) => nan(r.curve[S.rule][ks[i]]) / 100), xs = own.map((r, i) => nan(r.curve[S.against][ks[i]]) / unit);
      const mean = v => v.reduce((a, b) => a + b, 0) / v.length; return {x: mean(xs), y: mean(ys), low: Math.min(...ys), high: Math.max(...ys)}; }).filter(d => d.x === d.x && d.y === d.y);
    lines.push({xs: dots.map(d => d.x), ys: dots.map(d => d.y), name: short(method), colour: st.colour, dash: st.dash, width: method === S.method ? 4 : 2});
    if (own.length > 1) bands.push({xs: [...dots.map(d => d.x), ...dots.map(d => d.x).reverse()], ys: [...dots.map(d => d.low), ...dots.map(d => d.high).reverse()], colour: st.colour});
    const every = Math.ceil(dots.length / 12);  // markers, so that dashes stay visible between them
    points.push(...dots.map((d, i) => ({size: (dots.length - 1 - i) % every ? 2 : 7, x: d.x, y: d.y, name: short(method), colour: st.colour, marker: st.marker, of: name, shown: d.x.toLocaleString("en", {maximumSignificantDigits: 4})})));
  }
  set("lines", lines.length ? table(lines) : {xs: [], ys: [], name: [], colour: [], dash: [], width: []});
  set("bands", bands.length ? table(bands) : {xs: [], ys: [], colour: []});
  set("points", points.length ? table(points) : {size: [], x: [], y: [], name: [], colour: [], marker: [], of: [], shown: []});
  model("curves").below[0].axis_label = name; model("curves").below[0].ticker.min_interval = S.against === "round" ? 1 : 0;
  tables();
}
function cosines(r) {
  const ms = r.network.matrices, round = at(r).round ?? Infinity, m = ms.findLast(x => x.round <= round) || ms[0], n = r.network.clients.length;
  const bytes = Uint8Array.from(atob(m.cosines), c => c.charCodeAt(0)), all = Array.from({length: n}, () => new Float64Array(n));
  let i = 0; for (let a = 0; a < n; a++) for (let b = a; b < n; b++) all[a][b] = all[b][a] = bytes[i++] / 127.5 - 1;
  return [all, m.round];
}
function matrix(r) {
  if (!r.network.layers[S.layer]) S.layer = 0;
  const [all, round] = cosines(r), n = all.length, taus = r.network.tau.findLast(t => t[0] <= round)?.[1], t = taus?.[S.layer];
  const flat = new Float32Array(n * n), shown = [];
  all.forEach((row, a) => { const w = t ? row.map(c => Math.exp((c - 1) / t)) : row, sum = t ? w.reduce((x, y) => x + y) / n : 1; w.forEach((v, b) => { flat[a * n + b] = v / sum; shown.push(v / sum); }); });
  shown.sort((a, b) => a - b);
  Object.assign(model("heat-colours"), {low: t ? 0 : shown[0], high: t ? Math.max(shown[Math.floor(shown.length * 0.99)], 1.01) : 1});
  const nd = new (plain("matrix").image[0].constructor)(flat, [n, n]);
  set("matrix", {image: [nd], x: [0], y: [0], dw: [n], dh: [n]});
  model("heat").x_range.end = n; model("heat").y_range.start = n;
  $("heat-how").textContent = (t ? "Brighter: the client of the row takes more from the client of the column; 1 is an equal share. " : "Brighter: the two clients receive more similar parameters. ") + `Similar clients stand together. Round ${round}.`;
  $("layer").parentElement.hidden = !r.network.layers.length;
  const options = r.network.layers; if ($("layer").length !== options.length) fillSelect($("layer"), options.map((l, k) => [k, l]), S.layer);
}
const lineKey = lines => lines.map(l => { const k = node("span", "", {className: "key"}); k.append(stroke(l), l.name); return k; });
function taus(r) {
  const lines = r.network.layers.map((name, l) => ({xs: r.network.tau.map(t => t[0]), ys: r.network.tau.map(t => t[1][l]), name, ...drawn(l)}));
  $("s-tau").hidden = !lines.length;
  $("tau-key").replaceChildren(...lineKey(lines));
  set("taus", lines.length ? table(lines) : {xs: [], ys: [], name: [], colour: [], dash: []});
}
function near(id, count = 3) {
  const r = run(); if (!r.network) return [];
  const ids = r.network.clients.map(k => people[r.people].id[k]), a = ids.indexOf(id); if (a < 0) return [];
  return [...cosines(r)[0][a]].map((v, b) => [v, ids[b]]).filter(x => x[1] !== id).sort((x, y) => y[0] - x[0]).slice(0, count);
}
const nearest = id => near(id).map(x => `${called(x[1])} (${num(x[0], 2)})`).join(", ") || "–";
function owned(k) {
  const who = people[run().people], counts = who.labels[k] || [], total = counts.reduce((a, b) => a + b, 0), names = groups(who).map(name => name.replace("label ", ""));
  return counts.map((n, g) => [n, names[g]]).filter(x => x[0] > 0).sort((a, b) => b[0] - a[0]).map(([n, name]) => `${name} (${num(100 * n / total, 0)}%)`).join(", ") || "not known";
}
function ring() {
  const id = hover ?? S.picked, row = order.find(x => x.id === id), r = run(), who = people[r.people];
  // Nobody pointed at or picked: the card is about the client that is served worst.
  const shown = row || order.filter(x => x.acc === x.acc && !x.away).reduce((a, b) => a && a.acc <= b.acc ? a : b, null);
  set("active", Object.fromEntries(Object.keys(model("active").data instanceof Map ? Object.fromEntries(model("active").data) : model("active").data).map(c => [c, row ? [row[c]] : []])));
  const marked = each("events", (p, k) => [p.x[k], p.y[k]]).filter(e => row && e[1] === id);
  set("marked", {x: marked.map(e => e[0]), y: marked.map(e => e[1])});
  $("pointed").hidden = !row; $("pointed").textContent = row ? `Client ${called(id)}: ${row.since === null ? "not tested yet" : num(row.acc) + "%"}, capacity ${num(row.r)}%` : "";
  const a = r.network && row ? r.network.clients.map(k => who.id[k]).indexOf(id) : -1, n = r.network?.clients.length || 0;
  set("cross", a >= 0 ? {x: [n / 2, a + .5], y: [a + .5, n / 2], w: [n, 1], h: [1, n]} : {x: [], y: [], w: [], h: []});
  for (const tr of $("clients").tBodies[0].rows) { tr.classList.toggle("active", +tr.dataset.id === id); tr.classList.toggle("picked", +tr.dataset.id === S.picked); }
  $("card-id").textContent = shown ? shown.id + (row || order.length < 2 ? "" : ", the one served worst") : "";
  const facts = shown ? {...(shown.name ? {name: shown.name} : {}), capacity: num(shown.r) + "% of the full model", width: `${shown.width} of each layer's channels`, "rows to train": shown.n, labels: owned(shown.k), accuracy: shown.since === null ? "not tested yet" : num(shown.acc) + "% " + S.rule + (shown.away ? `, in round ${shown.since}` : ""), "chosen α": num(shown.alpha, 2), "trained in": `${shown.trained} of ${amount(r.rounds, "round")}`, "bytes received": size(shown.bytes), "refused or absent": amount(shown.events, "time"), ...(r.network ? {nearest: nearest(shown.id)} : {})} : {};
  $("card").replaceChildren(...Object.entries(facts).flatMap(([k, v]) => [node("dt", k), node("dd", v)]));
  const lines = !shown ? [] : METHODS.filter(m => !S.off.includes(m)).flatMap(m => { const q = run(m), k = people[q.people].id.indexOf(shown.id), st = style(m);
    return k < 0 || !q.evaluations.length ? [] : [{xs: q.evaluations.map(e => e.round), ys: q.evaluations.map(e => nan(e[S.rule]?.[k]) / 100), name: short(m), ...st}]; });
  $("own-key").replaceChildren(...lineKey(lines)); model("own").visible = lines.length > 0;
  set("own-lines", lines.length ? table(lines) : {xs: [], ys: [], name: [], colour: [], dash: []});
  if ($("table-own").open) tables();
}
const plain = name => { const d = model(name).data; return d instanceof Map ? Object.fromEntries(d) : d; };
function paint() {
  document.documentElement.dataset.theme = theme();
  const ink = theme() === "dark" ? "#c9d1db" : "#3a4450", grid = theme() === "dark" ? "#343d49" : "#e3e7ec";
  for (const name of ["curves","dots","labels","alpha","map","heat","tau","timeline","own"]) { const f = model(name);
    for (const a of [...f.below, ...f.left, ...f.right]) a.setv(a.constructor.__name__ === "ColorBar" || a.type === "ColorBar" ? {major_label_text_color: ink, background_fill_alpha: 0} : {axis_label_text_color: ink, major_label_text_color: ink, axis_line_color: ink, major_tick_line_color: ink});
    for (const g of f.center) if (g.type?.includes("Grid")) g.grid_line_color = grid; }
  const bars = model("labels").renderers.filter(g => /^c\d$/.test(g.name)); bars.forEach((b, g) => { for (const gl of [b.glyph, b.selection_glyph, b.nonselection_glyph]) if (gl?.setv) gl.setv({fill_color: {value: LABELS[theme()][g]}, hatch_color: {value: theme() === "dark" ? "#1b2129" : "#ffffff"}}); });
}
// On paper everything is light, charts are as wide as the paper, and the foot is open.
function paper(on) {
  if (on === on_paper) return;
  on_paper = on; document.documentElement.classList.toggle("paper", on); document.querySelectorAll(".still").forEach(s => s.remove());
  for (const d of document.querySelectorAll("footer details")) { if (on) d.dataset.open = d.open; d.open = on || d.dataset.open === "true"; }
  paint(); all();
}
// A browser does not print what was painted just before, but it prints images.
function stills() {
  if (document.querySelector(".still")) return;
  const views = doc.roots().map(chart => Bokeh.index.get_one(chart)), ratio = Object.getOwnPropertyDescriptor(window, "devicePixelRatio");
  for (const view of views) { view.invalidate_layout(); view.invalidate_painters(); view.paint(); }
  if (!on_paper) return;
  Object.defineProperty(window, "devicePixelRatio", {value: 2, configurable: true});
  for (const view of views) { const box = view.el.parentElement; if (view.bbox.width) box.append(node("img", "", {className: "still", alt: "", decoding: "sync", src: view.export("png").canvas.toDataURL()})); }
  Object.defineProperty(window, "devicePixelRatio", ratio);
}
function all() { gather(); list(); charts(); chips(); keep(); }
function keep() { try { sessionStorage.setItem(STATE, JSON.stringify({...S, at: Number.isFinite(S.at) ? S.at : undefined})); } catch {} }
function chips() {
  $("chips").replaceChildren(...METHODS.map(m => { const b = node("button", "", {type: "button", className: "chip", title: short(m, 300)}); b.append(stroke(style(m)), short(m)); b.setAttribute("aria-pressed", !S.off.includes(m));
    b.onclick = () => { S.off = S.off.includes(m) ? S.off.filter(x => x !== m) : [...S.off, m]; keep(); learning(); ring(); b.setAttribute("aria-pressed", !S.off.includes(m)); }; return b; }));
}
function fillSelect(el, options, value) { el.replaceChildren(...options.map(([v, t]) => node("option", short(String(t), 60), {value: v}))); el.value = value; }
function filters() {
  const who = people[run().people], own = [...new Set(who.dominant.filter(x => x !== null))].sort((a, b) => a - b);
  const options = [["all", "all"], ["worst", "worst tenth"], ...(new Set(who.r).size > 1 ? ["least", "second", "middle", "fourth", "most"].map((t, k) => [`fifth:${k}`, `${t} fifth by capacity`]) : []), ...own.map(c => [`class:${c}`, `main label ${c}`]), ["events", "refused or absent"]];
  if (!options.some(o => o[0] === S.filter)) S.filter = "all";
  fillSelect($("filter"), options, S.filter);
}
function pick(id) { S.picked = S.picked === id ? null : id; keep(); const k = order.findIndex(x => x.id === S.picked); model("clients").selected.indices = k >= 0 ? [k] : []; ring(); }
function point(id) { if (hover !== id) { hover = id; ring(); } }
window.pa3dfl = {S, source: name => plain(name), chart: model,
  hovered(indices) { point(indices.length ? order[indices[0]]?.id ?? null : null); },
  on_event(indices) { const id = plain("events").y[indices[0]]; point(order.some(o => o.id === id) ? id : null); },
  on_matrix(what, x, y) { const r = run(), ids = r.network.clients.map(k => people[r.people].id[k]), id = ids[Math.floor(y)]; if (id === undefined || x < 0 || x > ids.length) return point(null); if (what === "picked") pick(id); else point(id); },
  on_timeline(y) { const id = Math.round(y); if (order.some(o => o.id === id)) pick(id); }};
function wire() {
  fillSelect($("method"), METHODS.map(m => [m, m]), S.method); fillSelect($("seed"), SEEDS.map(s => [s, s]), S.seed); $("seed-label").hidden = SEEDS.length < 2;
  fillSelect($("rule"), rules.map(s => [s, RULES[s] || s]), S.rule); fillSelect($("against"), Object.keys(AXES).filter(a => runs.some(r => r.curve[a].some(v => v !== null))).map(a => [a, AXES[a][0]]), S.against); filters();
  for (const [id, key] of [["method", "method"], ["seed", "seed"], ["rule", "rule"], ["filter", "filter"]]) $(id).onchange = e => { S[key] = e.target.value; if (key !== "filter") filters(); all(); };
  $("against").onchange = e => { S.against = e.target.value; keep(); learning(); };
  $("layer").onchange = e => { S.layer = +e.target.value; keep(); matrix(run()); };
  $("evaluation").oninput = e => { S.at = e.target.value === e.target.max ? Infinity : +e.target.value; all(); };
  $("clear").onclick = () => { S.picked = null; hover = null; model("clients").selected.indices = []; keep(); ring(); };
  $("theme").onclick = () => { S.theme = theme() === "dark" ? "light" : "dark"; paint(); all(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { paint(); all(); });
  // Between two listeners Bokeh takes up new data.
  for (const still of [() => paper(true), stills]) addEventListener("beforeprint", still);
  for (const live of [() => paper(false), stills]) addEventListener("afterprint", live);
  const body = $("clients").tBodies[0], id = e => { const tr = e.target.closest("tr"); return tr ? +tr.dataset.id : null; };
  body.onmouseover = e => point(id(e)); body.onmouseleave = () => point(null); body.onclick = e => pick(id(e)); body.onfocus = null;
  body.addEventListener("focusin", e => point(id(e)));
  body.onkeydown = e => { if (e.key === "Enter" || e.key === " ") { pick(id(e)); e.preventDefault(); } const to = {ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling"}[e.key]; if (to) { e.target.closest("tr")[to]?.focus(); e.preventDefault(); } };
  $("copy").onclick = async () => { const text = csv(); try { await navigator.clipboard.writeText(text); } catch { const t = node("textarea", text); document.body.append(t); t.select(); document.execCommand("copy"); t.remove(); } $("copy").textContent = "copied"; window.pa3dfl.copied = text; setTimeout(() => { $("copy").textContent = "copy as CSV"; }, 2000); };
  model("clients").selected.change.connect(() => { const chosen = model("clients").selected.indices; if (chosen.length === 1 && order[chosen[0]].id !== S.picked) { S.picked = order[chosen[0]].id; keep(); ring(); } });
  addEventListener("pagehide", () => { S.y = scrollY; keep(); }); describe();
  const age = () => { const s = Date.now() / 1000 - PAGE.written; $("age").textContent = `Written ${s < 90 ? Math.max(0, Math.round(s)) + " s" : s < 5400 ? Math.round(s / 60) + " min" : s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " days"} ago, ${new Date(PAGE.written * 1000).toLocaleString("en-GB")}.` + (!PAGE.running ? "" : s < 3600 ? " The run goes on: this page reloads itself." : " The run was going on then. It may have been stopped since."); };
  age(); setInterval(age, 10000); if (PAGE.running) setTimeout(() => location.reload(), PAGE.reload * 1000);
}
(function begin() { doc = Bokeh.documents[0]; if (!doc) return setTimeout(begin, 5); wire(); paint(); all(); scrollTo(0, S.y); window.pa3dfl.ready = performance.now(); })();
