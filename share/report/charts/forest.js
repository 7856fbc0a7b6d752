// The change of each metric with its 95 % interval, one line each, against no change.
"use strict";

// Primary metrics, and of the others those that moved, as compare prints them.
function shownMetrics(other) {
    return Object.entries(other.metrics).filter(([, metric]) => metric.change !== null && (metric.primary || (metric.p < 0.05 && Math.abs(metric.change) >= 0.03)));
}

// A horizontal bar from low to high with a point at the estimate. value: [estimate, line, low, high]
function interval(palette, colour) {
    return (_, api) => {
        const line = api.value(1), at = (value) => api.coord([value, line]);
        const [estimate, low, high] = [at(api.value(0)), at(api.value(2)), at(api.value(3))];
        const style = { stroke: colour, lineWidth: 2 };
        const end = (x) => ({ type: "line", shape: { x1: x, x2: x, y1: estimate[1] - 5, y2: estimate[1] + 5 }, style });
        const known = Number.isFinite(api.value(2)) && Number.isFinite(api.value(3));
        return {
            type: "group",
            children: [...(known ? [{ type: "line", shape: { x1: low[0], x2: high[0], y1: estimate[1], y2: estimate[1] }, style }, end(low[0]), end(high[0])] : []),
                { type: "circle", shape: { cx: estimate[0], cy: estimate[1], r: 5 }, style: { fill: colour, stroke: palette.ground } }],
        };
    };
}

const VERDICT_HUES = { better: "good", worse: "bad" };

function verdictInWords(metric) {
    if (metric.verdict === "inconclusive" && metric.more_runs) return `inconclusive: about ${plural(metric.more_runs, "more run")} a side would tell`;
    return metric.verdict;
}

function forestOfChanges(other, base, title) {
    const metrics = shownMetrics(other);
    if (!metrics.length) return null;
    const edges = metrics.flatMap(([, metric]) => [metric.change, ...metric.ci.filter((edge) => edge !== null)]);
    const reach = (value) => Math.max(-1, Math.min(value, 2)); // an interval to +900 % would hide the others
    const rows = metrics.map(([name, metric], line) => ({ name, metric, value: [reach(metric.change), line, metric.ci[0] === null ? NaN : reach(metric.ci[0]), metric.ci[1] === null ? NaN : reach(metric.ci[1])] }));
    return {
        title,
        note: `The typical change of ${other.name} against ${base.name}, with its 95 % interval. An interval that contains 0 % leaves open whether anything changed.${edges.some((edge) => edge > 2) ? " Cut at +200 %." : ""}`,
        chart: {
            height: 60 + 34 * rows.length,
            words: metrics.map(([name, metric]) => `${name} ${change(metric.change)}, ${metric.verdict}`).join("; "),
            option: (palette, width) => ({
                tooltip: {
                    trigger: "item",
                    formatter: (point) => {
                        const { name, metric } = rows[point.data.value[1]];
                        return tip(name, [["change", change(metric.change)], ["interval", metric.ci[0] === null ? "too few runs" : `${change(metric.ci[0])} to ${change(metric.ci[1])}`], ["verdict", verdictInWords(metric)]]);
                    },
                },
                legend: false,
                xAxis: axis(palette, { type: "value", axisLabel: { formatter: (value) => change(value).replace(/\.0(?=\D)/, "") } }),
                yAxis: axis(palette, { type: "category", inverse: true, data: rows.map((row) => row.name), axisLabel: { width: width < 500 ? 110 : 260, overflow: "truncate", interval: 0 } }),
                series: [{
                    name: "change", type: "custom", encode: { x: [0, 2, 3], y: 1 }, clip: true,
                    renderItem: (parameters, api) => interval(palette, palette[VERDICT_HUES[rows[parameters.dataIndex].metric.verdict]] || palette.hues[rows[parameters.dataIndex].metric.primary ? 0 : 5])(parameters, api),
                    data: rows.map((row) => ({ value: row.value })),
                    markLine: { symbol: "none", silent: true, label: { show: false }, lineStyle: { color: palette.text, type: "solid", width: 1 }, data: [{ xAxis: 0 }] },
                }],
            }),
        },
        table: {
            columns: ["median of", "#typical change", "#from", "#to", "verdict", "#p", `#${base.name} (n=${base.n})`, `#${other.name} (n=${other.n})`],
            rows: metrics.map(([name, metric]) => () => [textCell(name), changeCell(metric.change), changeCell(metric.ci[0]), changeCell(metric.ci[1]),
                textCell(verdictInWords(metric)), cell(metric.p), cell(metric.base, metric.unit), cell(metric.other, metric.unit)]),
        },
    };
}

function changeCell(value) {
    return element("td", { class: "figure", "data-value": JSON.stringify(value) }, value === null ? "-" : change(value));
}
