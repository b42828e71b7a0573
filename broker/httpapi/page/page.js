"use strict";

// The live page: browse streams by prefix, watch one, see rates. It uses nothing but the API in docs/http.md. What streams
// hold is text from strangers: it only ever becomes text here (textContent), never markup.

const $ = (id) => document.getElementById(id);
const pageSize = 100; // streams listed at a time
const keptRecords = 500; // rows of the watched stream
const firstRecords = 50; // records shown of what was there before
const statsEvery = 1000; // ms
const historySize = 120; // points of the curve

const address = (name) => "/v1/streams/" + name.split("/").map(encodeURIComponent).join("/");

async function ask(url, options) {
  const response = await fetch(url, options);
  if (!response.ok) {
    const problem = await response.json().catch(() => ({}));
    throw new Error(problem.detail || problem.title || `${response.status} ${response.statusText}`);
  }
  return response.json();
}

function complain(err) {
  $("problem").textContent = err ? err.message : "";
  $("problem").hidden = !err;
}

// --- the list of streams

let listing = 0; // number of the newest listing: answers to older ones are dropped
let next = ""; // where the next page begins

async function list(more) {
  const mine = ++listing;
  const query = new URLSearchParams({ prefix: $("prefix").value, limit: pageSize });
  if (more) query.set("after", next);
  try {
    const page = await ask("/v1/streams?" + query);
    if (mine !== listing) return;
    complain(null);
    if (!more) $("streams").replaceChildren();
    $("streams").append(...page.streams.map(item));
    next = page.next || "";
    $("more").hidden = !next;
    $("none").hidden = $("streams").children.length > 0;
    mark();
  } catch (err) {
    if (mine === listing) complain(err);
  }
}

function item(stream) {
  const li = document.createElement("li");
  const a = document.createElement("a");
  a.href = "#" + encodeURIComponent(stream.name);
  a.dataset.name = stream.name;
  a.append(cell("span", stream.name), cell("span", (stream.end_offset - stream.start_offset).toLocaleString()));
  a.title = "records: " + a.lastChild.textContent + (stream.closed ? ", closed" : "");
  li.append(a);
  return li;
}

function cell(tag, text) {
  const element = document.createElement(tag);
  element.textContent = text;
  return element;
}

function mark() {
  for (const a of $("streams").querySelectorAll("a")) {
    if (a.dataset.name === watched) a.setAttribute("aria-current", "true");
    else a.removeAttribute("aria-current");
  }
}

let typing;
$("prefix").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => list(false), 200);
});
$("find").addEventListener("submit", (e) => {
  e.preventDefault();
  list(false);
});
$("more").addEventListener("click", () => list(true));

// --- the watched stream

let watched = "";
let events = null; // EventSource
let pending = []; // rows to be shown with the next frame
let paused = false;

function watch() {
  const name = decodeURIComponent(location.hash.slice(1));
  if (name === watched) return;
  if (events) events.close();
  watched = name;
  events = null;
  pending = [];
  pause(false);
  $("stream").hidden = !name;
  $("records").replaceChildren();
  mark();
  if (!name) return;
  $("name").textContent = name;
  document.title = name + " – Brooklet";
  describe();
  follow(name);
}

async function describe() {
  const name = watched;
  try {
    const d = await ask(address(name) + "?describe=true");
    if (name !== watched) return;
    const kept = d.retention_ms === null ? "for ever" : "for " + duration(d.retention_ms);
    const about = [`offsets ${d.start_offset} to ${d.end_offset}`, size(d.bytes), "made " + when(d.created), "records kept " + kept];
    if (d.ttl_ms !== null) about.push("goes when nothing was written for " + duration(d.ttl_ms));
    if (d.content_type) about.push(d.content_type);
    $("about").textContent = about.join(" · ");
    $("write").hidden = d.closed;
  } catch (err) {
    if (name === watched) $("about").textContent = err.message;
  }
}

function follow(name) {
  const source = (events = new EventSource(address(name) + `?from=-${firstRecords}&clamp=true&live=sse`));
  const mine = (fn) => (e) => {
    if (source === events) fn(e);
  };
  state("connecting");
  source.onopen = mine(() => state("live"));
  source.onmessage = mine((e) => show(row(JSON.parse(e.data))));
  source.onerror = mine(() => state(source.readyState === EventSource.CLOSED ? "cannot be followed" : "connecting again"));
  for (const kind of ["gap", "deleted", "closed", "error"]) {
    source.addEventListener(kind, mine((e) => {
      if (kind === "error" && !e.data) return; // of the connection: onerror has it
      show(notice(kind));
      if (kind === "closed" || kind === "deleted") {
        source.close();
        state(kind);
        describe();
      }
    }));
  }
}

function state(text) {
  $("state").textContent = text;
}

function row(record) {
  const tr = document.createElement("tr");
  tr.append(cell("td", record.offset), cell("td", when(record.timestamp)), bytes(record, "key"), bytes(record, "value"));
  const headers = (record.headers || []).map(([name, value]) => `${name}: ${value && typeof value === "object" ? value.base64 : value}`);
  if (headers.length) tr.title = headers.join("\n");
  return tr;
}

// bytes shows a key or value in whichever form it came.
function bytes(record, name) {
  if (name + "_json" in record) return cell("td", JSON.stringify(record[name + "_json"]));
  if (name + "_base64" in record) return cell("td", "base64 " + record[name + "_base64"]);
  const td = cell("td", record[name] === null ? "null" : record[name]);
  if (record[name] === null) td.className = "null";
  return td;
}

const noticeText = {
  gap: "records are missing here: they were trimmed before they were read, or cannot be decoded",
  deleted: "the stream was deleted",
  closed: "the stream is closed: this is its end",
  error: "the broker cannot read the stream for now",
};

function notice(kind) {
  const tr = document.createElement("tr");
  tr.className = "notice";
  tr.dataset.kind = kind;
  const td = cell("td", noticeText[kind]);
  td.colSpan = 4;
  tr.append(td);
  return tr;
}

// show puts a row on top, together with all others that come before the next frame.
function show(tr) {
  pending.push(tr);
  if (pending.length > keptRecords) pending.shift();
  if (pending.length === 1 && !paused) requestAnimationFrame(flush);
}

function flush() {
  if (paused) return;
  const table = $("records");
  table.prepend(...pending.reverse());
  pending = [];
  while (table.children.length > keptRecords) table.lastChild.remove();
}

function pause(on) {
  paused = on;
  $("pause").textContent = on ? "go on" : "pause";
  if (!on && pending.length) flush();
}

$("pause").addEventListener("click", () => pause(!paused));
$("write").addEventListener("submit", async (e) => {
  e.preventDefault();
  try {
    await ask(address(watched), { method: "POST", body: $("value").value, headers: { "Content-Type": "application/octet-stream" } });
    $("value").value = "";
    complain(null);
  } catch (err) {
    complain(err);
  }
});
addEventListener("hashchange", watch);

// --- rates

let last = null;
const history = [];

async function stats() {
  try {
    const now = await ask("/v1/stats");
    if (last && now.time > last.time && now.appended_bytes >= last.appended_bytes) {
      const per = (name) => ((now[name] - last[name]) * 1000) / (now.time - last.time);
      $("appends").textContent = Math.round(per("appends")).toLocaleString();
      $("appended").textContent = size(per("appended_bytes"));
      $("read").textContent = size(per("read_bytes"));
      curve(per("appends"));
    }
    last = now;
    $("followers").textContent = now.followers.toLocaleString();
    $("unflushed").textContent = now.unflushed_appends.toLocaleString();
  } catch {
    last = null;
    for (const id of ["appends", "appended", "read", "followers", "unflushed"]) $(id).textContent = "–";
  }
  setTimeout(stats, statsEvery);
}

function curve(value) {
  history.push(value);
  if (history.length > historySize) history.shift();
  const top = Math.max(1, ...history);
  const points = history.map((v, i) => `${historySize - history.length + i},${(31 - (30 * v) / top).toFixed(2)}`);
  $("history").firstElementChild.setAttribute("points", points.join(" "));
}

// --- words

function size(n) {
  if (n === undefined || n === null) return "";
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (n < 1000) return `${n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1000;
  }
  return n.toFixed(1) + " TB";
}

const when = (t) => (t === undefined || t === -1 ? "" : new Date(t).toLocaleString());

function duration(ms) {
  for (const [unit, length] of [["days", 864e5], ["hours", 36e5], ["minutes", 6e4]]) {
    if (ms >= 2 * length) return `${+(ms / length).toFixed(1)} ${unit}`;
  }
  return ms / 1000 + " s";
}

list(false);
watch();
stats();
