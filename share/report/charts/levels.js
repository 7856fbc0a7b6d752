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

// [{from, to, median}] by the index of points.
function levelsOf(history) {
    const at = (run) => history.points.findIndex((point) => point.run === run);
    const starts = history.change_points.map((point) => at(point.run));
    return [0, ...starts].map((from, index) => {
        const to = starts[index] ?? history.points.length;
        const near = history.change_points[index - 1]?.after ?? history.change_points[index]?.before;
        return { from, to, median: near?.median };
    });
}

function levelsOfLine(history, name, root) {
    const { points, unit } = history, time = (point) => Date.parse(point.started);
    const shown = (value) => figure(value, unit);
    return {
        title: `${history.metric} over time`,
        note: "Each point is the median of a run. A line is a level: it changes where the runs before and after differ by more than chance.",
        document: name, wide: true,
        chart: {
            height: 320,
            words: `${plural(points.length, "run")}, the last ${shown(points[points.length - 1].median)}; ${plural(history.change_points.length, "change point")}`,
            option: (palette) => ({
                useUTC: true,
                tooltip: { trigger: "item", formatter: ({ data }) => data.run && tip(data.run, [["started", data.started.replace("T", " ").replace("Z", " UTC")], [history.metric, shown(data.value[1])]]) },
                legend: false, grid: { bottom: 8, right: 30 }, dataZoom: zoomable(points.length, "xAxisIndex"),
                xAxis: axis(palette, { type: "time" }),
                yAxis: axis(palette, { type: "value", scale: true, axisLabel: { formatter: shown } }),
                series: [
                    { name: "runs", type: "scatter", symbolSize: points.length > 400 ? 4 : 8, itemStyle: { color: palette.hues[0] },
                      data: points.map((point) => ({ value: [time(point), point.median], run: point.run, started: point.started })) },
                    ...levelsOf(history).filter(({ median }) => median !== undefined).map(({ from, to, median }) => ({
                        name: "level", type: "line", showSymbol: false, silent: true, lineStyle: { color: palette.hues[1], width: 3 },
                        data: [[time(points[from]), median], [time(points[Math.min(to, points.length - 1)]), median]],
                    })),
                ],
            }),
        },
        table: {
            columns: ["started", "run", "#median", "#min", "#max", "level"],
            rows: points.slice().reverse().map((point) => () => {
                const began = history.change_points.find(({ run }) => run === point.run);
                return [textCell(point.started.replace("T", " ").replace("Z", "")), element("td", { class: "text" }, runLink(point.run, root)),
                    ...["median", "min", "max"].map((key) => cell(point[key], unit)), textCell(began ? `${began.direction}, ${change(began.change)} from here` : "")];
            }),
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
                textCell(point.started.replace("T", " ").replace("Z", "")), element("td", { class: "text" }, runLink(point.run, root)), textCell(point.direction), changeCell(point.change),
                textCell(changeInterval(point.ci).replace("95 % interval ", "")), cell(point.before.median, point.unit), cell(point.before.n, "count"),
                cell(point.after.median, point.unit), cell(point.after.n, "count"), textCell(whatDiffers(point.differs))]),
        },
    };
}

function changesOfLine({ metric, unit, change_points: points }, name, root) {
    return tableOfChanges(`Change points of ${metric}`, points.map((point) => ({ ...point, unit })).reverse(), name, root);
}
