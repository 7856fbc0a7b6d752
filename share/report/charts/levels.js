// A metric of the runs of one experiment over time, with a line for each level and what is known about its changes.
"use strict";

const WORD_CLASS = { better: "good", worse: "bad" };

function changeInterval([low, high]) {
    return low === null || high === null ? "too few runs for an interval" : `95 % interval ${change(low)} to ${change(high)}`;
}

function whatDiffers(differs) {
    if (!differs) return "";
    const names = Object.entries(differs);
    return names.length ? names.map(([key, { before, after }]) => `${key}: ${before} -> ${after}`).join("; ") : "nothing that was recorded differs";
}

function dateText(started) {
    return (started || "").replace("T", " ").replace("Z", "");
}

function levelInWords({ median, ci: [low, high] }, unit) {
    return `${figure(median, unit)}${low === null ? "" : ` (95 % interval ${figure(low, unit)} to ${figure(high, unit)})`}`;
}

// A horizontal line from the first to the last run of each level at its median, in a band that is the median's interval.
function levelSeries(name, levels, points, colour) {
    const at = new Map(points.map((point) => [point.run, Date.parse(point.started)]));
    return {
        name, type: "custom", silent: true, clip: true, z: 1, itemStyle: { color: colour }, encode: { x: [0, 1], y: [2, 3, 4] },
        data: levels.map((level) => [at.get(level.first), at.get(level.last), level.median, ...level.ci]),
        renderItem: (_, api) => {
            const [from, to, median, low, high] = [0, 1, 2, 3, 4].map((dimension) => api.value(dimension));
            const [x1, y] = api.coord([from, median]), [x2] = api.coord([to, median]);
            const line = { type: "line", shape: { x1, y1: y, x2, y2: y }, style: { stroke: colour, lineWidth: 2 } };
            if (!Number.isFinite(low)) return { type: "group", children: [line] };
            const top = api.coord([from, high])[1], bottom = api.coord([from, low])[1];
            return { type: "group", children: [{ type: "rect", shape: { x: x1, y: top, width: x2 - x1, height: bottom - top }, style: { fill: colour, opacity: 0.25 } }, line] };
        },
    };
}

// [[point, its level]]; the levels are those of all points, in their order.
function levelOfEach(points, levels) {
    let at = -1;
    return points.map((point) => [point, levels[levels[at + 1]?.first === point.run ? ++at : at]]);
}

function levelCells(level, unit) {
    return [level?.median, ...(level?.ci || [null, null])].map((value) => cell(value, unit));
}

const LEVELS_NOTE = "A line is a level: the median of at least four runs, in a band that is its 95 % interval if there are six. A level changes where the runs before and after differ by more than chance.";

function levelsOfLine(history, name, root) {
    const { points, levels, unit } = history;
    const shown = (value) => figure(value, unit);
    return {
        title: `${history.metric} over time`,
        note: `Each point is the median of a run. ${LEVELS_NOTE}`,
        document: name, wide: true,
        chart: {
            height: 320,
            words: `${plural(points.length, "run")}, the last ${shown(points[points.length - 1].median)}; ${levels.map((level) => `level ${levelInWords(level, unit)}`).join(", then ") || "too few for a level"}`,
            option: (palette) => ({
                useUTC: true,
                tooltip: { trigger: "item", formatter: ({ data }) => data.run && tip(data.run, [["started", `${dateText(data.started)} UTC`], [history.metric, shown(data.value[1])]]) },
                legend: false, grid: { bottom: 8, right: 30 }, dataZoom: zoomable(points.length, "xAxisIndex"),
                xAxis: axis(palette, { type: "time" }),
                yAxis: axis(palette, { type: "value", scale: true, boundaryGap: ["8%", "8%"], axisLabel: { formatter: shown } }),
                series: [
                    { name: "runs", type: "scatter", symbolSize: points.length > 400 ? 4 : 8, itemStyle: { color: palette.hues[0] },
                      data: points.map((point) => ({ value: [Date.parse(point.started), point.median], run: point.run, started: point.started })) },
                    levelSeries("level", levels, points, palette.hues[1]),
                ],
            }),
        },
        table: {
            columns: ["started", "run", "#median", "#min", "#max", "#level", "#from", "#to", "change"],
            rows: levelOfEach(points, levels).map(([point, level]) => () => {
                const began = history.change_points.find(({ run }) => run === point.run);
                return [textCell(dateText(point.started)), element("td", { class: "text" }, runLink(point.run, root)),
                    ...["median", "min", "max"].map((key) => cell(point[key], unit)), ...levelCells(level, unit),
                    textCell(began ? `${began.direction}, ${change(began.change)} from here` : "")];
            }).reverse(),
        },
    };
}

// points: change points with the unit of their metric, and its name, or that of their line, if they are of several.
function tableOfChanges(title, points, document, root) {
    if (!points.length) return null;
    const of = ["line", "metric"].filter((key) => points.some((point) => point[key]));
    return {
        title, document, wide: true,
        note: "Up to ten runs on either side are compared for what differs between them.",
        table: {
            isOpen: true,
            columns: [...of, "began", "first run", "is", "#change", "95 % interval", "#before", "#runs", "#after", "#runs", "differs"],
            rows: points.map((point) => () => [
                ...of.map((key) => textCell(point[key])),
                textCell(dateText(point.started)), element("td", { class: "text" }, runLink(point.run, root)), textCell(point.direction), changeCell(point.change),
                textCell(changeInterval(point.ci).replace("95 % interval ", "")), cell(point.before.median, point.unit), cell(point.before.n, "count"),
                cell(point.after.median, point.unit), cell(point.after.n, "count"), textCell(whatDiffers(point.differs))]),
        },
    };
}

function changesOfLine({ metric, unit, change_points: points }, name, root) {
    return tableOfChanges(`Change points of ${metric}`, points.map((point) => ({ ...point, unit })).reverse(), name, root);
}
