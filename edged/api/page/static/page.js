// The page of edged: shows what the daemon sends, asks for pictures only of cameras on the screen, and sends commands.
"use strict";

const $ = (id) => document.getElementById(id);
const MOST_VIDEOS = 4;       // a browser opens at most six connections to a host, so further cameras are shown as stills
const STILLS_AT_ONCE = 2;
const STILL_PAUSE = 700;     // milliseconds between two stills of a camera
const HISTORY = 600;         // points of the chart, one a second

const box = { cameras: [], models: [], alarms: [], session: { name: "", roles: [] } };
const can = (role) => box.session.roles.includes(role) || box.session.roles.includes("operate");

function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "text") node.textContent = value;
    else if (name === "class") node.className = value;
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== false && value !== null) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== ""));
  return node;
}

function set(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

async function ask(path, body, signal) {
  const options = body === undefined ? {} : { method: "POST", body: body instanceof Blob ? body : JSON.stringify(body) };
  let response;
  try {
    response = await fetch(path, { ...options, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The daemon does not answer. Try again when it is back.");
  }
  if (!response.ok) {
    let message = `${response.status} ${response.statusText}`;
    try { message = (await response.json()).error || message; } catch { /* not JSON */ }
    throw Object.assign(new Error(message), { status: response.status });
  }
  return response;
}

const clock = (unix) => new Date(unix * 1000).toLocaleTimeString([], { hour12: false });
const counts = (byClass) => Object.entries(byClass).filter(([, count]) => count).map(([name, count]) => `${count} ${name}`).join(", ");
const sum = (numbers) => numbers.reduce((total, each) => total + each, 0);
const level = (state) => ({ streaming: "good", sending: "good", ready: "good", lost: "bad", failed: "bad", refused: "bad" }[state] || "busy");
const tag = (state) => make("span", { class: "tag", "data-level": level(state), text: state });

// -- the daemon's events ------------------------------------------------------------------------------------------------

let source = null;
let retry = 0;

function listen() {
  clearTimeout(retry);
  if (source) source.close();
  source = null;
  if (document.hidden || !can("read")) return;
  source = new EventSource("/events");
  for (const name of Object.keys(show)) source.addEventListener(name, (event) => show[name](JSON.parse(event.data)));
  source.onopen = () => { $("offline").hidden = true; pictures.restart(); };
  source.onerror = () => {
    $("offline").hidden = false;
    if (source && source.readyState === EventSource.CLOSED) retry = setTimeout(start, 3000);
  };
}

const show = {
  summary(part) {
    set($("summary"), part.text);
    $("summary").dataset.level = part.level;
    set($("version"), `edged ${part.version}, up ${part.up}`);
    document.title = (part.level === "bad" ? "! " : "") + "edged";
  },
  cameras(part) { box.cameras = part; drawCameras(); drawCamera(); },
  models(part) { box.models = part; drawModels(); },
  alarms(part) { box.alarms = part; drawAlarms(); },
  device(part) { set($("device"), part.line); chart.add(part.cpu, sum(box.cameras.map((camera) => camera.fps))); },
  log(part) {
    const log = $("log");
    log.replaceChildren(...part.reverse().map((line) => make("li", {}, make("time", { text: clock(line.unix_s) }), line.text)));
  },
};

// -- cameras ------------------------------------------------------------------------------------------------------------

const cards = new Map();

function places(camera) {
  const zones = Object.entries(camera.zones).map(([name, zone]) => `${name}: ${zone.occupied ? counts(zone.counts) || "occupied" : "free"}`);
  const lines = Object.entries(camera.lines).map(([name, line]) => `${name}: in ${counts(line.entered) || 0}, out ${counts(line.left) || 0}`);
  return [...zones, ...lines].join(" · ");
}

function rates(camera) {
  const age = camera.age_ms === null ? "" : ` · ${camera.age_ms} ms from capture to answer`;
  const skipped = camera.skipped ? ` · skipped: ${camera.skipped}` : "";
  return `${camera.fps} frames/s${age}${skipped}`;
}

function drawCameras() {
  const keys = new Set(box.cameras.map((camera) => `${camera.name} ${camera.model}`));
  for (const [key, card] of cards) if (!keys.has(key)) { pictures.forget(card); card.node.remove(); cards.delete(key); }
  $("no-cameras").hidden = box.cameras.length > 0;
  box.cameras.forEach((camera, index) => {
    const key = `${camera.name} ${camera.model}`;
    let card = cards.get(key);
    if (!card) {
      const shot = make("span", { class: "shot" }), state = make("span"), title = make("b"), facts = make("span", { class: "dim" }), zones = make("span");
      const node = make("button", { type: "button", class: "camera", onclick: () => openCamera(camera.name) },
        shot, make("span", { class: "text" }, make("span", {}, title, " ", state), facts, zones));
      card = { node, shot, state, title, facts, zones, camera };
      cards.set(key, card);
      pictures.observe(card);
    }
    card.camera = camera;
    set(card.title, camera.name);
    if (card.state.textContent !== camera.state) card.state.replaceChildren(tag(camera.state));
    set(card.facts, camera.state === "streaming" || camera.state === "sending" ? `${camera.model} · ${rates(camera)}` : camera.reason || camera.model);
    set(card.zones, places(camera));
    if ($("cameras").children[index] !== card.node) $("cameras").insertBefore(card.node, $("cameras").children[index] || null);
    pictures.update(card);
  });
  $("new-camera-model").replaceChildren(...box.models.map((model) => make("option", { value: model.name, text: model.name })));
}

// Pictures of the cards on the screen: videos if they are few, otherwise stills in turn.
const pictures = {
  visible: new Set(),
  running: 0,
  observer: null,
  observe(card) {
    this.observer ??= new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const found = [...cards.values()].find((each) => each.node === entry.target);
        if (!found) continue;
        if (entry.isIntersecting) this.visible.add(found); else this.visible.delete(found);
      }
      for (const each of cards.values()) this.update(each);
    });
    card.still = 0;
    this.observer.observe(card.node);
  },
  forget(card) {
    this.observer.unobserve(card.node);
    this.visible.delete(card);
    this.clear(card);
  },
  wanted() { return [...this.visible].filter((card) => card.camera.pictures && card.camera.state === "streaming"); },
  asVideo() { return this.wanted().length <= MOST_VIDEOS && !$("camera").open; },
  update(card) {
    const has = card.camera.pictures && card.camera.state === "streaming";
    const isOn = has && this.visible.has(card) && !document.hidden;
    const kind = !isOn ? "" : this.asVideo() ? "video" : "still";
    if (card.kind === kind) return;
    this.clear(card);
    card.kind = kind;
    if (kind === "video") {
      card.image = make("img", { alt: `Camera ${card.camera.name}, with what its model finds`, src: `/cameras/${encodeURIComponent(card.camera.name)}/video?fps=8&width=640` });
      card.shot.replaceChildren(card.image);
    } else if (kind === "still") {
      card.image = make("img", { alt: `Camera ${card.camera.name}, with what its model finds` });
      card.shot.replaceChildren(card.image);
      this.turn();
    } else {
      set(card.shot, has ? "" : card.camera.pictures ? "No picture" : card.camera.enabled ? "The client has the pictures" : "Off");
    }
  },
  clear(card) {
    if (card.image) {
      if (card.image.src.startsWith("blob:")) URL.revokeObjectURL(card.image.src);
      card.image.removeAttribute("src"); // ends the request
      card.image = null;
    }
    card.kind = undefined;
  },
  restart() { for (const card of cards.values()) { this.clear(card); this.update(card); } if ($("camera").open) openVideo(); },
  async turn() {
    if (!source || source.readyState !== EventSource.OPEN) return;
    const now = performance.now();
    const due = [...cards.values()].filter((card) => card.kind === "still" && !card.asked && now - card.still >= STILL_PAUSE).sort((a, b) => a.still - b.still);
    for (const card of due.slice(0, STILLS_AT_ONCE - this.running)) this.still(card);
  },
  async still(card) {
    card.asked = true;
    this.running += 1;
    try {
      const response = await ask(`/cameras/${encodeURIComponent(card.camera.name)}/still?fps=20&width=480`);
      const url = URL.createObjectURL(await response.blob());
      if (card.kind === "still" && card.image && response.status !== 204) {
        const before = card.image.src;
        card.image.src = url;
        if (before.startsWith("blob:")) URL.revokeObjectURL(before);
      } else URL.revokeObjectURL(url);
    } catch { /* the camera's state says why */ }
    card.asked = false;
    card.still = performance.now();
    this.running -= 1;
    this.turn();
  },
};
setInterval(() => pictures.turn(), 250);

// -- one camera ---------------------------------------------------------------------------------------------------------

let opened = "";
const current = () => box.cameras.find((camera) => camera.name === opened);

function openCamera(name) {
  opened = name;
  set($("camera-problem"), "");
  endPlace();
  $("camera").showModal();
  for (const card of cards.values()) pictures.update(card);
  drawCamera();
  openVideo();
}

function openVideo() {
  const camera = current();
  if (camera && camera.pictures && $("place").hidden) {
    $("camera-picture").alt = `Camera ${camera.name}, with what its model finds`;
    $("camera-picture").src = `/cameras/${encodeURIComponent(camera.name)}/video?fps=15&width=1280`;
  }
}

function drawCamera() {
  if (!$("camera").open) return;
  const camera = current();
  if (!camera) { $("camera").close(); return; }
  set($("camera-title"), `Camera ${camera.name}`);
  $("camera-state").replaceChildren(tag(camera.state), ` ${camera.reason || rates(camera)}`);
  const rows = [`Model ${camera.model}`, camera.source && `Source ${camera.source}`, camera.width && `${camera.width}×${camera.height} pixels`, camera.reconnections && `${camera.reconnections} reconnections`];
  const zones = Object.entries(camera.zones).map(([name, zone]) => `Zone ${name}: ${zone.occupied ? `occupied, ${counts(zone.counts)}` : "free"}; occupied ${zone.visits} times`);
  const lines = Object.entries(camera.lines).map(([name, line]) => `Line ${name}: entered ${counts(line.entered) || 0}; left ${counts(line.left) || 0}`);
  const sinks = Object.entries(camera.sinks).filter(([, problem]) => problem).map(([name, problem]) => `Sink ${name}: ${problem}`);
  const text = [rows.filter(Boolean).join(" · "), ...zones, ...lines, ...sinks];
  if ($("camera-facts").dataset.text !== text.join("\n")) {
    $("camera-facts").dataset.text = text.join("\n");
    $("camera-facts").replaceChildren(...text.map((line) => make("p", { class: "hint", text: line })));
  }
  $("draw-zone").hidden = $("draw-line").hidden = !camera.pictures || !can("read");
  $("camera-enable").hidden = $("camera-remove").hidden = !camera.removable || !can("operate");
  set($("camera-enable"), camera.enabled ? "Disable" : "Enable");
}

async function command(name, message) {
  set($("camera-problem"), "");
  try {
    await ask(`/call/${name}`, message);
    return true;
  } catch (error) {
    set($("camera-problem"), error.message);
    return false;
  }
}

$("camera").addEventListener("close", () => {
  $("camera-picture").removeAttribute("src");
  endPlace();
  for (const card of cards.values()) pictures.update(card);
});
$("camera-enable").addEventListener("click", () => { const camera = current(); command("SetCamera", { name: camera.name, settings: { enabled: String(!camera.enabled) } }); });
$("camera-remove").addEventListener("click", async () => { if (confirm(`Remove camera ${opened}?`) && await command("RemoveCamera", { name: opened })) $("camera").close(); });

// -- zones and lines ----------------------------------------------------------------------------------------------------

const place = { kind: "", corners: [], cross: [0.5, 0.5], image: null };

async function beginPlace(kind) {
  const camera = current();
  set($("camera-problem"), "");
  try {
    const response = await ask(`/cameras/${encodeURIComponent(camera.name)}/still?fps=20`);
    if (response.status === 204) throw new Error(`Camera ${camera.name} gives no picture now. Try again when it streams.`);
    place.image = await createImageBitmap(await response.blob());
  } catch (error) {
    set($("camera-problem"), error.message);
    return;
  }
  Object.assign(place, { kind, corners: [], cross: [0.5, 0.5] });
  $("camera-picture").hidden = true;
  $("camera-picture").removeAttribute("src");
  const canvas = $("camera-canvas");
  canvas.hidden = $("place").hidden = false;
  canvas.width = place.image.width;
  canvas.height = place.image.height;
  canvas.setAttribute("aria-label", `Picture of ${camera.name}. Arrow keys move the cross, Enter sets a corner of the ${kind}.`);
  $("place-name").value = "";
  $("place-toml-box").hidden = true;
  set($("place-save"), camera.removable ? "Save" : "Show the configuration");
  $("place-save").disabled = camera.removable && !can("operate");
  drawPlace();
  canvas.focus();
}

function endPlace() {
  place.kind = "";
  $("camera-canvas").hidden = $("place").hidden = true;
  $("camera-picture").hidden = false;
}

function drawPlace() {
  const canvas = $("camera-canvas"), pen = canvas.getContext("2d"), { width, height } = canvas;
  pen.drawImage(place.image, 0, 0);
  pen.lineWidth = Math.max(2, width / 300);
  pen.strokeStyle = "#ffd23f";
  pen.fillStyle = "rgb(255 210 63 / .25)";
  pen.beginPath();
  place.corners.forEach(([x, y], index) => (index ? pen.lineTo(x * width, y * height) : pen.moveTo(x * width, y * height)));
  if (place.kind === "zone") { pen.closePath(); pen.fill(); }
  pen.stroke();
  for (const [x, y] of place.corners) { pen.beginPath(); pen.arc(x * width, y * height, width / 130, 0, 7); pen.fillStyle = "#ffd23f"; pen.fill(); }
  const [x, y] = [place.cross[0] * width, place.cross[1] * height], arm = width / 40;
  pen.strokeStyle = "#fff";
  pen.beginPath();
  pen.moveTo(x - arm, y); pen.lineTo(x + arm, y); pen.moveTo(x, y - arm); pen.lineTo(x, y + arm);
  pen.stroke();
  const text = place.corners.map((corner) => corner.join(",")).join(" ");
  if (document.activeElement !== $("place-points")) $("place-points").value = text;
}

function addCorner(x, y) {
  const rounded = [x, y].map((each) => Math.round(Math.min(1, Math.max(0, each)) * 1000) / 1000);
  if (place.kind === "line" && place.corners.length === 2) place.corners = [];
  place.corners.push(rounded);
  drawPlace();
}

$("camera-canvas").addEventListener("pointerdown", (event) => {
  const area = event.target.getBoundingClientRect(), { width, height } = event.target;
  const scale = Math.min(area.width / width, area.height / height); // as object-fit: contain does
  const x = (event.clientX - area.left - (area.width - width * scale) / 2) / (width * scale);
  const y = (event.clientY - area.top - (area.height - height * scale) / 2) / (height * scale);
  if (x >= 0 && x <= 1 && y >= 0 && y <= 1) { place.cross = [x, y]; addCorner(x, y); }
});
$("camera-canvas").addEventListener("keydown", (event) => {
  const step = event.shiftKey ? 0.005 : 0.025;
  const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] };
  if (moves[event.key]) place.cross = place.cross.map((each, index) => Math.min(1, Math.max(0, each + moves[event.key][index])));
  else if (event.key === "Enter" || event.key === " ") addCorner(...place.cross);
  else if (event.key === "Backspace") place.corners.pop();
  else return;
  event.preventDefault();
  drawPlace();
});
$("place-points").addEventListener("input", (event) => {
  const corners = event.target.value.trim().split(/\s+/).map((pair) => pair.split(",").map(Number));
  if (corners.every((pair) => pair.length === 2 && pair.every((each) => each >= 0 && each <= 1))) { place.corners = corners; drawPlace(); }
});
$("draw-zone").addEventListener("click", () => beginPlace("zone"));
$("draw-line").addEventListener("click", () => beginPlace("line"));
$("place-cancel").addEventListener("click", () => { endPlace(); openVideo(); });
$("place").addEventListener("submit", async (event) => {
  event.preventDefault();
  const camera = current(), name = $("place-name").value, needed = place.kind === "zone" ? 3 : 2;
  if (place.corners.length < needed) { set($("camera-problem"), `Set ${needed} ${place.kind === "zone" ? "corners or more" : "ends"}.`); return; }
  const points = JSON.stringify(place.corners), table = place.kind === "zone" ? "zones" : "lines";
  if (!camera.removable) {
    set($("place-toml"), `[cameras.${camera.name}.${table}.${name}]\npoints = ${points}`);
    $("place-toml-box").hidden = false;
  } else if (await command("SetCamera", { name: camera.name, settings: { [`${table}.${name}.points`]: points } })) {
    endPlace();
    openVideo();
  }
});

// -- a new camera -------------------------------------------------------------------------------------------------------

$("add-camera").addEventListener("click", () => { set($("new-camera-problem"), ""); $("new-camera").showModal(); });
$("new-camera-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const settings = { source: $("new-camera-source").value, model: $("new-camera-model").value };
  try {
    await ask("/call/AddCamera", { name: $("new-camera-name").value, settings });
    $("new-camera").close();
    event.target.reset();
  } catch (error) { set($("new-camera-problem"), error.message); }
});

// -- models, alarms, chart ----------------------------------------------------------------------------------------------

function speed(model) {
  if (model.speed === null) return model.serves ? "not timed yet" : "";
  const ratio = model.speed >= 1.05 ? `${model.speed.toFixed(1)} × faster than unoptimised` : "as fast as unoptimised";
  return model.loaded ? `${ratio} (timed while the box was busy)` : ratio;
}

function drawModels() {
  $("no-models").hidden = box.models.length > 0;
  $("models").replaceChildren(...box.models.map((model) => make("tr", {},
    make("th", { scope: "row", text: model.name }),
    make("td", {}, tag(model.state), model.reason ? ` ${model.reason}` : ""),
    make("td", { "data-label": "Served by", text: model.serves }),
    make("td", { "data-label": "Speed", text: speed(model) }),
    make("td", {},
      ...model.building.map((build) => make("div", {}, build.percent === null ? "" : make("progress", { max: 100, value: build.percent, "aria-label": build.what }), ` ${build.what}: ${build.progress}`)),
      ...model.stale.map((line) => make("div", { class: "dim", text: line })),
      ...(can("operate") ? model.reports : []).map((engine) => make("div", {}, make("a", { href: `/engines/${engine.key}/report`, target: "_blank", rel: "noopener", text: `Report on ${engine.what}` })))),
  )));
  drawSources();
}

function drawAlarms() {
  $("alarms-section").hidden = box.alarms.length === 0;
  $("alarms").replaceChildren(...box.alarms.map((alarm) => make("li", {},
    make("strong", { text: [alarm.kind, alarm.about].filter(Boolean).join(", ") }), ` since ${clock(alarm.since_unix_s)}: ${alarm.message}`)));
}

const chart = {
  data: [[], [], []],
  plot: null,
  add(cpu, fps) {
    [Date.now() / 1000, fps, cpu * 100].forEach((value, index) => { this.data[index].push(value); if (this.data[index].length > HISTORY) this.data[index].shift(); });
    if (!this.plot) this.make();
    this.plot.setData(this.data);
  },
  make() {
    const style = getComputedStyle(document.documentElement), color = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--dim"), grid: { stroke: color("--edge") }, ticks: { stroke: color("--edge") } };
    if (this.plot) this.plot.destroy();
    this.plot = new uPlot({
      width: Math.max(200, $("chart").clientWidth - 16), height: 170, cursor: { show: false }, legend: { live: false },
      series: [{}, { label: "frames/s", stroke: color("--accent"), width: 2 }, { label: "processors, %", stroke: color("--busy"), width: 2, scale: "%" }],
      axes: [
        { ...axis, incrs: [1, 5, 10, 30, 60, 300], space: 80, values: (_, all) => all.map(clock) },
        { ...axis, size: 45 }, { ...axis, scale: "%", side: 1, grid: { show: false }, size: 45 },
      ],
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high || 0) * 1.1] }, "%": { range: [0, 100] } },
    }, this.data, $("chart"));
  },
};
addEventListener("resize", () => chart.plot && chart.make());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.plot && chart.make());

// -- trying a model -----------------------------------------------------------------------------------------------------

const trial = { file: null, answer: null, image: null, own: null, abort: null };

function drawSources() {
  const select = $("try-source"), chosen = select.value;
  const options = [["", "A picture that edged draws"], ...box.cameras.filter((camera) => camera.pictures).map((camera) => [`camera ${camera.name}`, `Camera ${camera.name}, now`]), ["own", "A file"]];
  const key = JSON.stringify(options);
  if (select.dataset.key === key) return;
  select.dataset.key = key;
  select.replaceChildren(...options.map(([value, text]) => make("option", { value, text })));
  if (options.some(([value]) => value === chosen)) select.value = chosen;
}

function openTry(file) {
  drawSources();
  if (!$("try").open) $("try").showModal();
  if (file) { trial.file = file; examine(); }
}

async function testPicture() {
  const choice = $("try-source").value;
  if (choice === "own") return trial.own;
  if (choice.startsWith("camera ")) {
    const response = await ask(`/cameras/${encodeURIComponent(choice.slice(7))}/still?fps=20`);
    if (response.status === 204) throw new Error("This camera gives no picture now. Choose another test picture.");
    return response.blob();
  }
  return null;
}

async function examine() {
  if (!trial.file) return;
  if (trial.abort) trial.abort.abort();
  const abort = trial.abort = new AbortController();
  $("try-result").hidden = $("try-stage").hidden = true;
  $("try-notes").replaceChildren();
  set($("try-state"), `Examining ${trial.file.name}: reading the file, trying each runtime, running the model once…`);
  const name = trial.file.name.replace(/\.onnx$/i, "").replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[-.]+/, "").slice(0, 64) || "model";
  try {
    const picture = await testPicture();
    const body = picture ? new Blob([trial.file, picture]) : trial.file;
    const response = await ask(`/try/${encodeURIComponent(name)}?picture=${picture ? picture.size : 0}`, body, abort.signal);
    trial.answer = await response.json();
    const drawn = trial.answer.picture;
    trial.image = drawn ? await createImageBitmap(blobOf(drawn)) : picture ? await createImageBitmap(picture) : null;
  } catch (error) {
    if (error.name !== "AbortError") set($("try-state"), error.message);
    return;
  }
  $("try-name").value = name;
  drawTrial();
}

function blobOf(base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  return new Blob([bytes], { type: "image/jpeg" });
}

function drawTrial() {
  const answer = trial.answer;
  const backends = Object.entries(answer.backends).map(([name, why]) => `${name}: ${why || "takes it"}`);
  $("try-notes").replaceChildren(...[...answer.warnings, answer.family_reason, ...backends].filter(Boolean).map((text) => make("li", { class: "dim", text })));
  if (answer.problem) {
    set($("try-state"), `This box cannot serve the model (${answer.stage}): ${answer.problem}${answer.remedy ? `; ${answer.remedy}` : ""}`);
    return;
  }
  set($("try-state"), answer.family ? `This box can serve the model, which is of the family ${answer.family}.` : "This box can serve the model. Its family is not known, so clients get raw tensors.");
  $("try-result").hidden = false;
  $("try-score-label").hidden = answer.detections.length === 0;
  $("try-score").value = Math.max(0.05, answer.score);
  drawDetections();
}

function drawDetections() {
  const answer = trial.answer, score = Number($("try-score").value);
  set($("try-score-value"), score.toFixed(2));
  const found = answer.detections.filter((each) => each.score >= score);
  const byLabel = {};
  for (const each of found) byLabel[each.label] = (byLabel[each.label] || 0) + 1;
  const content = answer.content.slice(0, 3).join(", ");
  set($("try-found"), content ? `In the test picture: ${content}` : answer.family ? `In the test picture: ${counts(byLabel) || "nothing"}` : "");
  if (!trial.image) return;
  const canvas = $("try-canvas"), pen = canvas.getContext("2d");
  $("try-stage").hidden = false;
  canvas.width = trial.image.width;
  canvas.height = trial.image.height;
  canvas.setAttribute("aria-label", `Test picture with ${counts(byLabel) || "no detection"}`);
  pen.drawImage(trial.image, 0, 0);
  const across = canvas.width / answer.width, down = canvas.height / answer.height, size = Math.max(12, canvas.width / 45);
  pen.font = `${size}px system-ui, sans-serif`;
  pen.lineWidth = Math.max(2, canvas.width / 300);
  for (const each of found) {
    const [x, y] = [each.x1 * across, each.y1 * down], text = `${each.label} ${each.score.toFixed(2)}`;
    pen.strokeStyle = pen.fillStyle = "#ffd23f";
    pen.strokeRect(x, y, (each.x2 - each.x1) * across, (each.y2 - each.y1) * down);
    const top = Math.max(0, y - size * 1.25);
    pen.fillRect(x, top, pen.measureText(text).width + size / 2, size * 1.25);
    pen.fillStyle = "#000";
    pen.fillText(text, x + size / 4, top + size);
  }
}

$("try-model").addEventListener("click", () => openTry(null));
$("try-file").addEventListener("change", (event) => { if (event.target.files[0]) openTry(event.target.files[0]); });
$("try-source").addEventListener("change", () => { $("try-own").hidden = $("try-source").value !== "own"; if ($("try-source").value !== "own" || trial.own) examine(); });
$("try-picture").addEventListener("change", (event) => { trial.own = event.target.files[0] || null; examine(); });
$("try-score").addEventListener("input", drawDetections);
$("try").addEventListener("close", () => trial.abort && trial.abort.abort());
$("try-add").addEventListener("click", async (event) => {
  const name = $("try-name").value, answer = trial.answer, score = Number($("try-score").value);
  if (!$("try-name").reportValidity()) return;
  const settings = answer.detections.length && Math.abs(score - answer.score) > 0.005 ? `?thresholds.score=${score.toFixed(2)}` : "";
  event.target.disabled = true;
  set($("try-state"), `Adding ${name}…`);
  try {
    await ask(`/models/${encodeURIComponent(name)}${settings}`, trial.file);
    $("try").close();
  } catch (error) { set($("try-state"), error.message); }
  event.target.disabled = false;
});

let dragging = 0;
const hasFile = (event) => can("operate") && [...(event.dataTransfer?.types || [])].includes("Files");
addEventListener("dragenter", (event) => { if (hasFile(event)) { dragging += 1; $("drop").hidden = false; } });
addEventListener("dragleave", (event) => { if (hasFile(event) && --dragging <= 0) { dragging = 0; $("drop").hidden = true; } });
addEventListener("dragover", (event) => { if (hasFile(event)) event.preventDefault(); });
addEventListener("drop", (event) => {
  if (!hasFile(event)) return;
  event.preventDefault();
  dragging = 0;
  $("drop").hidden = true;
  openTry(event.dataTransfer.files[0]);
});

// -- who looks ----------------------------------------------------------------------------------------------------------

async function start() {
  clearTimeout(retry);
  try {
    box.session = await (await ask("/session")).json();
    $("offline").hidden = true;
  } catch {
    $("offline").hidden = false;
    retry = setTimeout(start, 3000);
    return;
  }
  set($("sign"), box.session.name ? `Sign out (${box.session.name})` : "Sign in");
  for (const node of document.querySelectorAll(".operate")) node.hidden = !can("operate");
  if (!can("read")) set($("summary"), box.session.problem || "Sign in to see this box.");
  listen();
}

$("sign").addEventListener("click", async () => {
  if (!box.session.name) { set($("sign-in-problem"), ""); $("sign-in").showModal(); return; }
  await ask("/session", { token: "" }).catch(() => null);
  location.reload();
});
$("sign-in-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await ask("/session", { token: $("token").value });
    $("sign-in").close();
    event.target.reset();
    await start();
  } catch (error) { set($("sign-in-problem"), error.message); }
});
for (const button of document.querySelectorAll("[data-close]")) button.addEventListener("click", () => button.closest("dialog").close());
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { if (source) source.close(); source = null; for (const card of cards.values()) pictures.update(card); } else start();
});

// An address with #token=... signs in. Servers never get that part, and it does not stay in the history.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  history.replaceState(null, "", location.pathname);
  ask("/session", { token: given }).catch(() => null).finally(start);
} else start();
