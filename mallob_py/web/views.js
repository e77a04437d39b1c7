"use strict";
// The views of the page and their addresses (#queue, #job/USER.NAME, #group/USER/NAME), and interruptions with undo.
// A part of page.html: names that are not declared here are declared there; nothing runs before `go` is called.

const VIEWS = new Map([["jobs", "Jobs"], ["queue", "Queue"], ["ended", "Ended"], ["hosts", "Hosts"], ["submit", "Submit"], ["job", "Job"], ["group", "Group"]]);
const OUTPUT_BYTES = 1 << 16;
let route = { view: "jobs", parts: [] };
let page = {}; // what is known for the page of a job or a group; a new object for each address

function decoded(part) {
  try { return decodeURIComponent(part); } catch (error) { return part; }
}

const addressOf = (view, ...parts) => "#" + [view, ...parts.map(encodeURIComponent)].join("/");

function link(text, view, ...parts) {
  const element = made("a", text);
  element.href = addressOf(view, ...parts);
  return element;
}

const linkOf = job => link(job.name, "job", job.id || job.key, ...(job.client ? [job.client] : []));

/** Show the view that the address names. */
function go(event) {
  if (location.hash.startsWith("#token=")) token = takeToken();
  const [view, ...parts] = location.hash.slice(1).split("/").map(decoded);
  route = { view: VIEWS.has(view) ? view : "jobs", parts };
  page = { offset: 0 };
  pictured = null;
  for (const part of document.querySelectorAll("[data-view]")) part.hidden = part.dataset.view !== route.view;
  for (const one of document.querySelectorAll("nav a")) {
    if (one.hash === "#" + route.view) one.setAttribute("aria-current", "page");
    else one.removeAttribute("aria-current");
  }
  for (const id of ["job-actions", "job-why", "job-facts", "group-actions", "group-why", "group-facts", "group-jobs"]) at(id).replaceChildren();
  for (const id of ["job-output", "job-file", "job-reply"]) at(id).textContent = "";
  at("job-reply-box").open = false;
  for (const id of ["job-volumes-part", "job-interim-part", "job-reply-part"]) at(id).hidden = true;
  at("job-title").textContent = shown(parts[0] || "");
  at("group-title").textContent = shown(parts.join("."));
  document.title = [...(view === "job" || view === "group" ? parts.slice(0, 2).map(shown) : [VIEWS.get(route.view)]), "mallob-py"].join(" - ");
  if (event) {
    document.querySelector('[data-view="' + route.view + '"] h2').focus();
    scrollTo(0, 0);
  }
  showAgain();
  showMoment();
  (asking || Promise.resolve()).then(refresh);
}

function wireViews() {
  addEventListener("hashchange", go);
  at("job-reply-box").addEventListener("toggle", () => { if (at("job-reply-box").open) showReply(page); });
  at("group-newer").addEventListener("click", () => { page.offset = Math.max(0, page.offset - pageSize()); refresh(); });
  at("group-older").addEventListener("click", () => { page.offset += pageSize(); refresh(); });
  addEventListener("pagehide", () => { for (const path of [...pending.keys()]) undo(path); });
  document.addEventListener("keydown", event => {
    if (event.key !== "z" || !event.ctrlKey || event.target.closest("input, textarea") || !pending.size) return;
    event.preventDefault();
    undo([...pending.keys()].at(-1));
  });
}

// --- interruptions with undo ----------------------------------------------------------------------

// An interruption is sent some seconds after it was asked for. A page that is left sends nothing.
let undoMs = 5000;
const pending = new Map(); // by path of the request

function interruptButton(path, what) {
  const element = made("button");
  element.type = "button";
  element.dataset.interrupts = path;
  element.dataset.what = shown(what);
  element.addEventListener("click", event => {
    if (event.detail > 1) return; // the second click of a double click
    if (pending.has(path)) undo(path);
    else interruptLater(path, what);
  });
  element.addEventListener("keydown", event => { if (event.repeat) event.preventDefault(); });
  labelButton(element);
  return element;
}

function labelButton(element) {
  const end = pending.get(element.dataset.interrupts), words = end ? "Undo (" + leftOf(end) + ")" : "Interrupt";
  if (element.textContent === words) return;
  element.style.minWidth = (element.getBoundingClientRect().width || 0) + "px"; // the button stays below the pointer
  element.textContent = words;
  element.setAttribute("aria-label", (end ? "Undo the interruption of " : "Interrupt ") + element.dataset.what);
}

const leftOf = end => Math.max(0, Math.ceil((end.due - performance.now()) / 1000));

function interruptLater(path, what) {
  const bar = made("div"), words = made("span"), element = made("button", "Undo");
  element.type = "button";
  element.setAttribute("aria-label", "Undo the interruption of " + shown(what));
  element.addEventListener("click", () => undo(path));
  bar.append(words, element);
  at("pending").append(bar);
  pending.set(path, { what: shown(what), due: performance.now() + undoMs, timer: setTimeout(() => sendEnd(path), undoMs), clock: setInterval(showPending, 250), bar, words });
  at("told").textContent = "Interrupting " + shown(what) + " in " + undoMs / 1000 + " s; the button now undoes this.";
  showPending();
}

function dropEnd(path) {
  const end = pending.get(path);
  if (!end) return null;
  clearTimeout(end.timer);
  clearInterval(end.clock);
  end.bar.remove();
  pending.delete(path);
  showPending();
  return end;
}

function undo(path) {
  const end = dropEnd(path);
  if (end) at("told").textContent = "Not interrupted: " + end.what;
}

async function sendEnd(path) {
  const end = dropEnd(path);
  try {
    await ask(path, { method: "POST" });
    at("told").textContent = "Interrupted: " + end.what;
  } catch (error) {
    if (error.status !== 409) present("Interrupt " + end.what, error.message); // 409: the job has ended by itself
  }
  refresh();
}

function showPending() {
  for (const element of document.querySelectorAll("[data-interrupts]")) labelButton(element);
  for (const end of pending.values()) {
    const words = "Interrupting " + end.what + " in " + leftOf(end) + " s, if this page stays open";
    if (end.words.textContent !== words) end.words.textContent = words;
  }
}

// --- queue and hosts ---------------------------------------------------------------------------------

const QUEUE = ["Place", "User", "Name", "State", "Priority", "Age", "Reason"];
const HOSTS = ["Host", "Ranks", "PEs busy", "Cores used", "Memory used", "Memory left", "Turns/s", "Troubles"];
const RANKS = ["Rank", "Host", "Memory used", "Cores used"];

function showQueue(jobs, states) {
  const isHeld = job => job.state === "held";
  const queue = jobs.filter(job => kindOf(job) === "waiting").sort((one, two) => isHeld(one) - isHeld(two) || (two.standing || 0) - (one.standing || 0));
  const rows = queue.slice(0, NARROW.matches ? 12 : 100);
  fill("queue", rows, QUEUE,
    job => [isHeld(job) ? "" : queue.indexOf(job) + 1, job.user, named(job), job.state, +(job.priority ?? 1).toPrecision(4), age(job.age || 0), job.why || ""],
    job => [interruptButton(keyOf(job) + "/interrupt" + clientOf(job), job.key)]);
  const all = Math.max(queue.length, countOf(states) - (states.running || 0) - (states.resting || 0));
  at("queue-hint").textContent = all > rows.length ? "and " + (all - rows.length) + " more" : all ? "" : "None.";
}

/** Return numbers as ranges, such as 0-3, 8. */
function ranges(numbers) {
  const found = [];
  for (const number of numbers) {
    const last = found[found.length - 1];
    if (last && number === last[1] + 1) last[1] = number;
    else found.push([number, number]);
  }
  return found.map(([first, last]) => first === last ? first : first + "-" + last).join(", ");
}

const bytes = number => number ? short(number).replace(/[kMGTP]?$/, " $&B") : "";

function showHosts(hosts) {
  const sum = (uses, place) => uses.reduce((total, use) => total + use[place], 0);
  const inTrouble = host => host.troubles.length > 0;
  const told = hosts.toSorted((one, two) => inTrouble(two) - inTrouble(one)).map((host, number) => ({ key: host.name, number: number + 1, host, uses: host.uses || [] }));
  fill("hosts", told.slice(0, NARROW.matches ? 12 : 100), HOSTS, ({ host, uses }) => {
    const troubles = made("span", host.troubles.join("; "), host.troubles.length ? "failed" : ""), left = made("span");
    const [, , free, total] = uses.findLast(use => use[3]) || [0, 0, 0, 0];
    if (total) left.append(barOf(1 - free / total), bytes(free) + " of " + bytes(total));
    return [host.name, ranges(host.ranks), host.busy + " of " + host.pes, rounded(sum(uses, 1)), bytes(sum(uses, 0)), left, host.turns || "", troubles];
  }, () => []);
  const ranks = told.flatMap(({ host, uses }) => uses.map((use, place) => ({ key: host.name, number: host.ranks[place] + 1, rank: host.ranks[place], use })));
  const rows = ranks.sort((one, two) => two.use[0] - one.use[0] || one.rank - two.rank).slice(0, 2 * rowsShown());
  fill("ranks", rows, RANKS, one => [one.rank, one.key, bytes(one.use[0]), rounded(one.use[1])], () => []);
  at("ranks-hint").textContent = "Each rank with its worker processes, the largest first, renewed every few seconds; memory that several processes share counts for each of them"
    + (ranks.length > rows.length ? "; and " + (ranks.length - rows.length) + " more." : ".");
}

// --- one job, one group ------------------------------------------------------------------------------

async function showPageOf() {
  if (route.view !== "job" && route.view !== "group") return;
  const mine = page;
  try {
    await (route.view === "job" ? showJob(mine) : showGroup(mine));
  } catch (error) {
    if (error.status === 401) throw error;
    if (page === mine) showSentences(route.view + "-why", [error.message]);
  }
}

function showSentences(id, sentences) {
  const box = at(id), told = sentences.map(sentence => shown(sentence)).join("\n");
  if (box.dataset.told === told && box.children.length) return;
  box.dataset.told = told;
  box.replaceChildren(...sentences.map(sentence => made("li", sentence)));
}

function showFacts(id, facts) {
  at(id).replaceChildren(...facts.filter(([, value]) => value !== "" && value !== undefined).map(([label, value]) => {
    const pair = made("div"), told = made("dd");
    told.append(value instanceof Node ? value : String(value));
    pair.append(made("dt", label), told);
    return pair;
  }));
}

async function showJob(mine) {
  const path = "api/jobs/" + encodeURIComponent(route.parts[0] || ""), query = "?client=" + (+route.parts[1] || 0);
  const job = parsed(await ask(path + query)), isLive = !job.ended, end = JSON.stringify(job.ended);
  if (page !== mine) return;
  const told = [ask(path + "/explain" + query), ask(path + "/timeline" + query), ask(path + "/output" + query + "&tail=" + OUTPUT_BYTES), mine.file ?? ask(path + "/file" + query)];
  if (!isLive && mine.end === end) told.length = 0; // the page shows everything already
  Object.assign(mine, { path, query, job });
  at("job-title").textContent = job.user + "." + job.name;
  if (mine.isLive !== isLive) {
    mine.isLive = isLive;
    at("job-actions").replaceChildren(...(isLive ? [interruptButton(path + "/interrupt" + query, job.key)] : []),
      ...(isLive || job.ended.error ? [] : [button("Answer", async () => present(job.key, await answerOf(job)), job.key)]),
      button("Resubmit", () => resubmit(path + "/file" + query), job.key));
  }
  at("job-reply-part").hidden = isLive;
  const group = job.group ? link(job.group, "group", job.user, job.group) : "";
  showFacts("job-facts", [["State", isLive ? job.state + (job.back_in ? ", back in " + job.back_in.toFixed(1) + " s" : "") : job.ended.outcome],
    ["Result", isLive || job.ended.error ? "" : resultOf(job)], ["Application", job.application], ["Priority", +(job.priority ?? 1).toPrecision(4)],
    ["Workers", isLive ? (job.volume || 0) + " of " + (job.demand || 0) : ""], ["Fair share", job.fair_share ? rounded(job.fair_share) + " PEs" : ""],
    [isLive ? "Age" : "Time", age(job.age || 0)], ["PE-seconds", rounded(job.pe_seconds || 0)], ["CPU time", age(job.cpu_seconds || 0)],
    ["Progress", isLive ? progressOf(job) : ""], ["Group", group], ["Client", job.client || ""]]);
  if (!told.length) return;
  const answers = await Promise.all(told.map(one => Promise.resolve(one).catch(error => error)));
  if (page !== mine) return;
  const [why, course, output, file] = answers, failed = answers.find(one => one.status === 401);
  if (failed) throw failed;
  showSentences("job-why", why.message ? [why.message] : why.split("\n"));
  if (!course.message) showCourse(JSON.parse(course), job);
  showOutput(output.message ? "" : output, isLive);
  if (!file.message) mine.file = file;
  at("job-file").textContent = file.message || cut(shown(JSON.stringify(withoutLiterals(JSON.parse(file)), null, 2)));
  if (!isLive) mine.end = end;
}

const cut = text => text.length > 100000 ? text.slice(0, 100000) + "\n..." : text;
const withoutLiterals = fields => fields.literals && fields.literals.length > 100 ? { ...fields, literals: count(fields.literals.length, "integer") } : fields;

function showOutput(text, isLive) {
  const box = at("job-output"), isAtEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 4;
  const part = text.length >= OUTPUT_BYTES ? text.slice(text.indexOf("\n") + 1) : text, told = shown(part);
  if (box.textContent !== told) box.textContent = told;
  if (isAtEnd) box.scrollTop = box.scrollHeight;
  box.hidden = !told;
  at("job-output-hint").textContent = !told ? "Nothing printed" + (isLive ? " yet." : ".") : part !== text ? "The last 64 KB." : "";
}

async function showReply(mine) {
  let text;
  try { text = JSON.stringify(JSON.parse(await ask(mine.path + "/reply" + mine.query)), null, 2); } catch (error) { text = error.message; }
  if (page === mine) at("job-reply").textContent = cut(shown(text));
}

function showCourse(course, job) {
  const steps = course.volumes, last = Date.now() / 1000, end = steps.length && !steps[steps.length - 1].state ? steps[steps.length - 1].time : last;
  at("job-volumes-part").hidden = !steps.length;
  at("job-interim-part").hidden = !course.interim.length;
  if (steps.length) chart("job-volumes", "Workers of the job over time", steps[0].time, end, 0, Math.max(1, ...steps.map(step => step.volume)), draw => {
    steps.forEach((step, index) => {
      const until = index + 1 < steps.length ? steps[index + 1].time : end;
      if (step.state) draw.bar(step.time, until, step.volume, step.state + ", " + count(step.volume, "worker"));
    });
  });
  if (!course.interim.length) return;
  const interim = course.interim.slice(), final = job.ended && job.ended.result && job.ended.result.value, newest = interim[interim.length - 1];
  if (typeof final === "number" && final !== newest.value) interim.push({ ...newest, time: end, value: final });
  const numbers = interim.flatMap(step => [step.value, step.bound]).filter(number => typeof number === "number");
  const best = interim[interim.length - 1], side = course.minimizes ? "at least " : "at most ", has = number => number !== null && number !== undefined;
  const wordsOf = step => [has(step.value) ? (course.label || "value") + " " + step.value : "", has(step.bound) ? side + step.bound : ""].filter(text => text).join(", ");
  at("job-best").textContent = shown(wordsOf(best));
  if (!numbers.length) { at("job-interim-part").hidden = true; return; }
  chart("job-interim", "Best values over time", steps.length ? Math.min(steps[0].time, interim[0].time) : interim[0].time, end, Math.min(...numbers), Math.max(...numbers), draw => {
    draw.line(interim.filter(step => has(step.bound)).map(step => [step.time, step.bound]), "line bound");
    draw.line(interim.filter(step => has(step.value)).map(step => [step.time, step.value]), "line");
    interim.forEach((step, index) => draw.part(step.time, index + 1 < interim.length ? interim[index + 1].time : end, wordsOf(step)));
  });
}

/** Show a chart of steps from `start` to `end` (since 1970), drawn by `paint`; its labels count time from `start`. */
function chart(id, label, start, end, least, most, paint) {
  const box = at(id), width = Math.max(box.clientWidth, 200), height = 150, left = 56, bottom = 18, top = 8;
  const long = Math.max(end - start, 1e-3), high = most - least || 1, svg = canvas(width, height, label);
  const x = time => left + (width - left - 2) * Math.min(1, Math.max(0, (time - start) / long)), y = value => top + (height - top - bottom) * (1 - (value - least) / high);
  for (const value of new Set([least, most])) {
    svg.append(drawn("line", { class: "grid", x1: left, x2: width, y1: y(value), y2: y(value) }), drawn("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)));
  }
  for (const part of [0, .5, 1]) svg.append(drawn("text", { x: x(start + part * long), y: height - 4, "text-anchor": ["start", "middle", "end"][2 * part] }, age(part * long)));
  const draw = {
    part(from, to, words) {
      const group = drawn("g", { "data-part": from, "data-tip": age(from - start) + " after its start: " + shown(words) });
      group.append(drawn("rect", { class: "hit", x: x(from), y: top, width: Math.max(x(to) - x(from), 1), height: height - top - bottom }));
      svg.append(group);
      return group;
    },
    bar(from, to, value, words) {
      const at = value ? y(value) : y(0) - 3;
      this.part(from, to, words).prepend(drawn("rect", { class: value ? "step" : "rest", x: x(from), y: at, width: Math.max(x(to) - x(from), .5), height: y(0) - at }));
    },
    line(points, look) {
      if (!points.length) return;
      svg.append(drawn("path", { class: look, d: "M" + x(points[0][0]) + " " + y(points[0][1]) + points.slice(1).map(([time, value]) => "H" + x(time) + "V" + y(value)).join("") + "H" + x(end) }));
    },
  };
  paint(draw);
  box.replaceChildren(svg);
  markPart(id);
}

const GROUP_JOBS = ["Name", "Application", "State", "Result", "Workers", "Time", "PE-seconds"];

async function showGroup(mine) {
  const [user = "", name = ""] = route.parts, query = "?" + new URLSearchParams({ user, name });
  const told = parsed(await ask("api/group" + query + "&offset=" + mine.offset + "&limit=" + pageSize()));
  if (page !== mine) return;
  const state = told.state, ended = state.solved + state.unsolved + state.failed, live = state.running + state.resting + state.waiting;
  if (mine.isLive !== live > 0 || mine.unsolved !== state.unsolved + state.failed) {
    Object.assign(mine, { isLive: live > 0, unsolved: state.unsolved + state.failed });
    at("group-actions").replaceChildren(...(live ? [interruptButton("api/group/interrupt" + query, "group " + user + "." + name)] : []),
      ...(mine.unsolved ? [button("Resubmit unsolved", () => resubmitGroup(query), name)] : []));
  }
  showSentences("group-why", [ended + " of " + count(ended + live, "job") + " have ended" + (live ? ": " + state.running + " are running, " + state.resting + " resting, " + state.waiting + " waiting" : "") + ".",
    ...(state.left_s === null ? [] : ["At the rate so far, the last job ends in about " + age(state.left_s) + "."]),
    ...((overviewShown ? overviewShown.jobs : []).filter(job => job.user === shown(user) && job.group === shown(name) && job.why).slice(0, 1).map(job => job.name + ": " + job.why))]);
  showFacts("group-facts", [...Object.entries(told.answers), ["PE-seconds of ended jobs", rounded(state.pe_s)]]);
  showVolumes(at("group-volumes"), number => names.has(number) && names.get(number).user === shown(user) && names.get(number).group === shown(name));
  fill("group-jobs", told.jobs, GROUP_JOBS, job => [named(job), job.application || "", job.ended ? job.ended.outcome : job.state, job.ended ? resultCell(job) : progressCell(job), job.volume || 0, age(job.age || 0), rounded(job.pe_seconds || 0)], () => []);
  const last = mine.offset + told.jobs.length;
  at("group-hint").textContent = told.jobs.length ? mine.offset + 1 + " to " + last + " of " + told.total : "No further jobs.";
  at("group-newer").disabled = mine.offset === 0;
  at("group-older").disabled = last >= told.total;
}

// --- handing in again --------------------------------------------------------------------------------

const GONE = "upload"; // the server's word for an uploaded input, which is removed at the job's end
let carried = null; // fields of a job that is handed in again, without the fields of the form
const needsUpload = fields => (fields.files || []).includes(GONE);

async function resubmit(path) {
  const fields = JSON.parse(await ask(path));
  location.hash = "#submit";
  carry(fields);
}

/** Fill the form with the fields of a job; null: forget the carried fields. */
function carry(fields) {
  carried = null;
  at("carried").replaceChildren();
  if (!fields) return;
  for (const field of FIELDS) if (!at(field).disabled) at(field).value = field in fields ? fields[field] + (field.endsWith("limit") && typeof fields[field] === "number" ? "s" : "") : "";
  const [, stem, number] = /^(.*?)(?:-(\d{1,6}))?$/.exec(fields.name);
  at("name").value = stem + "-" + (+(number || 1) + 1);
  for (const input of at("declared-fields").querySelectorAll("input")) input.value = "";
  at("settings").value = fields.configuration && Object.keys(fields.configuration).length ? JSON.stringify(fields.configuration) : "";
  carried = Object.fromEntries(Object.entries(fields).filter(([field]) => !FIELDS.includes(field) && field !== "configuration" && !(field === "files" && needsUpload(fields))));
  const kept = Object.keys(carried);
  at("carried").append("A copy of " + fields.user + "." + shown(fields.name) + (kept.length ? ", also with its " + kept.map(shown).join(", ") : "")
    + (needsUpload(fields) ? ". The uploaded input is gone: choose it again. " : ". "), button("Forget", () => carry(null), fields.name));
  showFields();
}

/** Hand in again, under the same names, the jobs of a group that have ended without a result. */
async function resubmitGroup(query) {
  let offset = 0, again = 0;
  const refused = new Map(); // reason -> names of jobs
  for (let total = 1; offset < total;) {
    const told = JSON.parse(await ask("api/group" + query + "&limit=200&offset=" + offset));
    total = told.total;
    offset += told.jobs.length || total;
    for (const job of told.jobs.filter(one => one.ended && !(one.ended.outcome === "result" && one.ended.resultcode !== 0))) {
      try {
        const fields = JSON.parse(await ask(keyOf(job) + "/file" + clientOf(job)));
        if (needsUpload(fields)) throw new Error("the input was uploaded and is gone");
        await ask("api/jobs", { method: "POST", body: JSON.stringify(fields), headers: { "Content-Type": "application/json" } });
        again++;
      } catch (error) {
        if (error.status === 401) throw error;
        refused.set(error.message, [...(refused.get(error.message) ?? []), job.name]);
      }
    }
  }
  const reasons = [...refused].map(([reason, names]) => "; " + (names.length > 1 ? count(names.length, "job") : shown(names[0])) + " not: " + reason);
  present("Resubmit", count(again, "job") + " handed in again" + reasons.slice(0, 10).join("") + (reasons.length > 10 ? "; " + (reasons.length - 10) + " further reasons" : "") + ".");
}
