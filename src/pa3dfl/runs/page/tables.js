// The list of clients, and the table behind each chart.
const COLUMNS = [["client","id",0],["name","name"],["capacity %","r",1],["width","width"],["rows","n",0],["main label","main",0],["accuracy %","acc",1],["tested in round","since"],["loss","loss",3],["α","alpha",2],["rounds trained","trained",0],["MB received","bytes"],["refused or absent","events",0]];
const RULES = {adapted: "adapted: trained once more", received: "received: as it arrives", kept: "kept: from its last training"};
const MEANS = {width: "share of each layer's channels that the client holds", r: "share of the full model that the client can train", alpha: "1: the model that the client trained, 0: the one it received", main: "the label of most of its rows"};
const cell = (row, [, key, digits]) => key === "bytes" ? (row.bytes === null ? "–" : num(row.bytes / 1e6, 3)) : digits === undefined ? row[key] ?? "–" : num(row[key], digits);
const columns = () => COLUMNS.filter(c => c[1] === "name" ? people[run().people].names : c[1] !== "since" || rows.some(x => x.away));
function list() {
  const [key, up] = S.sort, value = x => key === "width" ? eval_width(x.width) : x[key];
  const bad = v => v === null || v === undefined || v !== v, compare = (a, b) => typeof a === "string" ? a.localeCompare(b, "en", {numeric: true}) : a - b;
  const sorted = [...order].sort((x, y) => bad(value(x)) - bad(value(y)) || (bad(value(x)) ? 0 : up * compare(value(x), value(y))) || x.id - y.id);
  const head = node("tr"); columns().forEach(([title, k], place) => { const th = node("th", "", {scope: "col", className: k, title: MEANS[k] || ""}), b = node("button", title + (k === key ? (up > 0 ? " ▲" : " ▼") : "")); b.type = "button";
    th.setAttribute("aria-sort", k === key ? (up > 0 ? "ascending" : "descending") : "none"); b.onclick = () => { S.sort = [k, k === key ? -up : 1]; keep(); list(); $("clients").tHead.querySelectorAll("button")[place].focus(); }; th.append(b); head.append(th); });
  $("clients").tHead.replaceChildren(head);
  $("clients").tBodies[0].replaceChildren(...sorted.map(row => { const tr = node("tr", "", {tabIndex: 0}); tr.dataset.id = row.id; tr.append(...columns().map(col => node("td", cell(row, col), {className: col[1]}))); return tr; }));
  const r = run(); $("shown").textContent = `${order.length} of ${amount(rows.length, "client")}` + (r.everybody > rows.length ? ` (a sample of ${r.everybody.toLocaleString("en")})` : "");
}
const eval_width = w => { const [a, b = 1] = String(w).split("/"); return a / b; };
const csv = () => [columns().map(c => c[0]), ...[...$("clients").tBodies[0].rows].map(tr => [...tr.cells].map(td => td.textContent))].map(r => r.map(v => /[",\n]/.test(v) ? `"${v.replaceAll('"', '""')}"` : v).join(",")).join("\n") + "\n";
// What a screen reader gets of each chart: its heads, and its rows.
const TABLES = {
  curves: () => [["method", AXES[S.against][0], "accuracy %"], each("points", (p, k) => [p.name[k], p.shown[k], num(p.y[k])])],
  own: () => [["method", "round", "accuracy %"], points("own-lines", 1)],
  dots: () => [["client", "capacity %", "accuracy %", "main label"], order.map(x => [called(x.id), num(x.r), num(x.acc), x.main ?? "–"])],
  labels: () => { const names = groups(people[run().people]); return [["client", ...names.map(n => `${n} %`)], [...order].sort((x, y) => x.rank - y.rank).map(x => [called(x.id), ...names.map((_, g) => num(x["c" + g], 0))])]; },
  alpha: () => [["client", "capacity %", "chosen α"], order.map(x => [called(x.id), num(x.r), num(x.alpha, 2)])],
  map: () => [["client", "first direction", "second direction", "nearest clients (cosine)"], order.map(x => [called(x.id), num(x.ex, 2), num(x.ey, 2), nearest(x.id)])],
  heat: () => [["client", "nearest clients (cosine)"], run().network.clients.map(k => people[run().people].id[k]).map(id => [called(id), nearest(id)])],
  tau: () => [["layer", "round", "τ"], points("taus", 3)],
  timeline: () => [["round", "client", "what", "why"], each("events", (p, k) => [p.x[k], p.who[k], p.kind[k], p.reason[k]])]};
const each = (name, row) => { const p = plain(name); return Array.from(p[Object.keys(p)[0]], (_, k) => row(p, k)); };
const points = (name, digits) => each(name, (p, k) => Array.from(p.xs[k], (x, i) => [p.name[k], x, num(p.ys[k][i], digits)])).flat();
function tables() {
  for (const d of document.querySelectorAll("details[data-table]")) {
    d.querySelector(".tbl")?.remove(); if (!d.open) continue;
    const [head, body] = TABLES[d.dataset.table](), t = node("table"), top = node("tr"), box = node("div", "", {className: "tbl", tabIndex: 0});
    top.append(...head.map(h => node("th", h, {scope: "col"}))); t.append(top, ...body.map(b => { const q = node("tr"); q.append(...b.map(v => node("td", v))); return q; }));
    t.setAttribute("aria-label", d.parentElement.querySelector("h2").textContent); box.append(t); d.append(box);
  }
}
function describe() {
  for (const f of doc.roots()) { const box = document.querySelector(`[data-root-id="${f.id}"]`), section = box.closest("section"), d = node("details", "", {id: `table-${f.name}`, open: S.open.includes(f.name), ontoggle: () => { S.open = S.open.filter(x => x !== f.name).concat(d.open ? f.name : []); keep(); tables(); }});
    if (!TABLES[f.name]) throw new Error(`the chart ${f.name} has no table`);
    d.dataset.table = f.name; d.append(node("summary", "as a table")); box.after(d);
    box.setAttribute("role", "img"); box.setAttribute("aria-label", `${section.querySelector("h2").textContent}: ${section.querySelector(".how").textContent}`); box.setAttribute("aria-details", d.id); }
}
