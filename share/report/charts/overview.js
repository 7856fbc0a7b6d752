// The runs that match filters: each primary metric over time, a colour for each experiment on a store and site.
"use strict";

const LINES_NAMED = 8; // the others are grey

// [{key, points, changes, levels}] of a history, those with most runs first. A line has one experiment on one store and site.
function linesOf(history) {
    const keyOf = (point) => JSON.stringify([point.experiment_hash, point.store, point.site]), lines = new Map();
    for (const point of history.points) {
        if (!lines.has(keyOf(point))) lines.set(keyOf(point), []);
        lines.get(keyOf(point)).push(point);
    }
    const of = (key, member) => history[member].filter((each) => keyOf(each) === key);
    return [...lines].map(([key, points]) => ({ key, points, changes: of(key, "change_points"), levels: of(key, "levels") })).sort((a, b) => b.points.length - a.points.length);
}

// {key: name} of the lines, by the keys in which their experiments differ, as far as the newest runs say.
function namesOfLines(lines, runs) {
    const experiments = new Map(runs.map((run) => [run.run, run.experiment]));
    const known = lines.map(({ key, points }) => ({ key, place: points[0], experiment: points.map((point) => experiments.get(point.run)).find(Boolean) }));
    const differ = (values) => new Set(values).size > 1;
    const all = known.map(({ experiment }) => experiment).filter(Boolean);
    const keys = [...new Set(all.flatMap(Object.keys))].filter((name) => name !== "name" && name !== "store" && differ(all.filter((experiment) => name in experiment).map((experiment) => String(experiment[name]))));
    return Object.fromEntries(known.map(({ key, place, experiment }) => {
        const parts = experiment ? keys.filter((name) => name in experiment).map((name) => `${name}=${experiment[name]}`) : [`experiment ${place.experiment_hash}`];
        if (differ(known.map((line) => line.place.store))) parts.push(`on ${place.store}`);
        if (differ(known.map((line) => line.place.site))) parts.push(`at ${place.site}`);
        return [key, parts.join(" ") || (experiment ? `${experiment.workload}, ${experiment.model || experiment.command}` : "")];
    }));
}

function overTime(history, name, lines, names) {
    const shown = (value) => figure(value, history.unit), named = lines.slice(0, LINES_NAMED), others = lines.slice(LINES_NAMED);
    const short = (text) => (text.length > 44 ? `${text.slice(0, 43)}…` : text);
    const data = (points) => points.map((point) => ({ value: [Date.parse(point.started), point.median], point }));
    return {
        title: `${history.metric} over time`, document: name, wide: true,
        note: `Each point is the median of a run that passed.${lines.length > 1 ? " A colour is one experiment on one store and site." : ""} ${LEVELS_NOTE}${others.length ? ` ${plural(others.length, "line")} with fewer runs are grey.` : ""}`,
        chart: {
            height: 320,
            words: named.map(({ key, points, levels }) => `${names[key]}: ${plural(points.length, "run")}, the last ${shown(points[points.length - 1].median)}${levels.map((level) => `, level ${levelInWords(level, history.unit)}`).join("")}`).join("; "),
            option: (palette) => ({
                useUTC: true,
                tooltip: { trigger: "item", formatter: ({ data: { point } }) => point && tip(point.run, [["started", `${dateText(point.started)} UTC`], [history.metric, shown(point.median)]]) },
                legend: lines.length > 1 ? {} : false, grid: { right: 30 }, dataZoom: zoomable(history.points.length, "xAxisIndex"),
                xAxis: axis(palette, { type: "time" }),
                yAxis: axis(palette, { type: "value", scale: true, boundaryGap: ["8%", "8%"], axisLabel: { formatter: shown } }),
                series: [
                    ...named.map(({ key, points }, index) => ({ name: short(names[key]), type: "scatter", symbolSize: history.points.length > 400 ? 4 : 8, itemStyle: { color: palette.hues[index] }, data: data(points) })),
                    ...named.map(({ key, points, levels }, index) => levelSeries(short(names[key]), levels, points, palette.hues[index])),
                    ...(others.length ? [{ name: "others", type: "scatter", symbolSize: 5, itemStyle: { color: palette.grey }, data: data(others.flatMap(({ points }) => points)) }] : []),
                ],
            }),
        },
        table: {
            columns: ["started", "run", ...(lines.length > 1 ? ["line"] : []), "#median", "#min", "#max", "#level", "#from", "#to"],
            rows: lines.flatMap(({ key, points, levels }) => levelOfEach(points, levels).map(([point, level]) => () => [textCell(dateText(point.started)), textCell(point.run), ...(lines.length > 1 ? [textCell(names[key])] : []),
                ...["median", "min", "max"].map((member) => cell(point[member], history.unit)), ...levelCells(level, history.unit)])),
        },
    };
}

function runsOfOverview(runs) {
    const keys = ["model", "ranks", "store"];
    return {
        title: "Runs", document: "runs", wide: true, note: runs.length === 200 ? "The newest 200." : undefined,
        table: {
            columns: ["run", "started", "outcome", "workload", ...keys, "labels"],
            rows: runs.map((run) => () => [textCell(run.run), textCell(dateText(run.started)), textCell(run.outcome || run.state), textCell(run.experiment?.workload),
                ...keys.map((key) => textCell(run.experiment?.[key])), textCell(Object.entries(run.labels || {}).map(([key, value]) => `${key}=${value}`).join(" "))]),
        },
    };
}

function pageOfOverview({ runs: { data: runs, command }, ...histories }) {
    const counts = {};
    for (const run of runs) counts[run.outcome || run.state] = (counts[run.outcome || run.state] || 0) + 1;
    const metrics = Object.entries(histories).map(([name, { data }]) => {
        const lines = linesOf(data);
        return { name, data, lines, names: namesOfLines(lines, runs) };
    });
    const newest = metrics.flatMap(({ data, lines, names }) => lines.filter(({ changes }) => changes.length).map(({ key, changes }) => ({ ...changes[changes.length - 1], metric: data.metric, line: lines.length > 1 ? names[key] : null })))
        .sort((a, b) => b.started.localeCompare(a.started));
    return {
        heading: `Runs with ${command.replace(/^ckptbench list /, "").replace(/ -n=\d+ --json$/, "")}`,
        about: `${plural(runs.length, "run")}${runs.length ? `: ${Object.entries(counts).map(([outcome, count]) => `${count} ${outcome}`).join(", ")}` : ""}`,
        answer: [
            ...(runs.length ? [] : [says("No run matches.")]),
            ...newest.slice(0, 6).map((point) => changeSentence(point, point.run, point.line)),
            ...(runs.length && !newest.length ? [says("No level has changed.")] : []),
        ],
        sections: [
            ...metrics.flatMap(({ name, data, lines, names }) => [
                overTime(data, name, lines, names),
                tableOfChanges(`Change points of ${data.metric}`, lines.flatMap(({ key, changes }) => changes.map((point) => ({ ...point, unit: data.unit, line: lines.length > 1 ? names[key] : null }))), name)]),
            runs.length ? runsOfOverview(runs) : null,
        ],
    };
}
