// Shows the view that the server sends. It changes only what differs, so that focus and reading positions stay.
import { drawChart, drawRibbon, duration, ribbonShape, ROUTES } from "/draw.js";

const $ = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const few = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat([], { month: "short", day: "numeric" });
const LABELS = { primary: "primary", backlog: "backlog", spool: "spool", failed: "failed" };
const REASONS = {
  send_failed: "a send failed", deadline: "it failed for too long", ping_succeeded: "a ping was delivered",
  send_succeeded: "a send succeeded", fail_over: "failed over by hand", mark_healthy: "marked healthy by hand",
};
const OLD_COUNT_SECONDS = 30;
const TOKEN = "pairbus-token";

const text = (node, value) => { if (node.textContent !== value) node.textContent = value; };
const plural = (count, one, many) => `${number.format(count)} ${count === 1 ? one : many}`;
const money = (amount, currency) => `${amount.toFixed(amount && amount < 0.1 ? 4 : 2)} ${currency}`;

function when(seconds) {
  const date = new Date(seconds * 1000);
  const sameDay = date.toDateString() === new Date().toDateString();
  return sameDay ? clock.format(date) : `${day.format(date)}, ${clock.format(date)}`;
}

function chip(node, state) {
  text(node, state);
  if (node.dataset.state !== state) node.dataset.state = state;
}

// Update rows by key: existing rows change in place, missing ones are created, the rest is removed.
function rows(body, items, key, make, change) {
  const present = new Map([...body.children].map((row) => [row.dataset.key, row]));
  items.forEach((item, position) => {
    const name = key(item);
    let row = present.get(name);
    present.delete(name);
    if (!row) { row = make(item); row.dataset.key = name; }
    change(row, item);
    if (body.children[position] !== row) body.insertBefore(row, body.children[position] || null);
  });
  for (const row of present.values()) row.remove();
}

// Create a table row: the first cell is its heading, the others carry the name of their column for narrow screens.
function tableRow(body) {
  const row = document.createElement("tr");
  row.setAttribute("role", "row");
  const heads = [...body.closest("table").querySelectorAll("thead th")];
  heads.forEach((head, position) => {
    const cell = document.createElement(position ? "td" : "th");
    cell.setAttribute("role", position ? "cell" : "rowheader");
    if (!position) cell.scope = "row";
    else cell.dataset.label = head.textContent;
    cell.className = [...head.classList].filter((name) => name !== "ribbon-column").join(" ");
    row.append(cell);
  });
  return row;
}

function cell(row, position, value) {
  const element = row.children[position];
  text(element, value);
  element.classList.toggle("empty", value === "");
}

// Two lines in a cell: the value, and its details.
function twoLines(row, position, first, second) {
  const place = row.children[position];
  const lines = child(place, "span", "");
  if (!lines.firstElementChild) {
    const upper = document.createElement("span"), lower = document.createElement("span");
    lower.className = "second";
    lines.append(upper, lower);
  }
  text(lines.firstElementChild, first);
  text(lines.lastElementChild, second);
  place.classList.toggle("empty", first === "" && second === "");
}

function child(parent, name, classes) {
  let element = parent.firstElementChild;
  if (!element) { element = document.createElement(name); element.className = classes; parent.append(element); }
  return element;
}

function button(parent, label, name, act) {
  const element = child(parent, "button", "quiet");
  element.type = "button";
  text(element, label);
  if (element.getAttribute("aria-label") !== name) element.setAttribute("aria-label", name);
  element.onclick = act;
}

// --- the parts ----------------------------------------------------------------------------------------------

function headline(view) {
  const entities = view.pairs.flatMap((pair) => pair.entities.map((entity) => ({ ...entity, pair: pair.name })));
  const bad = entities.filter((entity) => entity.state === "failed over");
  const suspect = entities.filter((entity) => entity.state === "suspect");
  const alive = view.processes.filter((process) => process.condition === "alive").length;
  let title = "No process publishes here yet";
  if (bad.length === 1) title = `${bad[0].name} is failed over: its messages go to the backlog`;
  else if (bad.length) title = `${bad.length} of ${entities.length} entities are failed over: their messages go to the backlog`;
  else if (suspect.length) title = `${suspect.map((entity) => entity.name).slice(0, 3).join(", ")} ${suspect.length === 1 ? "is" : "are"} suspect`;
  else if (entities.length) title = entities.length === 1 ? `${entities[0].name} takes sends` : `All ${entities.length} entities take sends`;
  else if (alive) title = "Nothing has been sent yet";
  text($("headline"), title);
  const waiting = view.pairs.reduce((sum, pair) => sum + pair.depth.messages, 0);
  const words = [plural(alive, "process publishes", "processes publish")];
  if (view.pairs.every((pair) => pair.depth.messages !== null)) words.push(plural(waiting, "message waits", "messages wait"));
  else words.push(waiting ? `at least ${plural(waiting, "message waits", "messages wait")}` : "the number of waiting messages is unknown");
  if (view.costs.outage) words.push(`the outage costs ${outageMoney(view.costs)} per hour`);
  if (view.more_sources) words.push(`${plural(view.more_sources, "client or syphon is", "clients and syphons are")} not shown, because one process has too many`);
  if (view.unread) words.push(`${plural(view.unread, "state", "states")} cannot be read`);
  text($("subline"), words.join(" · "));
  document.title = bad.length ? `${bad.length} failed over · pairbus` : "pairbus";
}

function outageMoney(costs) {
  const { amount, amount_beyond: beyond } = costs.outage;
  return amount === beyond ? money(amount, costs.currency) : `${money(amount, costs.currency)} (${money(beyond, costs.currency)} beyond the included operations)`;
}

function showPair(section, pair, view) {
  const find = (name) => section.querySelector(name);
  text(find(".pair-primary"), pair.name);
  text(find(".pair-secondary"), pair.secondary ? `with ${pair.secondary}` : "");
  chip(find(".pair-state"), pair.faulted ? "faulted" : pair.state);
  const accepted = pair.speeds.primary + pair.speeds.backlog + pair.speeds.spool;
  text(find(".speed-total"), few.format(accepted));
  const bar = find(".route-bar"), legend = find(".route-legend");
  rows(bar, ROUTES, ([route]) => route, ([route]) => {
    const part = document.createElement("span");
    part.className = `of-${route}`;
    return part;
  }, (part, [route]) => { part.style.flexGrow = String(pair.speeds[route]); part.hidden = !pair.speeds[route]; });
  bar.setAttribute("aria-label", `Sends per second: ${ROUTES.map(([route, name]) => `${few.format(pair.speeds[route])} ${name}`).join(", ")}.`);
  rows(legend, ROUTES, ([route]) => route, ([route]) => {
    const line = document.createElement("li"), swatch = document.createElement("span"), words = document.createElement("span");
    swatch.className = `swatch of-${route}`;
    line.append(swatch, words);
    return line;
  }, (line, [route]) => {
    text(line.lastElementChild, `${few.format(pair.speeds[route])} ${LABELS[route]}`);
    line.hidden = route === "spool" && pair.spool === null && !pair.speeds.spool;
  });

  text(find(".depth-value"), pair.depth.messages === null ? "unknown" : number.format(pair.depth.messages));
  text(find(".depth-detail"), depthDetail(pair, view.at));
  const today = pair.today;
  text(find(".accepted-value"), number.format(today.primary + today.backlog + today.spool));
  text(find(".accepted-detail"), `${number.format(today.primary)} primary · ${number.format(today.backlog)} backlog${today.spool ? ` · ${number.format(today.spool)} spool` : ""} · ${number.format(today.home)} carried home`);
  text(find(".rotation-value"), pair.rotation.of ? `${pair.rotation.in} of ${pair.rotation.of}` : "–");
  text(find(".spool-detail"), `in rotation · ${pair.spool === null ? "no spool" : `${plural(pair.spool, "message", "messages")} in the spool`}`);
  drawChart(find(".chart"), find(".chart-scale"), pair.history);

  const table = find("table.entities"), body = find(".entity-rows");
  text(table.querySelector("caption"), `Entities of ${pair.name}, as ${plural(pair.clients, "paired client sees", "paired clients see")} them${pair.more_entities ? `; ${number.format(pair.more_entities)} more are healthy` : ""}`);
  table.parentElement.setAttribute("aria-label", `Entities of ${pair.name}`);
  table.parentElement.hidden = !pair.entities.length;
  rows(body, pair.entities, (entity) => entity.name, () => tableRow(body), (row, entity) => showEntity(row, entity, pair, view));
}

function depthDetail(pair, now) {
  const { depth } = pair, words = [];
  if (depth.messages === null) words.push("syphons here also carry messages of other machines; use --secondary to count");
  else if (!depth.messages) words.push("empty");
  else if (depth.drain_seconds !== null) words.push(`home in about ${duration(depth.drain_seconds)}`);
  else words.push(`waits for ${depth.waits_for}`);
  if (depth.dead_letters) words.push(plural(depth.dead_letters, "dead letter", "dead letters"));
  const age = now - depth.counted_at;
  if (depth.counted_at !== null) words.push(`counted in the secondary${age > OLD_COUNT_SECONDS ? ` ${duration(age)} ago and updated from reports since` : ""}`);
  else if (depth.messages !== null) words.push("as reported by these processes");
  if (depth.trouble) words.push(depth.trouble);
  return words.join(" · ");
}

function showEntity(row, entity, pair, view) {
  const now = view.at, total = Object.values(entity.clients).reduce((a, b) => a + b, 0);
  cell(row, 0, entity.name);
  chip(child(row.children[1], "span", "chip"), entity.state);
  twoLines(row, 2, when(entity.since), `${duration(now - entity.since)}${total > 1 ? `, ${entity.clients[entity.state]} of ${total} clients` : ""}`);
  row.children[2].classList.add("time");
  let picture = row.children[3].firstElementChild;
  if (!picture) { picture = ribbonShape(); row.children[3].append(picture); }
  drawRibbon(picture, entity.ribbon, now, 3600);
  cell(row, 4, entity.cause);
  twoLines(row, 5, ...pingWords(entity, now));
  twoLines(row, 6, `${number.format(entity.today.primary)} primary`, entity.today.backlog ? `${number.format(entity.today.backlog)} backlog` : "");
  const over = entity.state === "failed over";
  const action = over ? "mark healthy" : "fail over";
  button(row.children[7], over ? "Mark healthy" : "Fail over", `${over ? "Mark healthy" : "Fail over"}: ${entity.name} of ${pair.name}`, () => requestChange(
    { action, primary: pair.key, entity: entity.name },
    over ? `Sends to ${entity.name} go to the primary again, in ${plural(total, "client", "clients")}.` : `Sends to ${entity.name} go to the backlog until pings succeed, in ${plural(total, "client", "clients")}.`,
  ));
}

function pingWords(entity, now) {
  const first = [], second = [];
  if (entity.ping) first.push(`${entity.ping.delivered ? "delivered" : "failed"} ${duration(now - entity.ping.at)} ago`);
  if (entity.state === "failed over" && entity.deadline !== null) second.push(`next in ${duration(entity.deadline - now)}`);
  if (entity.state === "suspect" && entity.deadline !== null) second.push(`failed over in ${duration(entity.deadline - now)}`);
  if (entity.today.pings) second.push(`${number.format(entity.today.pings)} today`);
  return [first.join(), second.join(", ")];
}

// The parts of the ledger that are missing from the figures.
function ledgerTroubles(costs) {
  const words = [];
  if (!costs.complete) words.push("The ledger is still being read, so today's figures are incomplete.");
  if (costs.refused_files) words.push(`${plural(costs.refused_files, "file", "files")} of the ledger cannot be read; records are missing.`);
  if (costs.unreadable_lines) words.push(`${plural(costs.unreadable_lines, "line", "lines")} of the ledger ${costs.unreadable_lines === 1 ? "is not a record and is" : "are not records and are"} left out.`);
  return words;
}

function showCosts(view) {
  const costs = view.costs;
  $("costs").hidden = !costs.namespaces.length && !ledgerTroubles(costs).length;
  text($("costs-total"), `${money(costs.amount, costs.currency)} · ${plural(costs.billed, "billed operation", "billed operations")}`);
  text($("costs-caption"), `Since midnight UTC, ${costs.counted_by === "ledger" ? "from the ledger" : "as counted by these processes"}; tariff ${costs.tariff}, ${costs.plan}`);
  const missing = ledgerTroubles(costs).join(" · ");
  $("costs-missing").hidden = !missing;
  text($("costs-missing"), missing);
  $("costs-outage").hidden = !costs.outage;
  if (costs.outage) text($("costs-outage"), `The outage adds about ${plural(costs.outage.operations, "operation", "operations")} per hour, ${number.format(costs.outage.pings)} of them pings: ${outageMoney(costs)} per hour.`);
  const body = $("costs-rows");
  rows(body, costs.namespaces, (namespace) => namespace.namespace, () => tableRow(body), (row, namespace) => {
    [namespace.namespace, number.format(namespace.operations), number.format(namespace.billed), number.format(namespace.pairing), money(namespace.operations_amount, costs.currency), money(namespace.standing_amount, costs.currency)]
      .forEach((value, position) => cell(row, position, value));
  });
}

function showSyphons(view) {
  $("syphons").hidden = !view.syphons.length;
  $("syphons-none").hidden = view.syphons.length > 0;
  const body = $("syphon-rows");
  rows(body, view.syphons, (syphon) => `${syphon.process}/${syphon.key}`, () => tableRow(body), (row, syphon) => {
    cell(row, 0, `${syphon.program} (${syphon.pid})`);
    cell(row, 1, syphon.primary);
    chip(child(row.children[2], "span", "chip"), syphon.state);
    cell(row, 3, `${syphon.connected} of ${syphon.pumps}`);
    [syphon.in_hand, syphon.held, syphon.restored, syphon.dead_lettered].forEach((value, i) => cell(row, 4 + i, number.format(value)));
    const paused = syphon.state === "paused";
    button(row.children[8], paused ? "Resume" : "Pause", `${paused ? "Resume" : "Pause"} the syphon of process ${syphon.pid}`, () => requestChange(
      { action: paused ? "resume syphon" : "pause syphon", process: syphon.process, key: syphon.key },
      paused ? "The syphon carries the backlog home again." : "The syphon finishes the messages in flight and receives no more.",
    ));
  });
}

function showTransitions(view) {
  $("transitions").hidden = !view.transitions.length;
  $("transitions-none").hidden = view.transitions.length > 0;
  const body = $("transition-rows");
  rows(body, view.transitions, (transition) => `${transition.at}/${transition.primary}/${transition.entity}/${transition.pid}`, () => tableRow(body), (row, transition) => {
    cell(row, 0, when(transition.at));
    cell(row, 1, `${transition.entity} of ${transition.primary}`);
    const change = row.children[2];
    if (!change.firstElementChild) {
      const before = document.createElement("span"), after = document.createElement("span"), between = document.createElement("span");
      before.className = "muted"; after.className = "chip";
      before.textContent = transition.before; between.textContent = " → "; chip(after, transition.after);
      change.append(wrap(before, between, after));
    }
    const reason = REASONS[transition.reason] || transition.reason.replaceAll("_", " ");
    cell(row, 3, transition.cause && !["ping", "fail_over", "mark_healthy"].includes(transition.cause) ? `${reason}: ${transition.cause}` : reason);
    cell(row, 4, transition.clients > 1 ? `${transition.clients} clients` : `${transition.program} (${transition.pid})`);
  });
}

function wrap(...nodes) {
  const made = document.createElement("span");
  made.append(...nodes);
  return made;
}

function showProcesses(view) {
  $("processes").hidden = !view.processes.length;
  $("processes-none").hidden = view.processes.length > 0;
  const body = $("process-rows");
  rows(body, view.processes, (process) => process.name, () => tableRow(body), (row, process) => {
    cell(row, 0, `${process.program} (${process.pid}) on ${process.host}`);
    chip(child(row.children[1], "span", "chip"), process.condition);
    cell(row, 2, number.format(process.clients));
    cell(row, 3, number.format(process.syphons));
    cell(row, 4, when(process.started));
    cell(row, 5, process.condition === "alive" ? "now" : `${duration(view.at - process.heard)} ago`);
  });
}

// --- transitions, announced once for screen readers -------------------------------------------------------

let known = null;
function announce(view) {
  const now = new Map(view.pairs.flatMap((pair) => pair.entities.map((entity) => [`${entity.name} of ${pair.name}`, entity.state])));
  if (known) {
    const changed = [...now].filter(([name, state]) => known.has(name) && known.get(name) !== state);
    if (changed.length) text($("news"), changed.map(([name, state]) => `${name} is ${state}`).join("; "));
  }
  known = now;
}

function show(view) {
  if (!view.pairs) return;
  headline(view);
  rows($("pairs"), view.pairs, (pair) => pair.key, () => $("pair-template").content.firstElementChild.cloneNode(true), (section, pair) => showPair(section, pair, view));
  showCosts(view);
  showSyphons(view);
  showTransitions(view);
  showProcesses(view);
  announce(view);
  allowControl(view.control);
}

// --- control -----------------------------------------------------------------------------------------------

function allowControl(allowed) {
  const unlocked = allowed && sessionStorage.getItem(TOKEN) !== null;
  document.body.classList.toggle("unlocked", unlocked);
  $("unlock").hidden = !allowed;
  text($("unlock"), unlocked ? "Lock control" : "Unlock control");
}

// Store the token if the server accepts it; otherwise return the reason.
async function unlock(token) {
  try {
    const response = await fetch("/api/unlock", { method: "POST", headers: { "X-Pairbus-Token": encodeURIComponent(token) } });
    if (!response.ok) return (await response.json()).error;
  } catch {
    return "The server did not answer.";
  }
  sessionStorage.setItem(TOKEN, token);
  $("outcome").hidden = true;
  allowControl(true);
  return null;
}

async function tokenFromLink() {
  const match = /^#token=([\w-]+)$/.exec(location.hash);
  if (!match) return;
  history.replaceState(null, "", "/");
  const refusal = await unlock(match[1]);
  if (refusal !== null) outcome(false, refusal);
}

function outcome(good, words) {
  const place = $("outcome");
  place.hidden = false;
  place.dataset.good = good ? "yes" : "no";
  text(place, words);
}

async function requestChange(change, consequence) {
  text($("sure-title"), `${change.action[0].toUpperCase()}${change.action.slice(1)}${change.entity ? ` ${change.entity}` : ""}?`);
  text($("sure-text"), consequence);
  if (await choiceIn($("sure-dialog")) !== "yes") return;
  outcome(true, "Request sent; waiting for the answer.");
  try {
    const response = await fetch("/api/control", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Pairbus-Token": sessionStorage.getItem(TOKEN) || "" },
      body: JSON.stringify(change),
    });
    const result = await response.json();
    if (response.status === 403) {
      sessionStorage.removeItem(TOKEN);
      allowControl(true);
    }
    if (!response.ok) outcome(false, result.error);
    else outcome(result.done === result.answers.length, result.answers.map((answer) => `${answer.program} (${answer.pid}): ${answer.text}`).join(" "));
  } catch {
    outcome(false, "The server did not answer. Check the states before you try again.");
  }
}

function choiceIn(dialog) {
  return new Promise((resolve) => {
    dialog.returnValue = "no";
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
    dialog.showModal();
  });
}

$("unlock").addEventListener("click", () => {
  if (sessionStorage.getItem(TOKEN) !== null) { sessionStorage.removeItem(TOKEN); allowControl(true); return; }
  $("token").value = "";
  text($("token-wrong"), "");
  $("token-dialog").showModal();
});
$("token-cancel").addEventListener("click", () => $("token-dialog").close());
$("token-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  text($("token-wrong"), "");
  const refusal = await unlock($("token").value.trim());
  if (refusal === null) $("token-dialog").close();
  else { text($("token-wrong"), refusal); $("token").select(); }
});

// --- the stream, and polling where there is none ---------------------------------------------------

let heard = 0, polling = false;

function connection(state, words) {
  const place = $("connection");
  place.dataset.state = state;
  text(place, words);
}

function receive(document_) {
  heard = Date.now();
  connection("live", "live");
  show(JSON.parse(document_));
}

function follow() {
  const source = new EventSource("/api/events");
  source.onmessage = (event) => receive(event.data);
  source.onerror = () => {
    connection("lost", "connection lost, reconnecting");
    if (source.readyState === EventSource.CLOSED) { source.close(); polling = true; setTimeout(follow, 10000); }
  };
  source.onopen = () => { polling = false; };
}

setInterval(async () => {
  if (heard && Date.now() - heard > 5000) connection("lost", `no update for ${duration((Date.now() - heard) / 1000)}`);
  if (!polling) return;
  try {
    const response = await fetch("/api/state");
    if (response.ok) receive(await response.text());
  } catch { /* shown above */ }
}, 2000);

// Narrow screens show rows as blocks, which hides the table from screen readers, so the roles are set here.
for (const root of [document, $("pair-template").content]) {
  for (const [name, role] of [["table", "table"], ["thead", "rowgroup"], ["tbody", "rowgroup"], ["thead tr", "row"], ["thead th", "columnheader"]]) {
    for (const node of root.querySelectorAll(name)) node.setAttribute("role", role);
  }
}
tokenFromLink();
window.addEventListener("hashchange", () => { tokenFromLink(); });
follow();
