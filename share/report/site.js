// The pages that only a site has: its start page and one for each line of the history, and the links between pages.
"use strict";

// The names of files as the program makes them: characters that are not plain are written as =XX.
function fileName(name) {
    return [...new TextEncoder().encode(name)].map((byte, index) => {
        const text = String.fromCharCode(byte);
        return /[A-Za-z0-9_-]/.test(text) || (text === "." && index) ? text : `=${byte.toString(16).toUpperCase().padStart(2, "0")}`;
    }).join("");
}

// The page of a run in a site; its name alone on other pages.
function runLink(run, root) {
    return root === undefined ? run : element("a", { href: `${root}run/${fileName(run)}.html` }, run);
}

function siteLinks({ kind, site }) {
    if (kind === "site") return [];
    const links = [[`${site.root}index.html`, "All lines"], site.line && [site.root + site.line, "The history of this experiment"], site.sweep && [site.root + site.sweep, "Its sweep"]];
    return [element("nav", { class: "note" }, links.filter(Boolean).flatMap(([href, text], index) => [index ? " · " : "", element("a", { href }, text)]))];
}

function pageOfLine(documents, site) {
    const lines = Object.entries(documents).filter(([, { data }]) => data.points.length);
    if (!lines.length) return { heading: `${site.title}, over time`, about: "", answer: [says("Its runs have no primary metric.")], sections: [] };
    const { points } = lines[0][1].data;
    const newest = lines.map(([, { data }]) => data.change_points[data.change_points.length - 1] && { ...data.change_points[data.change_points.length - 1], metric: data.metric }).filter(Boolean);
    return {
        heading: `${site.title}, over time`,
        about: `${plural(points.length, "run")} of experiment ${points[0].experiment_hash} on ${points[0].store}, ${points[0].site === "local" ? "this machine" : `site ${points[0].site}`}`,
        answer: [
            ...(newest.length ? newest.map((point) => changeSentence(point, runLink(point.run, site.root))) : [says("No level has changed.")]),
            ...lines.map(([, { data }]) => [data, data.levels[data.levels.length - 1]]).filter(([, level]) => level).map(([{ metric, unit }, level]) =>
                says(`The level of ${metric} is ${levelInWords(level, unit)} in ${plural(level.n, "run")} to ${level.last}.`)),
        ],
        sections: lines.flatMap(([name, { data }]) => [levelsOfLine(data, name, site.root), changesOfLine(data, name, site.root)]),
    };
}

function changeSentence(point, run, line) {
    const sentence = says("");
    sentence.append(...(line ? [line, ": "] : []), `${point.metric} is `, element("span", { class: WORD_CLASS[point.direction] }, point.direction === "changed" ? "different" : point.direction),
        ` by ${change(point.change)} since `, run, ", ", element("span", { class: "whole" }, point.started.slice(0, 10)), ` (${changeInterval(point.ci)}).`);
    if (point.differs) sentence.append(` What differs: ${whatDiffers(point.differs)}.`);
    return sentence;
}

function linesOfSite(lines) {
    const link = ({ page, line }) => element("td", { class: "text" }, element("a", { href: page }, line));
    return {
        title: "Lines", note: "A line has the runs of one experiment on one store and site. Lines of fewer than 8 runs are found from the pages of their runs.",
        document: "site", wide: true,
        table: {
            isOpen: true,
            columns: ["line", "metric", "#runs", "#level", "#last run", "last change", "#by"],
            rows: lines.map((line) => () => [
                link(line), textCell(line.metric), cell(line.runs, "count"), cell(line.level, line.unit), cell(line.last, line.unit),
                textCell(line.change ? `${line.change.direction}, ${line.change.started.slice(0, 10)}` : ""), changeCell(line.change ? line.change.change : null)]),
        },
    };
}

function listOfSite(title, rows, name, when) {
    if (!rows.length) return null;
    return {
        title, document: "site",
        table: {
            columns: [name, "started", ...(when === "started" ? ["outcome"] : [])],
            rows: rows.map((row) => () => [element("td", { class: "text" }, element("a", { href: row.page }, row[name])), textCell(dateText(row[when])), ...(when === "started" ? [textCell(row.outcome || row.state)] : [])]),
        },
    };
}

function pageOfSite({ site: { data } }) {
    const ofWeek = data.lines.filter(({ change }) => change && change.this_week);
    const sentences = ["worse", "better", "changed"].flatMap((direction) => ofWeek.filter(({ change }) => change.direction === direction))
        .map((line) => changeSentence({ ...line.change, metric: line.metric }, runLink(line.change.run, ""), element("a", { href: line.page }, line.line)));
    const week = data.until ? `in the week to ${data.until.slice(0, 10)}` : "";
    return {
        heading: "Checkpoints over time",
        about: `${plural(data.runs, "run")}${week ? `, the newest on ${data.until.slice(0, 10)}` : ""}`,
        answer: sentences.length ? [says(`What changed ${week}:`), ...sentences] : [says(data.runs ? `No level has changed ${week}.` : "There are no runs yet.")],
        sections: [
            data.lines.length ? linesOfSite(data.lines) : null, listOfSite("Runs that did not pass", data.failed, "run", "started"),
            listOfSite("Newest runs", data.newest, "run", "started"), listOfSite("Sweeps", data.sweeps, "sweep", "last_started"),
        ],
    };
}

Object.assign(KINDS, { site: pageOfSite, line: pageOfLine, overview: pageOfOverview, pool: pageOfPool });
